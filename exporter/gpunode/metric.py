"""Metrics and their samples. Imports no other module of gpunode.

A metric is declared once, next to the source that emits it; ``docs/metrics.md`` is generated from
the declarations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A family of time series, declared once; compared by identity.

    ``name`` ends in the base unit, followed by ``_total`` for a counter. ``help`` names the source
    of the value. ``buckets`` are the upper bounds of a histogram, without ``+Inf``.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def at(self, value: float | None, *labels: str) -> Iterator[Sample]:
        """One sample, or none without a value: no reading means no series, never 0 or -1."""
        if value is not None:
            yield Sample(self, labels, value)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series; the value of a histogram is a ``Distribution``."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


@dataclass(slots=True)
class Distribution:
    """The number of values in each bucket, and their sum, since the daemon started."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, values: Sequence[float]) -> None:
        """Count each value in the first bucket with an upper bound at or above it."""
        ordered = sorted(values)
        below = 0
        for place, bound in enumerate(self.bounds):
            upto = bisect_right(ordered, bound)
            self.counts[place] += upto - below
            below = upto
        self.counts[-1] += len(ordered) - below
        self.sum += sum(ordered)

    def include(self, other: Distribution) -> None:
        """Add the counts of another distribution over the same buckets."""
        self.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.sum += other.sum

    def copy(self) -> Distribution:
        """A copy of the counts so far, safe to pass to another thread."""
        return Distribution(self.bounds, list(self.counts), self.sum)
