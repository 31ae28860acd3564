"""The step period, estimated from the power draw alone.

A training step ends in a moment of less work, so the draw repeats with the step. The period is the
first lag at which the draw correlates with itself again (autocorrelation), if there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from operator import mul

HOLE = 0.1
"""If two samples are this many seconds apart, those between them are missing."""

MAX_SAMPLES = 512
"""Samples kept at each of the two time scales."""

COARSE_FACTOR = 10
"""Samples averaged into one, for periods too long for the fine scale."""

MIN_CORRELATION = 0.5
"""Minimum correlation for a period; noise of this length stays under 0.2."""

MOVING = 0.1
"""Relative standard deviation below which the draw is flat. At its power limit, an H200 regulates
with a period of 0.95 s and a deviation of 0.05 whatever the step; steps with gaps exceed 0.3."""


class Rhythm:
    """Keeps the latest power samples of one GPU at two time scales."""

    def __init__(self) -> None:
        self._fine: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._coarse: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._partial: list[float] = []
        self._times: deque[float] = deque(maxlen=MAX_SAMPLES)

    def add(self, samples: Sequence[tuple[float, float]]) -> None:
        """Add (seconds, watts) samples; start over after a gap, because lags would be wrong."""
        times = [time for time, _ in samples]
        before = [self._times[-1]] if self._times else []
        if any(not 0 < until - since < HOLE for since, until in pairwise(before + times)):
            for kept in (self._times, self._fine, self._coarse, self._partial):
                kept.clear()
            return
        watts = [w for _, w in samples]
        self._times.extend(times)
        self._fine.extend(watts)
        self._partial += watts
        while len(self._partial) >= COARSE_FACTOR:
            self._coarse.append(sum(self._partial[:COARSE_FACTOR]) / COARSE_FACTOR)
            del self._partial[:COARSE_FACTOR]

    @property
    def full(self) -> bool:
        """Whether the fine scale has all its samples."""
        return len(self._fine) == MAX_SAMPLES

    def period(self) -> float | None:
        """Seconds from one step to the next, or None if the draw has no clear period."""
        if len(self._times) < 2:
            return None
        # The driver's samples are 10 to 33 ms apart; lags count in their mean interval.
        interval = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return _period(self._fine, interval) or _period(self._coarse, interval * COARSE_FACTOR)


def _period(series: Sequence[float], interval: float) -> float | None:
    """The lag of the first clear peak of the autocorrelation, in seconds.

    Four periods must fit in the series, and the correlation must fall below zero before the peak,
    as it does for anything periodic.
    """
    if len(series) < MAX_SAMPLES // 2:
        return None
    mean = sum(series) / len(series)
    centred = [value - mean for value in series]
    energy = sum(map(mul, centred, centred)) / len(centred)
    if energy <= (MOVING * mean) ** 2:
        return None
    correlation: list[float] = []
    fell = False
    for lag in range(1, len(centred) // 4 + 2):
        product = sum(map(mul, centred, centred[lag:]))
        correlation.append(product / (energy * (len(centred) - lag)))
        fell = fell or correlation[-1] < 0
        if fell and len(correlation) > 2:
            before, peak, after = correlation[-3:]
            if peak >= MIN_CORRELATION and before < peak >= after:
                bend = before - 2 * peak + after
                return (lag - 1 + (before - after) / (2 * bend)) * interval
    return None
