"""How a series goes on over time, and what a node exports meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]


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

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """A value that stays, of a gauge or of a counter that does not count."""
        self.series[name, tuple(sorted(labels.items()))] = Linear(value)

    def counter(self, name: str, gains: float, /, **labels: str) -> None:
        """A counter and what it gains a second."""
        self.series[name, tuple(sorted(labels.items()))] = Rate(gains)

    def line(self, name: str, line: Linear, /, **labels: str) -> None:
        """A gauge that changes evenly."""
        self.series[name, tuple(sorted(labels.items()))] = line

    def drop(self, names: str, /, **labels: str) -> None:
        """Take series away whose names begin so, and that have these labels."""
        wanted = labels.items()
        self.series = {
            (name, have): course
            for (name, have), course in self.series.items()
            if not (name.startswith(names) and wanted <= dict(have).items())
        }

    def scraped(self) -> Iterator[tuple[Key, Course]]:
        """All series with the labels of the scrape."""
        for key, course in self._scraped():
            yield key, course if self.seen or isinstance(course, Unseen) else Unseen(course)

    def _scraped(self) -> Iterator[tuple[Key, Course]]:
        for job in self.scraped_by if self.up is not None else ():
            target = (("instance", self.address or self.node), ("job", job))
            yield ("up", target), Linear(self.up or 0.0)
            if self.up:
                for (name, labels), course in self.series.items():
                    yield (name, (*target, *labels)), course
        yield from self.others.items()


Interval = tuple[float, float]


def values(courses: Iterable[tuple[Interval, Course | None]], every: float, end: float) -> str:
    """A series in promtool's notation, one value a scrape.

    https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/#series
    """
    notation: list[str] = []
    total, present = 0.0, False
    for (begin, until), course in courses:
        first, last = -int(-begin // every), -int(-min(until, end) // every)
        count = last - first
        if count <= 0:
            continue
        if course is None:
            notation += [
                *(["stale"] if present else ["_"]),
                *([f"_x{count - 1}"] if count > 1 else []),
            ]
            total, present = 0.0, False
            continue
        present = True
        if isinstance(course, Unseen):
            notation.append(f"_x{count}")
            if isinstance(course.course, Rate):
                total += course.course.gains * every * count
        elif isinstance(course, Rate):
            notation.append(_run(total, course.gains * every, count))
            total += course.gains * every * count
        elif course.every:
            notation += [_number(course.at(step * every)) for step in range(first, last)]
        else:
            notation.append(_run(course.at(first * every), course.slope * every, count))
            total = course.at(last * every)
    return " ".join(notation)


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
