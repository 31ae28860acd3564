"""The last hour of every GPU, a point each ten seconds, in a memory that does not grow.

What a page over ``kubectl port-forward`` needs where there is no Prometheus; it is lost when the
daemon ends.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpunode.gpu.activity import MEMORY_USED, SECONDS
from gpunode.gpu.ledger import STATES
from gpunode.gpu.power import ENERGY
from gpunode.metric import Metric
from gpunode.source import Reading, Readings
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.facts import increase
from gpunode.verdict.source import BOTTLENECK

STEP = 10.0
"""Seconds between two points."""

POINTS = 361
"""Points that are kept: an hour, and the place of the one that is being written."""

MAX_GPUS = 128
"""GPUs that are kept: about 20 kB each."""

USED = frozenset({SECONDS, ENERGY, MEMORY_USED, BOTTLENECK})

At = tuple[str, str]

NAMES = tuple(CAUSES)
UNKNOWN = len(NAMES)
"""In place of a cause, where there was no verdict."""


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One GPU over time: for each point its value, None where it was not read.

    ``states`` has the share of the time since the point before that went to each state; those in
    which the GPU never was are left out. ``power_watts`` is the mean since the point before.
    """

    gpu: str
    uuid: str
    states: dict[str, list[float | None]]
    power_watts: list[float | None]
    memory_used_bytes: list[float | None]
    cause: list[str | None]

    def first(self, count: int) -> GpuHistory:
        """The history of its first points."""
        return GpuHistory(
            self.gpu,
            self.uuid,
            {state: shares[:count] for state, shares in self.states.items()},
            self.power_watts[:count],
            self.memory_used_bytes[:count],
            self.cause[:count],
        )


class Ring:
    """The points of one GPU; the place of a point is the same in all columns."""

    __slots__ = ("causes", "energy", "ledger", "memory", "power", "shares")

    def __init__(self) -> None:
        nothing = array("f", [math.nan]) * POINTS
        self.shares = [nothing[:] for _ in STATES]
        self.power, self.memory = nothing[:], nothing[:]
        self.causes = bytearray([UNKNOWN]) * POINTS
        self.ledger: Sequence[float] = ()
        """Seconds of each state at the last point; empty if it was not read."""

        self.energy: tuple[float, float] | None = None
        """Joules at the last point, and when (monotonic) they were read."""

    def put(
        self,
        place: int,
        seconds: Sequence[float],
        energy: tuple[float, float] | None,
        memory: float,
        cause: int,
    ) -> None:
        """Keep a point; what is not known of it is NaN."""
        spent = [now - before for now, before in zip(seconds, self.ledger, strict=False)]
        total = sum(spent)
        known = total > 0 and min(spent) >= 0
        for at, column in enumerate(self.shares):
            column[place] = spent[at] / total if known else math.nan
        self.power[place] = _watts(self.energy, energy)
        self.memory[place] = memory
        self.causes[place] = cause
        self.ledger, self.energy = seconds, energy

    @property
    def empty(self) -> bool:
        """Whether nothing is known of the last hour."""
        return not self.ledger and all(math.isnan(share) for share in self.shares[0])


class History:
    """Keeps the last hour. One thread writes a point, then counts it; requests read up to there."""

    name = "history"
    every = STEP
    metrics: tuple[Metric, ...] = ()

    def __init__(self) -> None:
        self.rings: dict[At, Ring] = {}
        self.times = array("d", [math.nan]) * POINTS
        self.count = 0
        """Points that were ever put; the last is at ``(count - 1) % POINTS``."""

    def read(self, readings: Readings) -> Reading:
        """Put the next point of every GPU."""
        place = self.count % POINTS
        values = readings.values(USED)
        found = dict.fromkeys((g, u) for m, (g, u, *_) in values if m is SECONDS)
        causes = {
            (g, u): NAMES.index(rest[0])
            for (m, (g, u, *rest)), (value, _) in values.items()
            if m is BOTTLENECK and value
        }
        rings = {at: ring for at, ring in self.rings.items() if at in found or not ring.empty}
        for at in found:
            if len(rings) < MAX_GPUS:
                rings.setdefault(at, Ring())
        for at, ring in rings.items():
            ledger = [values.get((SECONDS, (*at, state))) for state in STATES]
            seconds = [reading[0] for reading in ledger if reading is not None]
            memory, _ = values.get((MEMORY_USED, at), (math.nan, 0.0))
            by_state = [values.get((ENERGY, (*at, state))) for state in STATES]
            joules = [reading for reading in by_state if reading is not None]
            energy = (sum(j for j, _ in joules), joules[0][1]) if joules else None
            ring.put(place, seconds, energy, memory, causes.get(at, UNKNOWN))
        self.times[place] = readings.clock.time()
        self.rings = rings
        self.count += 1
        return Reading((), self)

    def after(self, since: float) -> tuple[list[float], list[GpuHistory]]:
        """The times of the points after a time, oldest first, and the GPUs at these.

        Where the clock was set back, the points that it took for the future are left out.
        """
        places = list(self._latest_first(since))[::-1]
        rings = sorted(self.rings.items(), key=lambda item: (int(item[0][0]), item[0][1]))
        times = [round(self.times[place], 1) for place in places]
        return times, [_gpu_history(at, ring, places) for at, ring in rings]

    def began(self, at: At, cause: str | None, state: str = "") -> tuple[float, bool] | None:
        """When a GPU began to have a cause, and most of its time in a state if one is named.

        In seconds since the epoch, with whether the first point that is kept has it already; None
        if the last point does not have it.
        """
        ring = self.rings.get(at)
        wanted = UNKNOWN if cause is None else NAMES.index(cause)
        shares = ring.shares[list(STATES).index(state)] if ring and state else None
        found = None
        for place in self._latest_first():
            if ring is None or ring.causes[place] != wanted:
                break
            if shares is not None and not shares[place] >= BOUND:  # not where nothing is known
                break
            found = self.times[place], False
        else:
            found = found and (found[0], True)
        return found

    def _latest_first(self, since: float = 0.0) -> Iterator[int]:
        """The places of the points after a time; see ``after`` for a clock that was set back."""
        next_time = math.inf
        for number in reversed(range(max(0, self.count - POINTS + 1), self.count)):
            place = number % POINTS
            if since < self.times[place] < next_time:
                yield place
                next_time = self.times[place]


def _watts(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float:
    """The mean power between two readings of the energy; NaN if it is not known."""
    watts = increase(before, after) if before and after else None
    return math.nan if watts is None else watts


def _gpu_history(at: At, ring: Ring, places: Sequence[int]) -> GpuHistory:
    shares = ((s, c) for s, c in zip(STATES, ring.shares, strict=True))
    return GpuHistory(
        *at,
        {
            state: list(_rounded(column, places, 3))
            for state, column in shares
            if any(column[place] > 0 for place in places)
        },
        list(_rounded(ring.power, places, 1)),
        list(_rounded(ring.memory, places, 0)),
        [NAMES[c] if (c := ring.causes[place]) < UNKNOWN else None for place in places],
    )


def _rounded(column: array[float], places: Sequence[int], digits: int) -> Iterator[float | None]:
    return (None if math.isnan(v := column[place]) else round(v, digits) for place in places)
