"""What is due at a time, and the few threads that do it: as a rule one.

A thread waits for what is due next, does it and waits again, so that nothing is handed over. One
that takes long is replaced for what is due meanwhile, and ends when it comes back: what hangs costs
its thread, and delays the others once, by less than ``TICK`` and ``LONG``.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from functools import partial
from typing import Protocol

from gpunode.loop import complaints
from gpunode.loop.complaints import isolated

TICK = 0.5
"""Seconds between two looks at whether anything waits for a thread, if nothing did."""

LONG = 0.1
"""Seconds that something may take, or be late, before another thread does what is due meanwhile."""


class DueWork(Protocol):
    """Something to do again and again."""

    @property
    def where(self) -> str:
        """What it is, for the log."""
        ...

    @property
    def took(self) -> float:
        """Seconds that it took the last time; infinite before."""
        ...

    def perform(self) -> float | None:
        """Do it; returns after how many seconds to do it again, None if never."""
        ...


class Workers:
    """Does jobs when they are due; one that ends with a fault of ours, ``again`` seconds later."""

    def __init__(self, again: float) -> None:
        self.again = again
        self.refused: BaseException | None = None
        """Why there is no thread for what is due, if there is none."""

        self._changed = threading.Condition()
        self._due: list[tuple[float, int, DueWork]] = []
        self._number = itertools.count()
        self._waits = False
        """Whether a thread waits for what is due next."""

        self._busy: dict[int, float] = {}
        """By the number of what is being done, since when."""

        self._stopped = False

    def add(self, job: DueWork, delay: float) -> None:
        """Do a job after some seconds, and again."""
        with self._changed:
            self._push(job, delay)

    def late(self) -> list[str]:
        """What is due and waits for a thread."""
        with self._changed:
            return [job.where for due, _, job in self._due if due + LONG < time.monotonic()]

    def tend(self) -> float:
        """Start threads where none waits and something is late: as many as do what takes long.

        Returns after how many seconds to look again.
        """
        if self._waits:
            self.refused = None
            return TICK
        with self._changed:
            now = time.monotonic()
            hang = sum(since + LONG <= now for since in self._busy.values())
            late = sum(due + LONG <= now for due, _, _ in self._due)
            wanted = min(late, max(1, hang)) if self._busy else 1
        for _ in range(wanted):
            self._start()
        return LONG if wanted else TICK

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name="worker", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            self.refused = error
        else:
            self.refused = None

    def stop(self) -> None:
        """Tell every thread to end after what it does now, without waiting."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _push(self, job: DueWork, delay: float) -> None:
        entry = time.monotonic() + delay, next(self._number), job
        heapq.heappush(self._due, entry)
        if self._waits and self._due[0] is entry:
            self._changed.notify()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            _, number, job = taken
            if job.took > LONG and not self._waits:
                self._start()
            again = isolated(job.perform)
            if isinstance(again, BaseException):
                isolated(partial(complaints.complain, job.where, "ended, begins again", again))
                again = self.again
            with self._changed:
                del self._busy[number]
                if again is not None:
                    self._push(job, again)
            del job, taken

    def _next(self) -> tuple[float, int, DueWork] | None:
        """Wait for what is due next and take it; None for a thread that is one too many."""
        with self._changed:
            while not self._stopped and not self._waits:
                now = time.monotonic()
                wait = self._due[0][0] - now if self._due else None
                if wait is not None and wait <= 0.0:
                    taken = heapq.heappop(self._due)
                    self._busy[taken[1]] = now
                    return taken
                self._waits = True
                try:
                    self._changed.wait(wait)
                finally:
                    self._waits = False
            return None
