"""How long Python collects garbage, noted by functions in C alone.

A callback in Python would be the first code that runs after a collection: the signals that came
meanwhile are handled in it, and what a handler raises, such as KeyboardInterrupt, is lost there,
because ``gc`` prints what a callback raises and goes on. C handles no signals.
"""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from functools import partial
from itertools import accumulate, repeat, starmap
from operator import sub
from time import monotonic


class Garbage:
    """Notes when collections begin and how long they took: ``gc.callbacks`` has its callback.

    Every pull at one of its iterators reads the clock: ``getattr(phases, "start")`` keeps the time,
    and ``getattr(phases, "stop")`` takes that back and adds what has passed since to the total.
    """

    def __init__(self) -> None:
        self._outside = monotonic()
        """Stands for no collection; one that is under way is noted from here on."""

        self._began = deque([self._outside])
        self._total = deque([0.0], maxlen=1)
        times = starmap(monotonic, repeat(()))
        took = map(sub, times, starmap(self._began.pop, repeat(())))
        phases = {
            "start": property(partial(next, map(self._began.append, times))),
            "stop": property(partial(next, map(self._total.append, accumulate(took)))),
        }
        self._note = partial(getattr, type("Phases", (), phases)())
        gc.callbacks.append(self._note)

    def look(self) -> tuple[float, float] | None:
        """Seconds collected so far, and those of the collection that is under way, 0 without one.

        None if somebody took the callback away.
        """
        if not any(one is self._note for one in gc.callbacks):
            return None
        total, lasts = self._total[-1], 0.0
        with contextlib.suppress(IndexError):
            began = self._began[-1]
            lasts = monotonic() - began if began != self._outside else 0.0
        return total + lasts, lasts

    def forget(self) -> None:
        """Note nothing more."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._note)
