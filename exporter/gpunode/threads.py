"""A few threads that stay for the next thing to do, and what each has used of a processor.

To hand something to a thread that waits takes 20 µs of CPU, to start a thread for it 150 µs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

IDLE_THREADS = 2
"""Threads that stay, each with nothing to do."""

IDLE = 20.0
"""Seconds after which a thread ends that has had nothing to do."""

Tell = Callable[[], None]

_for_another = threading.local()


def used() -> float:
    """CPU seconds of this thread, and of those that did something for it."""
    return time.thread_time() + getattr(_for_another, "seconds", 0.0)


def charge(seconds: float) -> None:
    """Count what another thread has used for this one."""
    _for_another.seconds = getattr(_for_another, "seconds", 0.0) + seconds


class SpareThreads:
    """Does each thing in a thread that has no other; some stay for the next."""

    def __init__(self, kept: int = IDLE_THREADS) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._idle = 0
        self._next: SimpleQueue[Callable[[], Tell]] = SimpleQueue()
        """What the idle threads are to do."""

    def begin(self, do: Callable[[], Tell], name: str) -> None:
        """Have it done, and do not wait; what it returns tells whoever waits. An error ends it.

        Who is told finds the thread idle. Raises ``RuntimeError`` where no thread can be started,
        as beyond the cgroup's pids.max.
        """
        with self._lock:
            idle = self._idle > 0
            self._idle -= idle
        if idle:
            self._next.put(do)
        else:
            threading.Thread(target=self._work, args=(do,), name=name, daemon=True).start()

    def _work(self, do: Callable[[], Tell]) -> None:
        while True:
            tell = do()
            with self._lock:
                stays = self._idle < self._kept
                self._idle += stays
            tell()
            del do, tell  # what they have may be large
            while stays:
                try:
                    do = self._next.get(timeout=IDLE)
                    break
                except Empty:
                    with self._lock:  # of those that wait, as many as are not idle have to do
                        stays = self._idle == 0
                        self._idle -= not stays
            else:
                return


SHARED = SpareThreads()
"""Those of all that ask what may never answer."""
