"""Counters of engines that go on over a restart: only what is gained between two looks is added.

The first look at a server adds nothing, as it may have answered for days. A counter that falls has
begun anew, and adds nothing either: so no rate is made of a restart.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import floor

from gpunode.metric import Distribution
from gpunode.serving.page import Histogram

KEEP_SECONDS = 3600.0
"""Seconds after which what is no longer told is forgotten."""


class Totals:
    """Sums of what servers counted, by a key of ours."""

    def __init__(self) -> None:
        self._raw: dict[tuple[Hashable, Hashable], tuple[tuple[float, ...], float]] = {}
        self._sums: dict[Hashable, tuple[tuple[float, ...], float]] = {}

    def add(
        self, key: Hashable, server: Hashable, raw: Sequence[float], now: float
    ) -> tuple[float, ...]:
        """The sums of some counters of a server after this look: they rise together, or not."""
        new = tuple(raw)
        before, _ = self._raw.get((server, key), (new, now))
        self._raw[server, key] = new, now
        total, _ = self._sums.get(key, ((0.0,) * len(new), now))
        if len(before) == len(new) and all(b <= n for b, n in zip(before, new, strict=True)):
            total = tuple(t + n - b for t, n, b in zip(total, new, before, strict=True))
        self._sums[key] = total, now
        return total

    def forget(self, now: float) -> None:
        """Drop what has not been told for long."""
        self._raw = {key: one for key, one in self._raw.items() if now - one[1] < KEEP_SECONDS}
        self._sums = {key: one for key, one in self._sums.items() if now - one[1] < KEEP_SECONDS}


def count_up_to(times: Histogram, bound: float) -> float:
    """How many took at most so many seconds; within a bucket, as if they were spread evenly.

    That is how PromQL sees a bucket, too:
    https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile
    """
    low = most = 0.0
    for edge in sorted(times.upto):
        here = max(most, times.upto[edge])
        if edge >= bound:
            width = edge - low
            part = (bound - low) / width if width > 0 else 1.0
            return min(most + (here - most) * part, _count(times))
        low, most = edge, here
    return min(most, _count(times))


def _count(times: Histogram) -> float:
    return max(times.count or 0.0, 0.0)


def bucket_counts(times: Histogram, bounds: Sequence[float]) -> tuple[float, ...]:
    """How many took at most each of some bounds, all of them, and their sum."""
    return *(count_up_to(times, bound) for bound in bounds), _count(times), times.sum or 0.0


def distribution(totals: Sequence[float], bounds: Sequence[float]) -> Distribution:
    """The histogram of sums that ``bucket_counts`` began."""
    below, counts = 0, []
    for total in totals[:-1]:
        whole = max(below, floor(total + 1e-6))
        counts.append(whole - below)
        below = whole
    return Distribution(tuple(bounds), counts, totals[-1])


def progress(
    figures: Mapping[object, float], times: Mapping[object, Histogram]
) -> tuple[float, ...]:
    """What has to grow while requests are computed."""
    return *figures.values(), *(one.count or 0.0 for one in times.values())
