"""How a figure is written: by the templates of Prometheus, and by us where we expect the same.

https://prometheus.io/docs/prometheus/latest/configuration/template_reference/#numbers
"""

from __future__ import annotations

from collections.abc import Callable

FORMATS = {
    "percent": "{{ $value | humanizePercentage }}",
    "celsius": '{{ printf "%.0f" $value }} °C',
    "seconds": "{{ $value | humanizeDuration }}",
    "number": "{{ $value | humanize }}",
    "flag": "",
}


def humanize(value: float) -> str:
    """As Prometheus's template function: four digits and a prefix."""
    prefixes = ["", "k", "M", "G", "T"]
    while abs(value) >= 1000 and len(prefixes) > 1:
        value /= 1000
        prefixes.pop(0)
    return f"{value:.4g}{prefixes[0]}"


def humanize_duration(value: float) -> str:
    """As Prometheus's template function."""
    if 0 < abs(value) < 1:
        return f"{value * 1000:.4g}ms"
    seconds = int(value)
    days, hours, rest = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h {rest}m {seconds % 60}s"
    if hours:
        return f"{hours}h {rest}m {seconds % 60}s"
    return f"{rest}m {seconds % 60}s" if rest else f"{value:.4g}s"


RENDERED: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{value * 100:.4g}%",
    "celsius": lambda value: f"{value:.0f} °C",
    "seconds": humanize_duration,
    "number": humanize,
    "flag": str,
}
