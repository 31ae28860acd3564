"""Tells when something that is done rarely is due."""

from __future__ import annotations

import math


class Due:
    """Due at once, and then every so many seconds."""

    def __init__(self, every: float) -> None:
        self.every = every
        self._next = -math.inf

    def at(self, now: float) -> bool:
        """Whether it is due at this moment; then the next time is counted from here."""
        if now < self._next:
            return False
        self._next = now + self.every
        return True
