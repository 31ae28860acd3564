"""The driver's sample buffers, which show what polling misses.

``nvmlDeviceGetPowerUsage`` is a mean over one second on Ampere and later, so a GPU that alternates
between full power and none shows a steady mean; the buffer holds a sample every 20 ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpunode.driver.driver import Gpu, Unsupported
from gpunode.metric import Distribution

MICROSECOND = 1e-6
SAMPLE_GAP = 0.1
"""If two samples are this many seconds apart, those between them are missing."""

UTILIZATION_PERIOD = 0.2
"""Seconds that one utilisation sample covers, if the previous sample is missing."""

MAX_UPTIME = 1e9
"""Seconds: no node has been up for longer, so an earlier stamp counts from boot and not from 1970.
Drivers differ in that. On a DGX Spark, they use CLOCK_BOOTTIME.
https://github.com/polarsignals/gpu-metrics-agent/pull/36"""

MIN_SAMPLES = 10
"""Samples that a statement about their distribution needs."""

LIMIT_RATIOS = (0.3, 0.5, 0.7, 0.9)

SWING_DEPTH = 0.45
"""A swing lowers the draw by at least this share of its peak. Steady training stays under 0.36,
kernels launched one by one under 0.35, and loads with gaps of 20 ms or more exceed 0.6 (H200)."""

REACH = 4.0
"""Seconds over which the peak and the floor of a swing are taken."""


@dataclass(frozen=True, slots=True)
class PowerWindow:
    """Power samples of one window: (seconds since the epoch, watts), oldest first."""

    samples: tuple[tuple[float, float], ...]
    mean: float | None = field(init=False, default=None)
    """Mean in watts, or None without a sample."""

    variance: float | None = field(init=False, default=None)
    """Variance in square watts, or None if there are too few samples."""

    lowest: float | None = field(init=False, default=None)
    """Mean of the lowest tenth of the samples in watts, or None if there are too few."""

    def __post_init__(self) -> None:
        watts = sorted([w for _, w in self.samples])
        if not watts:
            return
        mean = sum(watts) / len(watts)
        object.__setattr__(self, "mean", mean)
        if len(watts) >= MIN_SAMPLES:
            variance = sum([(w - mean) ** 2 for w in watts]) / len(watts)
            object.__setattr__(self, "variance", variance)
            lowest = watts[: len(watts) // 10]
            object.__setattr__(self, "lowest", sum(lowest) / len(lowest))


class PowerBuffer:
    """Drains one GPU's power samples; keeps their integral and the time that they cover."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.joules = 0.0
        self.seconds = 0.0
        self.swings = 0
        self.share_of_limit = Distribution(LIMIT_RATIOS)
        self._begun = False
        self._newest = 0
        self._last: tuple[float, float] | None = None
        self._reach: deque[tuple[float, float, float]] = deque()
        self._high = False

    def drain(self, limit: float | None) -> PowerWindow | None:
        """Samples since the last call, or None if the GPU keeps none.

        The first call only sets the starting point: earlier samples in the buffer do not count.
        """
        try:
            buffered = self.gpu.power_samples(self._newest).samples
        except Unsupported:
            return None
        fresh = [(t * MICROSECOND, watts) for t, watts in buffered if t > self._newest]
        begun = self._begun
        # No samples: the buffer ran empty, or the clock was set back past the newest one.
        self._begun = not begun or bool(buffered)
        self._newest = buffered[-1][0] if buffered else 0
        if not begun:
            self._last = fresh[-1] if fresh else None
            return PowerWindow(())
        self._integrate(fresh)
        watts = [w for _, w in fresh]
        if limit:
            self.share_of_limit.add([w / limit for w in watts])
        self._count_swings(watts)
        return PowerWindow(tuple(fresh))

    def _integrate(self, samples: list[tuple[float, float]]) -> None:
        """Integrate the power over time, leaving out missing time."""
        if not samples:
            return
        before = [samples[0] if self._last is None else self._last, *samples]
        for (since, _), (until, watts) in pairwise(before):
            if 0 < until - since < SAMPLE_GAP:
                self.joules += watts * (until - since)
                self.seconds += until - since
        self._last = samples[-1]

    def _count_swings(self, watts: list[float]) -> None:
        """Count each fall from near the recent peak to near the recent floor.

        The marks are at 30 % and 70 % between floor and peak, so that noise is not counted.
        """
        if not watts:
            return
        now = self._last[0] if self._last else 0.0
        self._reach.append((now, min(watts), max(watts)))
        while now - self._reach[0][0] > REACH:
            self._reach.popleft()
        floor = min(low for _, low, _ in self._reach)
        peak = max(high for _, _, high in self._reach)
        if peak - floor < SWING_DEPTH * peak:
            self._high = False
            return
        lower, upper = floor + 0.3 * (peak - floor), floor + 0.7 * (peak - floor)
        for value in watts:
            if value >= upper:
                self._high = True
            elif value <= lower and self._high:
                self._high = False
                self.swings += 1


class UtilizationBuffer:
    """Drains one GPU's utilisation samples: exact shares of time, read only when needed."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._newest = 0
        self._samples: list[tuple[float, float, float]] = []

    def mean(self, begin: float, end: float, booted: float) -> float | None:
        """Share of the time from ``begin`` to ``end`` (epoch seconds) with work, or None.

        Samples are weighted by their overlap with that time, and must cover half of it. The node
        was ``booted`` then.
        """
        try:
            buffered = self.gpu.utilization_samples(self._newest).samples
        except Unsupported:
            return None
        if not buffered:
            # The buffer ran empty, or the clock was set back past the newest sample.
            self._newest = 0
            self._samples.clear()
        self._keep(buffered)
        if self._newest * MICROSECOND < MAX_UPTIME:
            begin, end = begin - booted, end - booted
        self._samples = [s for s in self._samples if s[1] > begin]
        covered = weighted = 0.0
        for since, until, share in self._samples:
            overlap = max(0.0, min(end, until) - max(begin, since))
            covered += overlap
            weighted += overlap * share
        return weighted / covered if covered >= 0.5 * (end - begin) else None

    def _keep(self, buffered: Sequence[tuple[int, float]]) -> None:
        for time, share in buffered:
            if time <= self._newest:
                continue
            until = time * MICROSECOND
            since = self._newest * MICROSECOND
            if not 0 < until - since < 2 * UTILIZATION_PERIOD:
                since = until - UTILIZATION_PERIOD
            self._samples.append((since, until, share))
            self._newest = time
