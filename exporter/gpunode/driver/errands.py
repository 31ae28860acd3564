"""Questions that may never be answered: one that hangs delays no other, and is not asked twice."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from gpunode.threads import SHARED, Tell, charge, used

K = TypeVar("K", bound=Hashable)

DRIVER_TIMEOUT = 2.0
"""Seconds to wait for a driver that may hang, before going on with what is known."""

IN_TURN = 0.05
"""Seconds that a thread may take for an errand before those that wait for it go to another."""


@dataclass(slots=True)
class Errand:
    """A question under way: when it began, on the monotonic clock, and whether it is done."""

    begun: float
    perform: Callable[[], object] = lambda: None
    cpu: float = 0.0
    """Seconds that its thread has used."""

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
        """Run these, or join in waiting for them; returns those still not done.

        They take turns in one thread for as long as each is quick. No errand is waited for longer
        than ``patience``, however many callers wait for it.
        """
        now = time.monotonic()
        with self._lock:
            fresh = {
                name: Errand(now, perform)
                for name, perform in errands.items()
                if name not in self._under_way
            }
            for name, errand in fresh.items():
                self._under_way[name] = errand
            begun = {name: self._under_way[name] for name in errands}
        waiting = deque(fresh.items())
        self._go_on(waiting)
        for errand in fresh.values():
            if waiting and not errand.done.wait(IN_TURN):
                self._go_on(waiting)
        for errand in begun.values():
            errand.done.wait(max(0.0, errand.begun + self.patience - time.monotonic()))
        charge(sum(errand.cpu for errand in fresh.values()))
        return {name for name, errand in begun.items() if not errand.done.is_set()}

    def _go_on(self, waiting: deque[tuple[K, Errand]]) -> None:
        """Have another thread take those that wait; without one, they are not begun."""
        try:
            if waiting:
                SHARED.begin(partial(self._take, waiting), "errands")
        except RuntimeError:  # a limit on threads or memory
            with suppress(IndexError):  # another thread may take some yet
                while True:
                    name, errand = waiting.popleft()
                    errand.begun = -math.inf
                    self._is_over(name)

    def _take(self, waiting: deque[tuple[K, Errand]]) -> Tell:
        while True:
            try:
                name, errand = waiting.popleft()
            except IndexError:  # another thread has taken the last
                return lambda: None
            begin, is_well = used(), False
            try:
                errand.perform()
                is_well = True
            finally:
                errand.cpu = used() - begin
                self._is_over(name)
                if waiting or not is_well:
                    errand.done.set()
                if not is_well:  # its thread ends
                    self._go_on(waiting)
            if not errand.done.is_set():
                return errand.done.set

    def _is_over(self, name: Hashable) -> None:
        with self._lock:
            del self._under_way[name]
