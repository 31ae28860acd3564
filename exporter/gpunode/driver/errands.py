"""Questions that may never be answered: each in a thread of its own, and never twice at a time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

DRIVER_TIMEOUT = 2.0
"""Seconds to wait for a driver that may hang, before going on with what is known."""


@dataclass(frozen=True, slots=True)
class Errand:
    """A question under way: when it began, on the monotonic clock, and whether it is done."""

    begun: float
    done: threading.Event = field(default_factory=threading.Event)


class Errands:
    """Runs errands by name; one that hangs keeps its thread, and is not begun again."""

    def __init__(self, patience: float = DRIVER_TIMEOUT) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Errand] = {}

    @property
    def idle(self) -> bool:
        """Whether no errand is under way."""
        with self._lock:
            return not self._under_way

    def run(self, errands: Mapping[K, Callable[[], object]]) -> set[K]:
        """Run these side by side, or join in waiting for them; returns those still not done.

        No errand is waited for longer than ``patience``, however many callers wait for it.
        """
        begun = {name: self._begin(name, perform) for name, perform in errands.items()}
        for errand in begun.values():
            errand.done.wait(max(0.0, errand.begun + self.patience - time.monotonic()))
        return {name for name, errand in begun.items() if not errand.done.is_set()}

    def _begin(self, name: Hashable, perform: Callable[[], object]) -> Errand:
        with self._lock:
            known = self._under_way.get(name)
            if known is not None:
                return known
            errand = Errand(time.monotonic())
            thread = threading.Thread(
                target=self._run, args=(name, perform, errand), name=f"{name}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # a limit on threads or memory
                return Errand(-math.inf)
            self._under_way[name] = errand
            return errand

    def _run(self, name: Hashable, perform: Callable[[], object], errand: Errand) -> None:
        try:
            perform()
        finally:
            with self._lock:
                del self._under_way[name]
            errand.done.set()
