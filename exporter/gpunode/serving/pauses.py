"""For how long a server that had requests has had none, and how long it has gone without before.

Whether anybody wants an answer, a server cannot know. But one that was asked all day, and then by
nobody for longer than ever, has probably lost what sends requests to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpunode.gpu import GPU
from gpunode.jobs.owners import OWNER, OWNER_LABELS
from gpunode.jobs.steps import REQUEST_ITEMS
from gpunode.metric import Metric, Sample
from gpunode.serving.requests import REQUESTS, REQUESTS_ENDED, STEPS, TOKENLESS, TOKENS
from gpunode.source import Key, Reading, Readings

PAUSE = Metric(
    "gpunode_serving_pause_seconds",
    "gauge",
    "Time for which the server has neither run nor ended a request (its engine or client); "
    "absent before its first. For an engine, on its first GPU.",
    GPU,
)
LONGEST_PAUSE = Metric(
    "gpunode_serving_longest_pause_seconds",
    "gauge",
    "The longest pause of the last day before this one.",
    GPU,
)

GROWS = (REQUESTS_ENDED, REQUEST_ITEMS, STEPS, TOKENS)
"""Counters that grow with requests, whichever an engine has."""

RUNS = (REQUESTS, TOKENLESS)
"""Gauges that are above zero while there are requests, also of an engine that makes nothing of them
and no longer answers."""

USED = frozenset({*GROWS, *RUNS, OWNER})

READ_INTERVAL = 10.0
"""Seconds between looks, as between those at an engine."""

DAY = 86400.0

MIN_PAUSE = 60.0
"""Seconds from which a pause is one."""

MAX_PAUSES = 64
"""Pauses that are remembered, the longest: each is shorter than those before it."""

At = tuple[str, ...]


@dataclass(slots=True)
class LastRequest:
    """When a server last had requests (monotonic), whose GPU it has, and its pauses before."""

    last: float
    owners: frozenset[At]
    pauses: deque[tuple[float, float]] = field(default_factory=deque)
    """The end of each, and how long it was."""

    def again(self, now: float) -> None:
        """It has requests now, so its pause is over."""
        pause = now - self.last
        if pause >= MIN_PAUSE:
            while self.pauses and self.pauses[-1][1] <= pause:
                self.pauses.pop()
            if len(self.pauses) < MAX_PAUSES:
                self.pauses.append((now, pause))
        self.last = now

    def longest(self, now: float) -> float:
        """The longest pause that ended within a day."""
        while self.pauses and now - self.pauses[0][0] > DAY:
            self.pauses.popleft()
        return self.pauses[0][1] if self.pauses else 0.0


class ServingPauses:
    """Remembers when each server last had requests."""

    name = "serving_pauses"
    every = READ_INTERVAL
    metrics = (PAUSE, LONGEST_PAUSE)

    def __init__(self) -> None:
        self._asked: dict[At, LastRequest] = {}
        self._counted: dict[Key, float] = {}

    def read(self, readings: Readings) -> Reading:
        now = readings.clock.monotonic()
        values = readings.values(USED)
        owners: dict[At, set[At]] = {}
        counted: dict[Key, float] = {}
        busy, serving = set[At](), set[At]()
        for (metric, labels), (value, _) in values.items():
            at = labels[:2]
            if metric is OWNER:
                owners.setdefault(at, set()).add(labels[2 : 2 + len(OWNER_LABELS)])
                continue
            serving.add(at)
            if metric in RUNS:
                busy |= {at} if value > 0 else set()
            else:
                key = metric, labels
                counted[key] = value
                busy |= {at} if value > self._counted.get(key, value) else set()
        self._counted = counted
        for at in busy:
            had, whose = self._asked.get(at), frozenset(owners.get(at, ()))
            if had is None or (whose and had.owners and not had.owners & whose):
                self._asked[at] = LastRequest(now, whose)
            else:
                had.again(now)
        self._asked = {
            at: one
            for at, one in self._asked.items()
            if at in serving or one.owners & owners.get(at, set())
        }
        return Reading(tuple(self._samples(now)))

    def _samples(self, now: float) -> Iterator[Sample]:
        for at, one in self._asked.items():
            yield from PAUSE.at(now - one.last, *at)
            yield from LONGEST_PAUSE.at(one.longest(now), *at)
