"""How figures are written: by Prometheus in an alert, and by us in the documents.

https://prometheus.io/docs/prometheus/latest/configuration/template_reference/#numbers
"""

from __future__ import annotations

from typing import Literal

from alerts.model import Unit

FORMATS: dict[Unit, str] = {
    "percent": "{{ $value | humanizePercentage }}",
    "celsius": '{{ printf "%.0f" $value }} °C',
    "seconds": "{{ $value | humanizeDuration }}",
    "bytes": "{{ $value | humanize }}B",
    "number": "{{ $value | humanize }}",
    "count": '{{ printf "%.0f" $value }}',
    "flag": "",
}
"""The templates with which Prometheus writes the value of an alert."""

OF_SETTINGS: dict[Unit, str] = {
    **dict.fromkeys(("number", "count"), "NAME"),
    "percent": "{{ NAME | humanizePercentage }}",
    "celsius": "NAME °C",
    "seconds": "{{ NAME | humanizeDuration }}",
    "bytes": "{{ NAME | humanize }}B",
}
"""How the text of an alert writes a figure that is in it from the beginning."""

MORE_OR_LESS = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}


def bound(unit: Unit, comparison: Literal[">", "<"], threshold: float) -> str:
    """A threshold in words: ``more than 10%``."""
    if unit == "count" and comparison == ">":
        return f"at least {int(threshold) + 1:,}"
    return f"{MORE_OR_LESS[comparison]} {written(unit, threshold)}"


def written(unit: Unit, figure: float) -> str:
    """A figure for a reader of the documents."""
    if unit == "percent":
        return f"{figure * 100:g}%"
    if unit == "celsius":
        return f"{figure:g} °C"
    if unit == "seconds":
        return _duration(figure)
    if unit == "bytes":
        return f"{figure / 1e9:g} GB" if figure >= 1e9 else f"{figure / 1e6:g} MB"
    return f"{figure:,g}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    if seconds >= 7200 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s"
