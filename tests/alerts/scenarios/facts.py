"""What a node judges of its own series: the exporter's code, as if it had read the node.

A scenario tells the series of a node's sources and what the verdict is. What holds each GPU up and
which faults last is then judged as on a node: ``verdict/held_up.py`` and ``faults/`` look at the
series whenever something changes, a little later, and at each scrape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from gpunode.faults.register import Register
from gpunode.faults.sightings import CHECKS, NodeValues
from gpunode.faults.sightings import USED as OF_FAULTS
from gpunode.faults.source import START
from gpunode.holders.owner import Started
from gpunode.jobs.attempts import ENDED, Attempts
from gpunode.jobs.owners import OWNER, OwnersDetail
from gpunode.jobs.processes import JobDetail, Listed
from gpunode.metric import Metric, Sample
from gpunode.node.node import SteppedClock
from gpunode.serving.pauses import USED as OF_PAUSES
from gpunode.serving.pauses import ServingPauses
from gpunode.source import DetailReading, Met, Place, SilentPlace
from gpunode.source import Key as Series
from gpunode.sources import METRICS
from gpunode.verdict.case import WaitedFor
from gpunode.verdict.facts import At
from gpunode.verdict.held_up import FLICKERS, HoldTracker
from gpunode.verdict.held_up import USED as OF_HELD_UP
from gpunode.verdict.reasons import WAITED_FOR
from gpunode.verdict.source import BOTTLENECK, Judgement, Judgements
from gpunode.verdict.workload import WORKLOAD, Workload
from tests.alerts.scenarios.course import (
    Course,
    Exposition,
    Key,
    Labels,
    Linear,
    Part,
    Rate,
    Scrapes,
    Unseen,
)

D = TypeVar("D")

EPOCH = 1_700_000_000.0
"""What time it is on the nodes when a scenario begins, and Prometheus' clock is at 0."""

TIME = "_timestamp_seconds"
CLOCK = "gpunode_clock_timestamp_seconds"
SOURCE_UP = "gpunode_source_up"
PROCESS = "gpunode_gpu_process_info"

READ: Mapping[str, Metric] = {
    metric.name: metric
    for section in METRICS.values()
    for metric in section
    if metric in OF_FAULTS | OF_HELD_UP | OF_PAUSES
}
"""The metrics that are looked at."""

NAMES = frozenset(
    {*READ, BOTTLENECK.name, WAITED_FOR.name, WORKLOAD.name, SOURCE_UP, CLOCK, PROCESS}
)
"""The series that a node must have to be judged."""

LOOKS_AFTER = (-0.5, 1.0, FLICKERS + 2.0)
"""Seconds after something changes, when it is looked at what it is: before, at once, and when what
only flickers is over."""


LOOK_INTERVAL = 45.0
"""Seconds after which servers are looked at again: less than the shortest pause."""


@dataclass(slots=True)
class Here:
    """What a node shows for a while."""

    begin: float
    courses: dict[Series, tuple[Course, float]] = field(default_factory=dict)
    """Of each series how it goes on, and where it was when the while began."""

    ahead: float = 0.0
    """How much the node's clock is ahead."""

    silent: frozenset[tuple[str, Place]] = frozenset()
    details: tuple[DetailReading[object], ...] = ()
    attempts: dict[At, tuple[object, tuple[Started, ...], frozenset[str]]] = field(
        default_factory=dict
    )
    """Of each GPU whose it is, the processes on it, and the containers that have begun."""

    def value(self, key: Series, moment: float) -> float:
        """The value of a series."""
        course, before = self.courses[key]
        if isinstance(course, Rate):
            return before + course.gains * (moment - self.begin)
        assert isinstance(course, Linear)
        stamp = EPOCH if key[0].name.endswith(TIME) else 0.0
        return course.at(moment) + stamp


class SeriesOfNode:
    """The readings of a node's sources, as its series tell them."""

    def __init__(self) -> None:
        self.clock = SteppedClock(EPOCH)
        self.here = Here(0.0)
        self.since: dict[tuple[str, Place], float] = {}

    def values(self, metrics: Collection[Metric]) -> dict[Series, tuple[float, float]]:
        now = self.clock.now
        return {
            key: (self.here.value(key, now), now) for key in self.here.courses if key[0] in metrics
        }

    last = values

    def details(self, kind: type[D]) -> list[DetailReading[D]]:
        return [one for one in self.here.details if isinstance(one.detail, kind)]  # type: ignore[misc]

    def silent(self) -> list[SilentPlace]:
        return [SilentPlace(source, at, since, "") for (source, at), since in self.since.items()]

    def unread(self) -> list[Met]:
        return []


class NodeFacts:
    """One node, judged as time goes on."""

    def __init__(self) -> None:
        self._readings = SeriesOfNode()
        self._register = Register()
        self._held_up = HoldTracker()
        self._pauses = ServingPauses()
        self._attempts: dict[At, Attempts] = {}

    def restart(self) -> None:
        """The daemon starts anew; its faults are in its file."""
        kept = self._register.packed()
        self._register, self._held_up = Register(), HoldTracker()
        self._pauses, self._attempts = ServingPauses(), {}
        self._register.unpack(kept)

    def show(self, here: Here) -> None:
        """What the node shows from now on."""
        readings = self._readings
        readings.here = here
        readings.since = {one: readings.since.get(one, here.begin + EPOCH) for one in here.silent}

    def last_look(self, moment: float) -> None:
        """Look at what is about to change."""
        if moment > self._readings.clock.now:
            list(self.look(moment))

    def look(self, moment: float) -> Iterator[tuple[Key, float]]:
        """What it exports of it at a moment."""
        readings, register = self._readings, self._register
        readings.clock.now = moment
        readings.clock.epoch = EPOCH + readings.here.ahead
        seen = NodeValues.of(readings, register.on_bus)
        register.learn(seen)
        observed = [one for look in CHECKS for one in look(seen, register.before)]
        register.update(seen, observed)
        for sample in (
            *self._held_up.read(readings).samples,
            *self._pauses.read(readings).samples,
            *self._ended(),
        ):
            assert isinstance(sample.value, float)
            labels = tuple(sorted(zip(sample.metric.labels, sample.labels, strict=True)))
            yield (sample.metric.name, labels), sample.value
        for fault in register.faults():
            labels = tuple(sorted(zip(START.labels, fault.labels, strict=True)))
            yield (START.name, labels), fault.start - EPOCH

    def _ended(self) -> Iterator[Sample]:
        """The attempts of each GPU's job that have ended, as ``GpuOwners`` counts them."""
        for at, (job, processes, containers) in self._readings.here.attempts.items():
            known = self._attempts.get(at)
            if known is None or known.job != job:
                known = self._attempts[at] = Attempts(job)
            known.look(processes, containers)
            yield from ENDED.at(float(known.ended), *at)


def facts_of(
    expositions: Sequence[Exposition],
    parts: Sequence[Part],
    scrapes: Scrapes,
    restarts: Sequence[float],
) -> list[dict[Key, float]]:
    """What a node tells at each scrape."""
    told: list[dict[Key, float]] = []
    node, before, ran = NodeFacts(), Here(0.0), True
    left = sorted(restarts)
    for exposition, ((begin, end), runs) in zip(expositions, parts, strict=True):
        here = _here(exposition, before)
        looks = [
            (scrapes.moments[step], True)
            for run in runs
            for step in range(run.first, run.first + run.count)
        ]
        if not _alike(here, before):
            looks += [
                (begin + after, False) for after in LOOKS_AFTER if after > 0 and begin + after < end
            ]
            if begin and ran:
                node.last_look(begin + LOOKS_AFTER[0])
        if any(metric in OF_PAUSES and metric is not OWNER for metric, _ in here.courses):
            more = range(int((end - begin) // LOOK_INTERVAL) + 1)
            looks += [(begin + LOOK_INTERVAL * step, False) for step in more]
        while left and left[0] <= begin:
            node.restart()
            del left[0]
        node.show(here)
        for moment, scraped in sorted(looks):
            found = dict(node.look(moment)) if exposition.daemon else {}
            if scraped:
                told.append(found)
        before, ran = here, exposition.daemon
    return told


def _alike(one: Here, other: Here) -> bool:
    """Whether nothing has changed for those who look."""
    return (
        one.silent == other.silent
        and one.details == other.details
        and one.attempts == other.attempts
        and one.courses.keys() == other.courses.keys()
        and all(course == other.courses[key][0] for key, (course, _) in one.courses.items())
    )


@lru_cache(1 << 16)
def _read(name: str, pairs: Labels) -> tuple[Series | None, dict[str, str], At]:
    """A series as a source tells it, if it is looked at; its labels, and its GPU."""
    labels = dict(pairs)
    metric = READ.get(name)
    key = None
    if metric is not None:
        key = metric, tuple(labels.get(label, "") for label in metric.labels)
    return key, labels, (labels.get("gpu", ""), labels.get("uuid", ""))


def _here(exposition: Exposition, before: Here) -> Here:
    """What an exposition shows of what is looked at."""
    here = Here(exposition.begin)
    silent: set[tuple[str, Place]] = set()
    causes: dict[At, str] = {}
    late: dict[At, str] = {}
    pids: dict[At, Started] = {}
    jobs: dict[At, object] = {}
    kinds: dict[At, str] = {}
    for (name, pairs), course in exposition.series.items():
        if name not in NAMES:
            continue
        key, labels, at = _read(name, pairs)
        if isinstance(course, Unseen):
            course = course.course
        if key is not None:
            known = before.courses.get(key)
            start = 0.0
            if known is not None and isinstance(known[0], Rate):
                start = before.value(key, exposition.begin)
            here.courses[key] = course, start
        if name == SOURCE_UP and course == Linear(0.0):
            silent.add((labels["source"], Place(*at, labels["mountpoint"])))
        elif name == CLOCK and isinstance(course, Linear):
            here.ahead = course.at(exposition.begin) - exposition.begin
        elif name == BOTTLENECK.name and course == Linear(1.0):
            causes[at] = labels["cause"]
        elif name == WAITED_FOR.name and course == Linear(1.0):
            late[at] = labels["reason"]
        elif name == WORKLOAD.name and course == Linear(1.0):
            kinds[at] = labels["kind"]
        elif name == PROCESS:
            pid = int(labels["pid"])
            pids[at] = Started(
                pid, float(pid), world_size=labels["world_size"], environment_read=True
            )
        elif name == OWNER.name and labels["workload"]:
            jobs[at] = tuple(
                labels[of] for of in ("owner_namespace", "user", "workload", "replica")
            )
    here.silent = frozenset(silent)
    here.attempts = {
        at: (job, (pids[at],) if at in pids else (), exposition.containers.get(at, frozenset()))
        for at, job in jobs.items()
    }
    here.details = tuple(_details(exposition, causes, late, pids, kinds))
    return here


def _details(
    exposition: Exposition,
    causes: Mapping[At, str],
    late: Mapping[At, str],
    pids: Mapping[At, Started],
    kinds: Mapping[At, str],
) -> Iterator[DetailReading[object]]:
    """What is told beside the series: verdicts, and the processes on each GPU with their states."""
    jobs = exposition.jobs
    verdicts = tuple(
        Judgement(
            *at,
            cause,
            "",
            1.0,
            (),
            Workload(kinds.get(at, "unknown"), ""),
            waits_for=tuple(
                WaitedFor(other, reason)
                for other, reason in late.items()
                if at in exposition.waiting and jobs.get(other) == jobs[at]
            ),
        )
        for at, cause in causes.items()
    )
    yield DetailReading(Place(), 0.0, Judgements(verdicts))
    for at, process in pids.items():
        state = exposition.process_states.get(at, "S")
        yield DetailReading(Place(*at), 0.0, OwnersDetail((process,)))
        yield DetailReading(
            Place(*at), 0.0, JobDetail((Listed(process.pid, "", None, state, ""),), "")
        )
