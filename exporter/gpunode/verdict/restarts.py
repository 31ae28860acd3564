"""What a job does again after a fault: the work since the checkpoint from which it begins anew.

A client tells it by the numbers of steps. Without one, a job repeats for as long as it had worked
since its last checkpoint, a burst of writes; both ends are known to within a read: these are the
bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpunode.gpu import GPU
from gpunode.jobs.attempts import ENDED
from gpunode.jobs.owners import OWNER, OwnersDetail
from gpunode.jobs.processes import WRITE_CALL_BYTES
from gpunode.jobs.steps import ClientReports, Progress
from gpunode.metric import Metric, Sample
from gpunode.node.endings import ended_badly
from gpunode.node.node import Node
from gpunode.source import Reading, Readings
from gpunode.verdict.facts import At
from gpunode.verdict.gain import BOUNDS
from gpunode.verdict.last_work import WORKLESS, Process

REPEATED = Metric(
    "gpunode_job_repeated_seconds_total",
    "counter",
    "Time in which the job on the GPU did work again that it had done before a fault: by the "
    "numbers of its steps where a client tells them, and then all bounds are the same; else by the "
    "time from its last checkpoint to its end, within bounds. Absent before a checkpoint is seen.",
    (*GPU, "bound"),
)

MIN_CHECKPOINT = 16 << 20
"""Bytes written between two reads that may be a checkpoint: logs have fewer."""

WHOLE = 0.5
"""Share of the largest checkpoint from which on one is whole: what a fault cut short is not."""

RARE = 0.5
"""Share of the time: who writes for longer writes something else than checkpoints."""

LATE = 6.0
"""Seconds that the ledger may be late, and a checkpoint may come early or late."""

RETURN_SECONDS = 6 * 3600.0
"""Seconds for which a job that left the node may come back."""

MAX_BURSTS = 8

JobKey = tuple[str, str, str]
Doing = Literal["", "starting", "repeating"]


@dataclass(frozen=True, slots=True)
class GpuRestart:
    """What a job that has begun again does on a GPU, and for how long it has repeated work."""

    job: JobKey
    doing: Doing
    repeated: float
    away: bool
    """Whether a process of the job is gone, and it has not begun again."""


@dataclass(frozen=True, slots=True)
class RestartsByGpu:
    """By GPU."""

    gpus: dict[At, GpuRestart]


@dataclass(slots=True)
class Burst:
    """Writes without a pause."""

    begin: float
    end: float
    bytes: float


@dataclass(slots=True)
class JobAttempt:
    """A job as this node has seen it; times are monotonic."""

    since: float
    seen: float
    processes: frozenset[Process] = frozenset()
    ended: float = 0.0
    """Attempts that had ended when it was last looked at."""

    missed: float | None = None
    """When a process of it was first missed; None while all are there."""

    worked: float | None = None
    """When it was last seen to work."""

    doing: Doing = ""
    failed: bool = False
    """Whether the attempt before is known to have failed."""

    step: int = 0
    """The steps of this attempt that are counted."""

    number: int | None = None
    """Of its last step, by its client; None before it tells."""

    reached: int = 0
    had: int = 0
    """How far it has come in all attempts, and had in those before this one."""

    written: dict[At, tuple[float, float]] = field(default_factory=dict)
    bursts: list[Burst] = field(default_factory=list)
    left: list[float] = field(default_factory=lambda: [0.0] * len(BOUNDS))
    repeated: list[float] = field(default_factory=lambda: [0.0] * len(BOUNDS))

    def write(self, at: At, total: float, read: float) -> None:
        """Note the bytes written so far, as read at a time."""
        before, then = self.written.get(at, (total, read))
        self.written[at] = total, read
        if total - before < MIN_CHECKPOINT:
            return
        last = self.bursts[-1] if self.bursts else None
        if last is not None and then <= last.end:
            last.end, last.bytes = max(last.end, read), last.bytes + total - before
        else:
            self.bursts = [*self.bursts[1 - MAX_BURSTS :], Burst(then, read, total - before)]

    def lost(self, now: float) -> list[float]:
        """The seconds of work since the last checkpoint, within bounds; 0 if not known."""
        largest = max((one.bytes for one in self.bursts), default=0.0)
        whole = [one for one in self.bursts if one.bytes >= WHOLE * largest]
        if not whole or sum(b.end - b.begin for b in self.bursts) > RARE * (now - self.since):
            return [0.0] * len(BOUNDS)
        first, last = self.seen, self.missed or now
        if self.worked is not None and self.worked < self.seen - LATE:  # it stood still first
            first, last = self.worked - LATE, self.worked + LATE
        saved, before = whole[-1], whole[-2] if len(whole) > 1 else None
        lower, upper = max(0.0, first - saved.end), max(0.0, last - saved.begin)
        middle = (lower + upper) / 2
        if before is not None:
            if saved.end >= first:  # the fault may have cut it short
                upper = last - before.begin
            if last - LATE <= 2 * saved.begin - before.begin <= last + LATE:
                lower = 0.0  # one more was due, that may have been written and not been read
        return [lower, middle, upper]

    def begin_again(self, now: float, *, failed: bool) -> None:
        """Begin another attempt, which repeats what the one before it lost."""
        if failed or self.reached:  # else it may be another program of the same owner
            self.left = [0.0] * len(BOUNDS) if self.reached else self.lost(now)
            self.doing, self.bursts, self.since = "starting", [], now
            self.failed, self.step, self.number = failed, 0, None

    def repeat(self, passed: float, said: Collection[Progress], now: float) -> None:
        """Count what it repeats, for so many seconds since the last look."""
        steps = [one.step for one in said if one.step]
        told = [one for one in said if one.number is not None and one.step]
        if told:
            self.doing = self._numbered(max(told, key=lambda one: one.number or 0), now)
        elif self.doing == "starting" and (steps or (self.worked or 0.0) > self.since):
            # It has what the checkpoint has that it was begun from.
            self.doing, self.bursts = "repeating", [Burst(now, now, 0.0)]
        elif self.doing == "repeating":
            spent = [min(passed, left) for left in self.left]
            self.repeated = [sum(one) for one in zip(self.repeated, spent, strict=True)]
            self.left = [left - done for left, done in zip(self.left, spent, strict=True)]
            self.doing = "repeating" if self.left[1] else ""

    def _numbered(self, told: Progress, now: float) -> Doing:
        """Count by the number of the last step, and how many have ended in this attempt.

        Who begins with the first step repeats only if the attempt before is known to have failed:
        else it may be another training. Numbers that fall meanwhile count something else.
        """
        number, step = told.number or 0, told.step or 0
        if self.number is None:
            self.had = self.reached if number > step or self.failed else 0
        elif number < self.number:
            self.had = self.reached = 0
        if told.pace is not None:
            again = min(step - self.step, max(0, self.had - number + step - self.step))
            seconds = min(again * told.pace, now - self.since)
            self.repeated = [one + seconds for one in self.repeated]
            self.step = step
        self.number, self.reached = number, max(number, self.reached)
        return "repeating" if number < self.had else ""


class Restarts:
    """Looks at which jobs begin again, and for how long they repeat what they had done."""

    name = "restarts"
    every = 2.0
    metrics = (REPEATED,)

    def __init__(self, node: Node) -> None:
        self.node = node
        self._jobs: dict[JobKey, JobAttempt] = {}
        self._looked: float | None = None

    def read(self, readings: Readings) -> Reading:
        now = readings.clock.monotonic()
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        values = readings.values({OWNER, ENDED, WRITE_CALL_BYTES, WORKLESS})
        on: dict[JobKey, dict[At, float]] = {}
        for (metric, (gpu, uuid, *rest)), (_, told_at) in values.items():
            if metric is OWNER and rest[-2]:
                on.setdefault((rest[0], rest[4], rest[-2]), {})[gpu, uuid] = told_at
        there = {one.place[:2]: one.detail.processes for one in readings.details(OwnersDetail)}
        said = {
            (one.pid, one.start): one.progress
            for told in readings.details(ClientReports)
            for one in told.detail.processes
        }
        for key, gpus in on.items():
            job = self._jobs.setdefault(key, JobAttempt(now, now))
            found = frozenset((p.pid, p.start) for at in gpus for p in there.get(at, ()))
            ended = sum(values.get((ENDED, at), (0.0, 0.0))[0] for at in gpus)
            for at in gpus:
                if (WORKLESS, at) in values:
                    workless, then = values[WORKLESS, at]
                    job.worked = max(then - workless, job.worked or 0.0)
                if (WRITE_CALL_BYTES, at) in values:
                    job.write(at, *values[WRITE_CALL_BYTES, at])
            job.repeat(passed, [said[one] for one in job.processes if one in said], now)
            self._look(job, found, ended, min(gpus.values()), now)
        for key in self._jobs.keys() - on.keys():
            job = self._jobs[key]
            job.missed = job.missed or now
            if now - job.missed > RETURN_SECONDS:
                del self._jobs[key]
        told = {
            at: GpuRestart(key, job.doing, job.repeated[1], job.missed is not None)
            for key, gpus in on.items()
            for job in (self._jobs[key],)
            for at in gpus
        }
        return Reading(tuple(self._samples(on)), RestartsByGpu(told))

    def _look(
        self, job: JobAttempt, found: frozenset[Process], ended: float, seen: float, now: float
    ) -> None:
        """Note which of its processes were there at a time, and whether it has begun again."""
        if found and job.processes and not found & job.processes:
            job.missed = job.missed or seen
            failed = [ended_badly(self.node, process) for process in job.processes]
            job.begin_again(now, failed=any(failed) or ended > job.ended)
        elif not job.processes <= found:
            job.missed = job.missed or seen
            if not found or (job.worked or 0.0) <= job.missed + LATE:
                return  # else the others go on without it
        for process in found - job.processes:
            ended_badly(self.node, process)  # from now on, the kernel tells how it ends
        job.processes, job.ended, job.seen, job.missed = found, ended, seen, None

    def _samples(self, on: Mapping[JobKey, Collection[At]]) -> Iterator[Sample]:
        for key, gpus in on.items():
            job = self._jobs[key]
            if job.reached or job.bursts or job.doing or any(job.repeated):
                for at in sorted(gpus):
                    for bound, seconds in zip(BOUNDS, job.repeated, strict=True):
                        yield from REPEATED.at(seconds, *at, bound)
