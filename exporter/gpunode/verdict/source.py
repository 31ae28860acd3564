"""Reports every few seconds the bottleneck of each GPU, and who waits for whom."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpunode.gpu import GPU
from gpunode.gpu.activity import SECONDS, WindowDetail
from gpunode.jobs.owners import OwnersDetail, RolesDetail
from gpunode.jobs.processes import JobDetail
from gpunode.metric import Metric, Sample
from gpunode.source import Place, Reading, Readings
from gpunode.verdict import judge, last_work, overdue, waiting
from gpunode.verdict import workload as kinds
from gpunode.verdict.case import Case, Evidence, WaitedFor, copies_wait
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes import USES as OF_CAUSES
from gpunode.verdict.causes.cause import MIN_LOSS
from gpunode.verdict.facts import At, Facts, Snapshot
from gpunode.verdict.gain import GAIN, Gain, gain
from gpunode.verdict.judge import FAILURES, Judge, Verdict
from gpunode.verdict.last_work import WORKLESS, Tenancies
from gpunode.verdict.overdue import STALLS, TRAINING_STALLED, stalled
from gpunode.verdict.reasons import WAITED_FOR
from gpunode.verdict.standing import Standings
from gpunode.verdict.waiting import Jobs
from gpunode.verdict.where import Looks
from gpunode.verdict.workload import KINDS, WORKLOAD, Workload, workload_of

D = TypeVar("D")

BOTTLENECK = Metric(
    "gpunode_gpu_bottleneck",
    "gauge",
    "Whether this was the bottleneck of the GPU over the last seconds: exactly one cause is 1; "
    "/api/v1/verdict has the evidence.",
    (*GPU, "cause"),
)

USED = OF_CAUSES.union(judge.USES, last_work.USES, overdue.USES, waiting.USES, kinds.USES)
"""The metrics that verdicts rest on; ``Facts`` knows no others."""

PERIOD = 30.0
"""Seconds of readings on which evidence may rest; most sources are read every 10 s."""

JUDGED = 10.0
"""Seconds of the ledger that a verdict covers."""

READ_INTERVAL = 2.0
"""Seconds between verdicts."""

STEADY_INTERVAL = 4.0
"""Seconds between verdicts where no GPU changed what it does for ``PERIOD``, and none waits."""

NONE_WAITS = 0.1
"""Share of a window spent spinning below which a GPU does not wait for another."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one GPU: a cause, its meaning, the share of time affected, and why."""

    gpu: str
    uuid: str
    cause: str
    meaning: str
    share: float
    evidence: tuple[Evidence, ...]
    workload: Workload
    gain: Gain | None = None
    """How many times as fast the job would be without the cause, where that can be told."""

    waits_for: tuple[WaitedFor, ...] = ()
    """The GPUs of its job on this node that it waits for, and why they do not come."""


@dataclass(frozen=True, slots=True)
class Judgements:
    """The verdicts on all GPUs."""

    verdicts: tuple[Judgement, ...]


class Verdicts:
    """Derives the bottleneck of each GPU from the readings of all sources."""

    name = "verdict"
    every = READ_INTERVAL
    metrics = (BOTTLENECK, FAILURES, GAIN, TRAINING_STALLED, WAITED_FOR, WORKLESS, WORKLOAD)

    def __init__(self) -> None:
        self._history: deque[Snapshot] = deque()
        self._last: Reading | None = None
        self._doing: list[tuple[Place, str]] = []
        self._since = -math.inf
        """When any GPU last began to do something else, or waited."""

        self._jobs = Jobs()
        self._tenancies = Tenancies()
        self._judge = Judge()
        self._standings = Standings()

    def read(self, readings: Readings) -> Reading:
        """The verdict on every GPU whose ledger reaches back far enough."""
        clock = readings.clock
        now = clock.monotonic()
        if self._is_steady(readings, now) and self._last is not None:
            due = self._history[-1].moment + STEADY_INTERVAL - READ_INTERVAL / 2
            if now < due:
                return self._last
        self._history.append(Snapshot(now, readings.values(USED)))
        while now - self._history[0].moment > PERIOD + READ_INTERVAL / 2:
            self._history.popleft()
        self._last = self._judged(readings)
        return self._last

    def _is_steady(self, readings: Readings, now: float) -> bool:
        """Whether each GPU has done for a while what it does now, and none waits."""
        doing, waits = [], False
        for told in readings.details(WindowDetail):
            state = told.detail.state
            doing.append((told.place, max(state, key=state.__getitem__)))
            waits = waits or state["blocked"] >= NONE_WAITS
        if waits or doing != self._doing:
            self._doing, self._since = doing, now
        return now - self._since >= PERIOD

    def _judged(self, readings: Readings) -> Reading:
        clock = readings.clock
        facts = Facts(tuple(self._history), USED, clock.time())
        gpus = [(gpu, uuid) for gpu, uuid, state in facts.series(SECONDS) if state == "unknown"]
        owners = _details_by_gpu(readings, OwnersDetail)
        workloads = _workloads(readings, facts, gpus, owners)
        waits = self._waits(readings, facts, owners)
        recent = facts.recent(JUDGED)
        shares = {at: recent.shares(at) for at in gpus}
        short = {at: recent.short_gaps(at) for at in gpus}
        starving = {at for at in gpus if shares[at].get("starved", 0.0) - short[at] >= MIN_LOSS}
        late = {one.at: one for found in waits.values() for one in found}
        samples: list[Sample] = [
            Sample(WAITED_FOR, (*one.at, one.reason), 1.0) for one in late.values()
        ]
        judged = []
        self._standings.forget_others(gpus)
        for at in gpus:
            peers = self._jobs.peers(at)
            if at in owners:
                workless = self._tenancies.workless(facts, at, owners[at].processes)
                samples += WORKLESS.at(workless, *at)
            workload = workloads.get(at)
            if workload is not None:
                samples += _state_samples(KINDS, WORKLOAD, at, workload.kind)
            held = copies_wait(recent, at, shares[at])
            case = Case(
                facts,
                recent,
                at,
                shares[at],
                workload.kind if workload else "unknown",
                waits.get(at, ()),
                late.get(at),
                not starving.isdisjoint(peers),
                tuple(shares[peer] for peer in sorted(peers) if shares.get(peer)),
                min(short[at], shares[at].get("starved", 0.0) - held),
                held,
                tuple(short[peer] for peer in sorted(peers) if shares.get(peer)),
            )
            found = self._judge.verdicts(case)
            if not found:
                continue
            started = owners[at].processes if at in owners else ()
            verdict = self._standings.after(case, found, started)
            mended = gain(case, verdict.cause)
            if mended is not None:
                samples += mended.samples(at, verdict.cause)
            judged.append(_judgement(at, verdict, workload, mended, waits.get(at, ())))
            samples += _state_samples(CAUSES, BOTTLENECK, at, verdict.cause.name)
            why = stalled(facts, at)
            if why is not None:
                samples += _state_samples(STALLS, TRAINING_STALLED, at, why)
        samples += self._judge.failures()
        return Reading(tuple(samples), Judgements(tuple(judged)))

    def _waits(
        self, readings: Readings, facts: Facts, owners: Mapping[At, OwnersDetail]
    ) -> dict[At, tuple[WaitedFor, ...]]:
        """For whom each GPU waits, with what a look at their processes told."""
        holders = {at: {process.job for process in found.processes} for at, found in owners.items()}
        looks = next((one.detail for one in readings.details(Looks)), Looks(()))
        return {
            at: looks.told(late, lambda at: owners[at].processes if at in owners else ())
            for at, late in self._jobs.waited_for(facts, holders).items()
        }


def _state_samples(known: Iterable[str], metric: Metric, at: At, found: str) -> Iterator[Sample]:
    """A series for each value that a label may have: 1 for the one found, 0 for the others."""
    return (Sample(metric, (*at, each), float(each == found)) for each in known)


def _details_by_gpu(readings: Readings, kind: type[D]) -> dict[At, D]:
    """The details of this type, by GPU."""
    return {(one.place.gpu, one.place.uuid): one.detail for one in readings.details(kind)}


def _workloads(
    readings: Readings, facts: Facts, gpus: Iterable[At], owners: Mapping[At, OwnersDetail]
) -> dict[At, Workload]:
    """The kind of work on each GPU that a process holds."""
    roles = _details_by_gpu(readings, RolesDetail)
    processes = _details_by_gpu(readings, JobDetail)
    windows = _details_by_gpu(readings, WindowDetail)
    return {
        at: workload_of(
            facts,
            at,
            owners[at].processes,
            roles[at].roles if at in roles else (),
            processes[at].processes if at in processes else (),
            windows[at].peers if at in windows else None,
        )
        for at in gpus
        if at in owners and owners[at].processes
    }


def _judgement(
    at: At,
    verdict: Verdict,
    workload: Workload | None,
    mended: Gain | None,
    late: tuple[WaitedFor, ...],
) -> Judgement:
    return Judgement(
        *at,
        verdict.cause.name,
        verdict.cause.meaning,
        verdict.share,
        verdict.evidence,
        workload or Workload("unknown", "no process on the GPU"),
        mended,
        late,
    )
