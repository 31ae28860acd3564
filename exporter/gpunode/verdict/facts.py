"""What is known about the last seconds: values of series at several times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpunode.gpu.activity import SECONDS, SHORT_GAPS
from gpunode.gpu.ledger import STATES
from gpunode.metric import Metric
from gpunode.source import Key

At = tuple[str, str]
"""A GPU: its index and its UUID."""

LATEST_SECONDS = 4.5
"""Seconds over which it is seen what a GPU does at the moment: two windows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Values of series at one moment, with the times at which they were read."""

    moment: float
    values: Mapping[Key, tuple[float, float]]
    labels: Mapping[Metric, list[tuple[str, ...]]] = field(init=False, repr=False)
    """The labels of every series of each metric."""

    def __post_init__(self) -> None:
        labels: dict[Metric, list[tuple[str, ...]]] = {}
        for metric, of_series in self.values:
            labels.setdefault(metric, []).append(of_series)
        object.__setattr__(self, "labels", labels)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the time that the snapshots cover, oldest first.

    ``metrics`` are those in the snapshots. Asking for another raises ``LookupError``: nobody has
    declared that it is used, so it would never be found.
    """

    snapshots: tuple[Snapshot, ...]
    metrics: Collection[Metric]
    time: float
    """Seconds since the epoch at the last snapshot."""

    _rates: dict[Key, float | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What was asked for: every GPU asks for the rates of the node's disks and file servers."""

    def now(self, metric: Metric, *labels: str) -> float | None:
        """The latest value of a series."""
        found = self._last(metric, labels)
        return None if found is None else found[0]

    def rate(self, metric: Metric, *labels: str) -> float | None:
        """The increase of a counter per second; None if it is new or was reset."""
        key = metric, labels
        if key not in self._rates:
            self._rates[key] = self._rate(key)
        return self._rates[key]

    def _rate(self, key: Key) -> float | None:
        after = self._last(*key)
        if after is None:
            return None
        for snapshot in self.snapshots:
            before = snapshot.values.get(key)
            if before is not None:
                return increase(before, after)
        return None

    def last_rate(self, metric: Metric, *labels: str) -> float | None:
        """The increase of a counter per second between its last two readings."""
        last_two = self.readings(metric, *labels)[-2:]
        if len(last_two) < 2:
            return None
        (before, began), (after, ended) = last_two
        return (after - before) / (ended - began) if after >= before else None

    def readings(self, metric: Metric, *labels: str) -> list[tuple[float, float]]:
        """The values of a series, each with the time at which it was read, oldest first."""
        return list({found[1]: found for found in self._each(metric, labels)}.values())

    def peak(self, metric: Metric, *labels: str) -> float:
        """The highest value of a gauge, 0 without one."""
        return max((value for value, _ in self._each(metric, labels)), default=0.0)

    def recent(self, seconds: float) -> Facts:
        """The facts of the last ``seconds``."""
        end = self.snapshots[-1].moment
        kept = tuple(s for s in self.snapshots if end - s.moment < seconds)
        return replace(self, snapshots=kept)

    def series(self, metric: Metric, *labels: str) -> Iterator[tuple[str, ...]]:
        """The labels of every series of a metric whose first labels are these."""
        self._check(metric)
        for found in self.snapshots[-1].labels.get(metric, ()):
            if found[: len(labels)] == labels:
                yield found

    def shares(self, at: At) -> dict[str, float]:
        """The ledger's states as shares of the time; empty if it covers none."""
        rates = {state: self.rate(SECONDS, *at, state) or 0.0 for state in STATES}
        total = sum(rates.values())
        return {state: rate / total for state, rate in rates.items()} if total else {}

    def short_gaps(self, at: At) -> float:
        """Share of the time in short gaps between kernels; 0 if that is not known."""
        return min(self.shares(at).get("starved", 0.0), self.rate(SHORT_GAPS, *at) or 0.0)

    def _last(self, metric: Metric, labels: tuple[str, ...]) -> tuple[float, float] | None:
        self._check(metric)
        return self.snapshots[-1].values.get((metric, labels))

    def _each(self, metric: Metric, labels: tuple[str, ...]) -> Iterator[tuple[float, float]]:
        self._check(metric)
        key = metric, labels
        return (found for s in self.snapshots if (found := s.values.get(key)))

    def _check(self, metric: Metric) -> None:
        if metric not in self.metrics:
            raise LookupError(f"{metric.name}: asked for but not declared, add it to `uses`")


def increase(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    """The increase per second between two readings of a counter, each a value and its time.

    None if they are the same reading, or the counter was reset.
    """
    if after[1] <= before[1] or after[0] < before[0]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def series_name(metric: Metric, labels: tuple[str, ...]) -> str:
    """A series as exported, which is also the Prometheus query for it."""
    pairs = sorted(zip(metric.labels, labels, strict=True))
    return metric.name + "{" + ",".join(f'{label}="{value}"' for label, value in pairs) + "}"
