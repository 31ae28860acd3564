"""Schedules work that is less frequent than reads."""

from __future__ import annotations

import math


class Due:
    """Due at once, and then at intervals of ``every`` seconds."""

    def __init__(self, every: float) -> None:
        self.every = every
        self._next = -math.inf

    def at(self, now: float) -> bool:
        """Whether it is due now; if so, the next interval starts now."""
        if now < self._next:
            return False
        self._next = now + self.every
        return True
