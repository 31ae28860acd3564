"""How a series goes on over time, and what a node exports meanwhile."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
At = tuple[str, str]
"""A GPU: its index and its UUID."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A value, and what it gains a second from a moment on; with ``every``, it begins again."""

    value: float
    slope: float = 0.0
    since: float = 0.0
    every: float = 0.0

    def at(self, moment: float) -> float:
        """The value at a moment."""
        passed = moment - self.since
        return self.value + self.slope * (passed % self.every if self.every else passed)


@dataclass(frozen=True, slots=True)
class Rate:
    """What a counter gains a second, from where it was."""

    gains: float


@dataclass(frozen=True, slots=True)
class Unseen:
    """What goes on while nobody reads it: Prometheus writes nothing, not even that it is gone."""

    course: Linear | Rate


Course = Linear | Rate | Unseen


@dataclass(slots=True)
class Exposition:
    """What a node exports for a while, and what others say of it."""

    node: str
    begin: float
    series: dict[Key, Course] = field(default_factory=dict)
    others: dict[Key, Course] = field(default_factory=dict)
    """Series that do not come from its exporter."""

    up: float | None = 1.0
    """Prometheus' ``up``; absent if nothing is to be scraped."""

    address: str = ""
    """What ``instance`` is, if not the name of the node."""

    scraped_by: tuple[str, ...] = ("gpunode",)
    """The scrape jobs."""

    seen: bool = True
    """Whether there is a Prometheus that scrapes."""

    only: frozenset[str] | None = None
    """The metrics that somebody reads, if not all."""

    daemon: bool = True
    """Whether its exporter runs."""

    jobs: dict[At, str] = field(default_factory=dict)
    """The job on each GPU on which a process is."""

    waiting: set[At] = field(default_factory=set)
    """The GPUs that wait for another all the time."""

    containers: dict[At, frozenset[str]] = field(default_factory=dict)
    """The containers of each GPU's pod that have begun."""

    process_states: dict[At, str] = field(default_factory=dict)
    """The state of the process on each GPU, as a letter of ``ps``."""

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """A value that stays, of a gauge or of a counter that does not count."""
        self.line(name, Linear(value), **labels)

    def counter(self, name: str, gains: float, /, **labels: str) -> None:
        """A counter and what it gains a second."""
        self._put(name, Rate(gains), labels)

    def line(self, name: str, line: Linear, /, **labels: str) -> None:
        """A gauge that changes evenly."""
        self._put(name, line, labels)

    def _put(self, name: str, course: Course, labels: dict[str, str]) -> None:
        if self.only is None or name in self.only:
            self.series[name, tuple(sorted(labels.items()))] = course

    def drop(self, names: str, /, **labels: str) -> None:
        """Take series away whose names begin so, and that have these labels."""
        wanted = labels.items()
        self.series = {
            (name, have): course
            for (name, have), course in self.series.items()
            if not (name.startswith(names) and wanted <= dict(have).items())
        }

    @property
    def targets(self) -> list[Labels]:
        """The labels of each scrape of its exporter."""
        jobs = self.scraped_by if self.up is not None else ()
        return [(("instance", self.address or self.node), ("job", job)) for job in jobs]

    def scraped(self) -> dict[Key, Course]:
        """All series of its exporter, with the labels of the scrape."""
        return {
            (name, (*target, *labels)): course
            for target in self.targets
            if self.up
            for (name, labels), course in self.series.items()
        }


Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Run:
    """Scrapes in a row, of which all are answered or none is."""

    first: int
    count: int
    answered: bool


@dataclass(frozen=True, slots=True)
class Scrapes:
    """When a node is scraped: out of phase with others, not quite evenly, now and then in vain.

    Prometheus writes what it finds into its next evaluation, as promtool knows no other time.
    """

    every: float
    phase: float
    moments: tuple[float, ...]
    answered: tuple[bool, ...]

    @classmethod
    def of(cls, name: str, every: float, end: float, missed: float) -> Scrapes:
        """Those of a node; ``missed`` is the share of them that fail, and below 0 all is even."""
        count = -int(-end // every)
        if missed < 0:
            even = tuple(step * every for step in range(count))
            return cls(every, 0.0, even, (True,) * count)
        drawn = random.Random(name)
        phase = drawn.uniform(0.0, every)
        moments = tuple(
            max(0.0, step * every - phase - drawn.uniform(0.0, JITTER * every))
            for step in range(count)
        )
        return cls(every, phase, moments, tuple(drawn.random() >= missed for _ in range(count)))

    def time(self, step: int) -> float:
        """About when a scrape is: as if they were even."""
        return max(0.0, step * self.every - self.phase)

    def within(self, interval: Interval) -> tuple[Run, ...]:
        """The scrapes in an interval; the first of all, which comes early, is alone."""
        first, last = (bisect_left(self.moments, moment) for moment in interval)
        runs: list[Run] = []
        for step in range(first, last):
            answered = self.answered[step]
            if runs and runs[-1].answered == answered and runs[-1].first:
                runs[-1] = Run(runs[-1].first, runs[-1].count + 1, answered)
            else:
                runs.append(Run(step, 1, answered))
        return tuple(runs)


JITTER = 0.03
"""How much earlier a scrape may be, as a share of the time between two."""

Part = tuple[Interval, tuple[Run, ...]]
"""A time in which nothing changes, and the scrapes in it."""


def parts_of(points: Iterable[float], end: float, scrapes: Scrapes) -> list[Part]:
    """The time between the points, and the scrapes."""
    return [(one, scrapes.within(one)) for one in intervals(points, end)]


def values(courses: Iterable[tuple[Part, Course | None]], scrapes: Scrapes, own: bool) -> str:
    """A series in promtool's notation, one value a scrape; its ``own`` are the exporter's.

    https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/#series
    """
    notation: list[str] = []
    total, present = 0.0, False
    for ((begin, end), runs), course in courses:
        inner = course.course if isinstance(course, Unseen) else course
        if inner is None:
            total = 0.0
        for run in runs:
            first = scrapes.time(run.first)
            if isinstance(course, Unseen):
                notation.append(_gap(run.count))
            elif inner is None or (own and not run.answered):
                notation.append("stale" if present else "_")
                notation += [_gap(run.count - 1)] if run.count > 1 else []
                present = False
            elif isinstance(inner, Rate):
                value = total + inner.gains * max(0.0, first - begin)
                notation.append(_run(value, inner.gains * scrapes.every, run.count))
                present = True
            else:
                present = True
                if inner.every:
                    steps = range(run.first, run.first + run.count)
                    notation += [_number(inner.at(scrapes.time(step))) for step in steps]
                else:
                    notation.append(_run(inner.at(first), inner.slope * scrapes.every, run.count))
        if isinstance(inner, Rate):
            total += inner.gains * (end - begin)
        elif inner is not None:
            total = inner.at(end)
    return " ".join(notation)


def sampled(found: Sequence[float | None], seen: Sequence[bool]) -> str:
    """The notation of a value at each scrape; where no Prometheus looks, nothing is written."""
    notation: list[str] = []
    present = False
    for value, looks in zip(found, seen, strict=True):
        if not looks:
            notation.append("_")
        elif value is None:
            notation.append("stale" if present else "_")
            present = False
        else:
            notation.append(_number(value))
            present = True
    return " ".join(notation)


def _gap(count: int) -> str:
    return f"_x{count}"


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _run(value: float, step: float, count: int) -> str:
    if count == 1:
        return _number(value)
    if not step:
        return f"{_number(value)}x{count - 1}"
    return f"{_number(value)}{'+' if step > 0 else '-'}{_number(abs(step))}x{count - 1}"


def intervals(points: Iterable[float], end: float) -> list[Interval]:
    """The time between the points."""
    inside = sorted({0.0, *(point for point in points if 0 <= point < end), end})
    return list(itertools.pairwise(inside))
