"""Whether the report's 80 % intervals hold what they should, on fleets whose growth is known.

Jobs of five kinds of fleets come at random, stay for hours to weeks and grow more frequent by a
known amount. What is known is the mean of many such fleets, which no single one shows.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpunode.report.sections.trend import trend

HOURS = 24
WEEK = 7
DAYS = 84
"""Days of history; what is foretold is when demand grows by what it does in ``AHEAD`` days."""

AHEAD = 42
WARM_UP = 60
OTHERS = 160
"""Fleets of each kind from whose mean the truth is taken."""


@dataclass(frozen=True, slots=True)
class JobStream:
    """Jobs that come at random: so many a day, on so many GPUs, for a median time in hours."""

    a_day: float
    gpus: int
    hours: float
    spread: float
    """Standard deviation of the logarithm of their time."""

    growth: float = 0.0
    """How many more come a day, after a day."""

    weekend: float = 1.0
    """How many come on a Saturday or Sunday, of a weekday's."""

    in_the_day: bool = False
    """Whether they come from 8 to 18 o'clock only."""


Stream = JobStream
KINDS: Mapping[str, tuple[JobStream, ...]] = {
    "steady training": (Stream(6, 16, 40, 0.8, 0.04), Stream(60, 1, 3, 1.0, 0.2)),
    "few large runs": (Stream(0.6, 64, 150, 0.7, 0.005), Stream(20, 4, 6, 1.0)),
    "notebooks by day": (
        Stream(120, 1, 7, 0.4, 0.6, weekend=0.2, in_the_day=True),
        Stream(4, 8, 30, 0.8, weekend=0.6),
    ),
    "no growth": (Stream(8, 16, 30, 0.9), Stream(40, 2, 4, 1.0, weekend=0.5)),
    "shrinks": (Stream(10, 8, 60, 0.8, -0.04), Stream(2, 32, 20, 0.6, weekend=0.3)),
}
"""What runs on each kind of fleet."""

GROWING = 3
"""How many kinds grow, so that supply runs out."""


def busiest(streams: tuple[JobStream, ...], chance: random.Random, days: int) -> list[int]:
    """The GPUs that are held in the busiest hour of each day; nobody ever waits."""
    change = [0] * ((WARM_UP + days) * HOURS + 1)
    for stream in streams:
        for day in range(-WARM_UP, days):
            rate = max(0.0, stream.a_day + stream.growth * day)
            if day % WEEK >= 5:
                rate *= stream.weekend
            for begin in _arrivals(rate, chance):
                hour = 8 + begin * 10 if stream.in_the_day else begin * HOURS
                first = int((WARM_UP + day) * HOURS + hour)
                lasts = stream.hours * math.exp(chance.gauss(0, stream.spread))
                change[first] += stream.gpus
                change[min(len(change) - 1, first + max(1, round(lasts)))] -= stream.gpus
    held = list(itertools.accumulate(change))[WARM_UP * HOURS :]
    return [max(held[day * HOURS : (day + 1) * HOURS]) for day in range(days)]


def _arrivals(rate: float, chance: random.Random) -> Iterator[float]:
    """Moments of a day, from 0 to 1, at which jobs come at a rate."""
    at = chance.expovariate(rate) if rate else 1.0
    while at < 1:
        yield at
        at += chance.expovariate(rate)


def interval_coverage(fleets: int, days: int = DAYS, others: int = OTHERS) -> dict[str, float]:
    """The share of intervals that hold the truth: of the gain, and of when supply runs out."""
    gains: list[bool] = []
    dates: list[bool] = []
    for number, streams in enumerate(KINDS.values()):
        chance = random.Random(number)
        mean = [
            statistics.fmean(of)
            for of in zip(
                *(busiest(streams, chance, days + AHEAD) for _ in range(others)), strict=True
            )
        ]
        gain, level = statistics.linear_regression(range(1 - days, AHEAD + 1), mean)
        grows = gain * AHEAD > 0.05 * level
        for fleet in range(fleets // (GROWING if grows else len(KINDS))):
            seen = busiest(streams, chance, days)
            line = trend({float(day - days + 1): float(gpus) for day, gpus in enumerate(seen)})
            assert line is not None
            interval = line.gains()
            assert interval is not None
            if fleet < fleets // len(KINDS):
                gains.append(interval[0] <= gain <= interval[1])
            if grows:
                _, early, late = line.reaches(level + gain * AHEAD)
                dates.append(
                    early is not None and early <= AHEAD and (late is None or late >= AHEAD)
                )
    return {"gain": statistics.fmean(gains), "date": statistics.fmean(dates)}
