"""What the states and causes mean to somebody who decides, what to do, and how figures read."""

from __future__ import annotations

import time
from typing import Literal

from gpunode import words
from gpunode.export.incident_page import FUTURE
from gpunode.report.history import DAY, HOUR
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.cause import Remedy

Unit = Literal[
    "text",
    "GPU hours",
    "hours",
    "share",
    "points",
    "price",
    "seconds",
    "duration",
    "kWh",
    "GPUs",
    "jobs",
    "count",
    "times",
    "days",
]

MINUTE = 60

MIN_HOURS = 0.005
"""GPU hours that are worth a word: fewer are 0.00."""

REMEDIES: dict[str, Remedy] = {
    name: cause.remedy for name, cause in CAUSES.items() if cause.remedy is not None
}
"""By cause of a verdict, all but ``none``."""

KINDS: dict[str, str] = {
    "training": "training",
    "serving": "serving",
    "interactive": "notebooks",
    "unknown": "unknown kind of work",
}


UNEXPLAINED = {
    "communication": "communication",
    "blocked": "straggler",
    "copy": "data_loading_copy",
}
"""By state: the cause for which helps what helps in it, where no verdict names one."""


def headline(name: str) -> str:
    """What a cause or a state of the ledger is, in a few words."""
    found = words.CAUSES.get(name) or words.STATES.get(name)
    return f"{found.headline[:1].upper()}{found.headline[1:]}" if found else name


def helps(state: str) -> str:
    """What helps, for who decides, where time is lost in a state and no verdict names a cause."""
    found = words.CAUSES[UNEXPLAINED[state]] if state in UNEXPLAINED else words.STATES[state]
    return found.for_good


def number(value: float) -> str:
    """A number with three digits, or all of those before the point; what reads as 0 has no sign."""
    if round(value, 2) == 0:
        value = abs(value)
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.2f} million"
    if abs(value) >= 100 or round(value, 6) == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def format_gain(value: float) -> str:
    """A gain or a loss, with its sign; what reads as 0 is no loss."""
    return f"{round(value, 1) or 0.0:+,.1f}"


def hourly(price: float) -> str:
    """The price of a GPU hour, to the cent, or to four digits if that is less than 1."""
    return f"{price:.2f}" if price >= 1 else f"{price:.4g}"


def amount(count: float, what: str) -> str:
    """So many of something."""
    return f"{number(count)} {what}" if count == 1 else f"{number(count)} {what}s"


def as_text(value: float | str | None, unit: Unit) -> str:
    """A figure for a reader; a dash where it is not known."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if unit == "share":
        return f"{value:.1%}".replace("%", "\u202f%")
    if unit == "points":
        return format_gain(value * 100)
    if unit == "count" or (unit == "GPUs" and abs(value) >= 10):
        return f"{value:,.0f}"
    if unit == "times":
        return f"{value:.2f} times"
    if unit == "seconds":
        return f"{value:.3g} s"
    if unit == "duration":
        return lasting(value)
    if unit in ("GPUs", "jobs", "GPU hours", "hours", "price", "kWh", "days"):
        return number(value)
    return str(value)


def lasting(seconds: float) -> str:
    """A length of time in its two largest units: ``5 h 2 min``."""
    rest = round(seconds)
    if rest >= MINUTE:
        rest = round(rest / MINUTE) * MINUTE
    if rest >= DAY:
        rest = round(rest / HOUR) * HOUR
    parts = []
    for length, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        if rest >= length:
            parts.append(f"{rest // length} {unit}")
            rest %= length
    return " ".join(parts) or "0 s"


def date(at: float) -> str:
    """A moment as a date: ``3 Aug 2026``, in UTC."""
    moment = time.gmtime(at)
    return f"{moment.tm_mday} {time.strftime('%b %Y', moment)}"


def clock(at: float) -> str:
    """A moment to the minute, in UTC; what a server gives as one need not be any."""
    if not 0 <= at < FUTURE:
        return "a time that cannot be"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
