"""Text from outside, made fit to show: whatever it holds, it is short and prints as itself.

Not printable are control characters, among them those that break a line, control a terminal or turn
the direction of text, and surrogates, by which Python stands for bytes that are not UTF-8.
"""

from __future__ import annotations

import json


def escaped(text: str, longest: int) -> str:
    """The text for a person, cut, with an escape for each character that cannot be printed."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:longest]
    )
    cut = len(text) > longest or len(shown) > longest
    return f"{shown[: longest - 1]}…" if cut else shown


def printable(text: str, longest: int) -> str:
    """The text for a label, cut, with a replacement for each character that cannot be printed."""
    if len(text) <= longest and text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:longest])


def json_for_terminal(text: str) -> str:
    """JSON with an escape for each character that cannot be printed."""
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c).strip('"') for c in text)


def lasting(seconds: float) -> str:
    """A time in a few characters."""
    for most, unit, one in ((90, "s", 1), (5400, "min", 60)):
        if seconds < most:
            return f"{seconds / one:.0f} {unit}"
    return f"{seconds / 3600:.0f} h"
