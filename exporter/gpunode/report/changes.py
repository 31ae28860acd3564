"""What a change of version did to the jobs that met it, beside the jobs that did not.

A job is compared with itself, before and after. The jobs that kept their version over the same days
say what else changed meanwhile. The effect is the shift between the two by Hodges and Lehmann,
with the interval of the test of Mann and Whitney, so that a job that goes astray does not decide.
https://en.wikipedia.org/wiki/Hodges-Lehmann_estimator
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gpunode.report.history import DAY, JobHours, JobKey, PeriodHours
from gpunode.report.view import ratio

COMPARED_DAYS = 7
"""Days before and after a change that count."""

MIN_DAYS = 2
MIN_CHANGED_JOBS = 4
MIN_OTHER_JOBS = 6
"""Fewer jobs than these are no comparison."""

DEVIATIONS = 3.0
"""Of the interval on each side: of 300 changes without effect, hardly one is said to have one."""

USUAL_DEVIATIONS = 1.96
"""Of an interval of 95 %."""


@dataclass(frozen=True, slots=True)
class MeasuredEffect:
    """By how much something changed, with the bounds of that."""

    estimate: float
    lower: float
    upper: float

    @property
    def sure(self) -> bool:
        """Whether there is an effect beyond chance."""
        return self.lower > 0 or self.upper < 0


def shift(changed: Sequence[float], others: Sequence[float]) -> MeasuredEffect | None:
    """By how much values are above others; None for too few to tell."""
    apart = sorted(one - other for one in changed for other in others)
    pairs = len(apart)
    deviation = math.sqrt(pairs * (len(changed) + len(others) + 1) / 12)
    return _trimmed_median(apart, pairs / 2 - DEVIATIONS * deviation)


def hodges_lehmann(
    values: Sequence[float], deviations: float = USUAL_DEVIATIONS
) -> MeasuredEffect | None:
    """The centre of values, with the interval of Wilcoxon's test; None for too few to tell."""
    count = len(values)
    means = sorted((values[i] + values[j]) / 2 for i in range(count) for j in range(i, count))
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return _trimmed_median(means, count * (count + 1) / 4 - deviations * deviation)


def _trimmed_median(ordered: Sequence[float], cut: float) -> MeasuredEffect | None:
    """The median, and what is left when so many are cut off at each end."""
    if cut < 1:
        return None
    at = math.floor(cut)
    return MeasuredEffect(statistics.median(ordered), ordered[at - 1], ordered[len(ordered) - at])


@dataclass(frozen=True, slots=True)
class VersionChange:
    """Versions that came to jobs together, and what came of it."""

    what: tuple[str, ...]
    """What changed, from which version to which."""

    first: int
    last: int
    """The ends of the first and the last day on which a job had the new version."""

    changed: int
    others: int
    step: MeasuredEffect | None
    """Of the logarithm of the time of a step; None where too few jobs can be compared."""

    useful: MeasuredEffect | None
    """Of the share of the time that was useful."""


class MetJob(NamedTuple):
    """A job that had a new version from a day on."""

    job: JobKey
    day: int


Days = Mapping[int, Mapping[str, float]]
"""The time of a job's step by version, of each day by its end."""


Group = frozenset[MetJob]
"""The jobs that met a change; versions that came to the same jobs on the same days have one."""


def changes(past: PeriodHours) -> list[VersionChange]:
    """Every change that enough jobs met, those that made steps longest first.

    First each change is looked at in jobs of which nothing else changed meanwhile. What that finds
    is then taken from the steps of the jobs that met several, so that these count, too.
    """
    met: dict[tuple[str, str, str], set[MetJob]] = defaultdict(set)
    for what, jobs in past.versions.items():
        for job, days in jobs.items():
            for before, after, day in _switches(days):
                met[what, before, after].add(MetJob(job, day))
    groups: dict[Group, list[tuple[str, str, str]]] = defaultdict(list)
    switched: dict[JobKey, list[tuple[Group, int]]] = defaultdict(list)
    for versions, of in met.items():
        group = frozenset(of)
        if len({one.job for one in of}) >= MIN_CHANGED_JOBS:
            groups[group].append(versions)
        for one in of:
            switched[one.job].append((group, one.day))
    known: dict[Group, float] = {}
    for _ in range(2):
        found = {
            group: _change(_Steps(past, group, versions[0][0], switched, known), sorted(versions))
            for group, versions in groups.items()
        }
        known = {group: one.step.estimate for group, one in found.items() if one.step}
    return sorted(found.values(), key=lambda one: -(one.step.estimate if one.step else -math.inf))


def _switches(days: Days) -> Iterator[tuple[str, str, int]]:
    """The versions before and after, and the first day with only the new one."""
    known = [(day, next(iter(of))) for day, of in sorted(days.items()) if len(of) == 1]
    for (_, before), (day, after) in pairwise(known):
        if before != after:
            yield before, after, day


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of jobs around a change, without what is known of other changes."""

    past: PeriodHours
    group: Group
    what: str
    switched: Mapping[JobKey, Sequence[tuple[Group, int]]]
    known: Mapping[Group, float]

    @property
    def jobs(self) -> Mapping[JobKey, Days]:
        return self.past.versions[self.what]

    def gains(self, job: JobKey, at: int, versions: Sequence[str] = ()) -> Gains | None:
        """What a job gained from the days before a day to those from it on.

        Nothing if it did not have these versions, or else one all the time, or if something else
        changed of which nothing is known. The day before may have had both versions.
        """
        others = [
            (group, day)
            for group, day in self.switched.get(job, ())
            if group != self.group and abs(day - at) <= (COMPARED_DAYS + 1) * DAY
        ]
        if any(group not in self.known for group, _ in others):
            return None
        parts: tuple[list[int], list[int]] = ([], [])
        of = [set[str](), set[str]()]
        days = self.jobs[job]
        for day, told in days.items():
            away = (day - at) // DAY
            if len(told) == 1 and away != -1 and -1 - COMPARED_DAYS <= away < COMPARED_DAYS:
                parts[away >= 0].append(day)
                of[away >= 0] |= told.keys()
        if min(map(len, parts)) < MIN_DAYS:
            return None
        if of != [{one} for one in versions] if versions else len(of[0] | of[1]) > 1:
            return None

        def step(day: int) -> float:
            (seconds,) = days[day].values()
            met = sum(self.known[group] for group, since in others if day >= since)
            return math.log(seconds) - met if seconds > 0 else math.nan

        before, after = ([step(day) for day in part] for part in parts)
        own = self.past.jobs.get(job)
        shares = [statistics.fmean(_useful(own, day) for day in part) for part in parts]
        gained = statistics.fmean(after) - statistics.fmean(before)
        return None if math.isnan(gained) else Gains(gained, shares[1] - shares[0])


class Gains(NamedTuple):
    """What a job gained: of the logarithm of its step, and of its useful share."""

    step: float
    useful: float


def _change(steps: _Steps, versions: Sequence[tuple[str, str, str]]) -> VersionChange:
    """What came of a change: of each day, against the middle of the jobs that did not meet it."""
    mine = {one.job for one in steps.group}
    new = next((before, after) for what, before, after in versions if what == steps.what)
    moments = sorted({one.day for one in steps.group})
    changed: list[Gains] = []
    others: dict[JobKey, list[Gains]] = defaultdict(list)
    for at in moments:
        kept = {job: gains for job in steps.jobs.keys() - mine if (gains := steps.gains(job, at))}
        if not kept:
            continue
        usual = Gains(*(statistics.median(of) for of in zip(*kept.values(), strict=True)))
        for job, gains in kept.items():
            others[job].append(_difference(gains, usual))
        changed += [
            _difference(gains, usual)
            for one in steps.group
            if one.day == at and (gains := steps.gains(one.job, at, new))
        ]
    means = [
        Gains(*(statistics.fmean(of) for of in zip(*own, strict=True))) for own in others.values()
    ]
    return VersionChange(
        tuple(f"{what} {before} to {after}" for what, before, after in versions),
        moments[0],
        moments[-1],
        len(changed),
        len(means),
        _effect([one.step for one in changed], [one.step for one in means]),
        _effect([one.useful for one in changed], [one.useful for one in means]),
    )


def _difference(gains: Gains, usual: Gains) -> Gains:
    return Gains(gains.step - usual.step, gains.useful - usual.useful)


def _useful(job: JobHours | None, day: int) -> float:
    return (ratio(job.useful.get(day, 0.0), job.held.get(day, 0.0)) or 0.0) if job else 0.0


class Pace(NamedTuple):
    """A job's step in seconds, and the share of what it held that was useful, where it is known."""

    step: float
    useful: float | None


def paces(past: PeriodHours) -> dict[JobKey, Pace]:
    """How fast each job was that reports steps, those that held most first."""
    jobs = [(job, of) for job, of in past.jobs.items() if of.steps]
    jobs.sort(key=lambda item: (-sum(item[1].held.values()), item[0]))
    return {
        job: Pace(
            statistics.median(of.steps.values()),
            ratio(sum(of.useful.values()), sum(of.held.values())),
        )
        for job, of in jobs
    }


def _effect(changed: Sequence[float], others: Sequence[float]) -> MeasuredEffect | None:
    if len(changed) < MIN_CHANGED_JOBS or len(others) < MIN_OTHER_JOBS:
        return None
    return shift(changed, others)
