"""What somebody means who mistypes a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MIN_SIMILARITY = 0.65
"""Words are taken for one another from this ratio of ``difflib`` on."""


def hint(word: str, among: Iterable[str]) -> str:
    """A question after those of these words that are nearly it; empty if none is."""
    close = difflib.get_close_matches(word, among, 3, MIN_SIMILARITY)
    return f"did you mean {' or '.join(close)}? " if close else ""
