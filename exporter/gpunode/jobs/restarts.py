"""What a job does again after a fault: the work since the checkpoint from which it begins anew.

A client tells it by the numbers of steps. Without one it is estimated: for as long as the job had
worked since its last checkpoint, it repeats that work once it works again. A checkpoint is a burst
of writes. When it began and ended, and when the work did, is known to within a read of each: these
are the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from gpunode.gpu import GPU
from gpunode.gpu.activity import SECONDS
from gpunode.jobs.attempts import ENDED
from gpunode.jobs.owners import OWNER, OwnersDetail
from gpunode.jobs.processes import WRITE_CALL_BYTES
from gpunode.jobs.steps import Progress, SaidByClients
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Reading, Readings

BOUNDS = ("lower", "estimate", "upper")

REPEATED = Metric(
    "gpunode_job_repeated_seconds_total",
    "counter",
    "Time in which the job on the GPU did work again that it had done before a fault: by the "
    "numbers of its steps where a client tells them, and then all bounds are the same; else by the "
    "time from its last checkpoint to its end, within bounds. Absent before a checkpoint is seen.",
    (*GPU, "bound"),
)

LEAST_CHECKPOINT = 16 << 20
"""Bytes written between two reads that may be a checkpoint: logs have fewer."""

WHOLE = 0.5
"""Share of the largest checkpoint from which on one is whole: what a fault cut short is not."""

RARE = 0.5
"""Share of the time: who writes for longer writes something else than checkpoints."""

WORKS = 0.02
"""Share of a GPU's time from which on its job works."""

LATE = 6.0
"""Seconds that the ledger may be late, and a checkpoint may come early or late."""

WITHOUT_WORK = ("blocked", "starved", "idle", "free")
KEPT = 6 * 3600.0
"""Seconds for which a job that left the node may come back."""

MOST_BURSTS = 8

At = tuple[str, str]
JobKey = tuple[str, str, str]
Process = tuple[int, float]
Doing = Literal["", "starting", "repeating"]


@dataclass(frozen=True, slots=True)
class GpuRestart:
    """What a job that has begun again does on a GPU."""

    job: JobKey
    doing: Doing
    repeated: float
    """Seconds so far, as estimated."""

    away: bool
    """Whether a process of the job is gone, and it has not begun again."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """By GPU."""

    gpus: dict[At, GpuRestart]


@dataclass(slots=True)
class Burst:
    """Writes without a pause: from and to when, and how many bytes."""

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
    numbered: bool = False
    """Whether a client tells the numbers of its steps."""

    told: dict[Process, float] = field(default_factory=dict)
    written: dict[At, tuple[float, float]] = field(default_factory=dict)
    bursts: list[Burst] = field(default_factory=list)
    left: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    repeated: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    @property
    def known(self) -> bool:
        """Whether what it repeats can be told."""
        return bool(self.numbered or self.bursts or self.doing or any(self.repeated))

    def write(self, at: At, total: float, read: float) -> None:
        """Note the bytes written so far, as read at a time."""
        before, then = self.written.get(at, (total, read))
        self.written[at] = total, read
        if total - before < LEAST_CHECKPOINT:
            return
        last = self.bursts[-1] if self.bursts else None
        if last is not None and then <= last.end:
            last.end, last.bytes = max(last.end, read), last.bytes + total - before
        else:
            self.bursts = [*self.bursts[1 - MOST_BURSTS :], Burst(then, read, total - before)]

    def lost(self, now: float) -> list[float]:
        """The seconds of work since the last checkpoint, within bounds; 0 if not known."""
        largest = max((one.bytes for one in self.bursts), default=0.0)
        whole = [one for one in self.bursts if one.bytes >= WHOLE * largest]
        writes = sum(one.end - one.begin for one in self.bursts)
        if not whole or writes > RARE * (now - self.since):
            return [0.0, 0.0, 0.0]
        first, last = self.seen, self.missed or now
        if self.worked is not None and self.worked < self.seen - LATE:  # it stood still first
            first, last = self.worked - LATE, self.worked + LATE
        saved, before = whole[-1], whole[-2] if len(whole) > 1 else None
        lower, upper = max(0.0, first - saved.end), max(0.0, last - saved.begin)
        middle = (lower + upper) / 2
        if before is not None:
            if saved.end >= first:  # the fault may have cut it short
                upper = last - before.begin
            read = max((read for _, read in self.written.values()), default=last)
            due = saved.begin + (saved.begin - before.begin)
            if read - LATE <= due <= last + LATE:  # one more may have been written, unread
                lower = 0.0
        return [lower, middle, upper]

    def begin_again(self, now: float) -> None:
        """Begin another attempt, which repeats what the one before it lost."""
        self.left = [0.0, 0.0, 0.0] if self.numbered else self.lost(now)
        self.doing, self.bursts, self.since = "starting", [], now
        self.worked = None

    def repeat(self, passed: float, told: Iterable[tuple[Process, Progress]], now: float) -> None:
        """Count what it repeats, for so many seconds since the last look."""
        own = dict(told)
        more = [one.repeated - self.told.get(process, 0.0) for process, one in own.items()]
        self.told = {process: one.repeated for process, one in own.items()}
        self.numbered |= any(one.number is not None for one in own.values())
        if self.numbered:
            self.repeated = [one + max([0.0, *more]) for one in self.repeated]
            if any(one.step for one in own.values()):
                self.doing = "repeating" if any(one.repeats for one in own.values()) else ""
            return
        if self.doing == "starting" and (self.worked == now or any(o.step for o in own.values())):
            # It has what the checkpoint has that it was begun from.
            self.doing, self.bursts = "repeating", [Burst(now, now, 0.0)]
        elif self.doing == "repeating":
            spent = [min(passed, left) for left in self.left]
            self.repeated = [sum(one) for one in zip(self.repeated, spent, strict=True)]
            self.left = [one - done for one, done in zip(self.left, spent, strict=True)]
        if self.doing == "repeating" and not self.left[1]:
            self.doing = ""


class Restarts:
    """Looks at which jobs begin again, and for how long they repeat what they had done."""

    name = "restarts"
    every = 2.0
    metrics = (REPEATED,)

    def __init__(self, node: Node) -> None:
        self.node = node
        self._jobs: dict[JobKey, JobAttempt] = {}
        self._ledger: dict[At, dict[str, float]] = {}
        self._looked: float | None = None

    def read(self, readings: Readings) -> Reading:
        now = readings.clock.monotonic()
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        values = readings.values({OWNER, ENDED, WRITE_CALL_BYTES, SECONDS})
        works = self._work(values)
        on: dict[JobKey, dict[At, float]] = {}
        for (metric, (gpu, uuid, *rest)), (_, told_at) in values.items():
            if metric is OWNER and rest[-2]:
                on.setdefault((rest[0], rest[4], rest[-2]), {})[gpu, uuid] = told_at
        there = {
            (one.place.gpu, one.place.uuid): {(p.pid, p.start) for p in one.detail.processes}
            for one in readings.details(OwnersDetail)
        }
        said = {
            (one.pid, one.start): one.progress
            for told in readings.details(SaidByClients)
            for one in told.detail.processes
        }
        for key, gpus in on.items():
            job = self._jobs.setdefault(key, JobAttempt(now, now))
            found = frozenset(one for at in gpus for one in there.get(at, ()))
            ended = sum(values.get((ENDED, at), (0.0, 0.0))[0] for at in gpus)
            self._look(job, found, ended, min(gpus.values()), now)
            if found and any(at in works for at in gpus):
                job.worked = now
            for at in gpus:
                if (WRITE_CALL_BYTES, at) in values:
                    job.write(at, *values[WRITE_CALL_BYTES, at])
            job.repeat(passed, ((p, said[p]) for p in found if p in said), now)
        for key, job in list(self._jobs.items()):
            if key not in on:
                job.missed = job.missed or now
                if now - job.missed > KEPT:
                    del self._jobs[key]
        return Reading(tuple(self._samples(on)), Restarted(dict(self._told(on))))

    def _look(
        self, job: JobAttempt, found: frozenset[Process], ended: float, seen: float, now: float
    ) -> None:
        """Note which of its processes were there at a time, and whether it has begun again."""
        if found and job.processes and not found & job.processes:
            job.missed = job.missed or seen
            failed = [self._failed(process) for process in job.processes]
            if any(failed) or ended > job.ended:
                job.begin_again(now)
        elif not job.processes <= found:
            job.missed, job.ended = job.missed or seen, ended
            return
        for process in found - job.processes:
            self._failed(process)  # from now on, the kernel tells how it ends
        job.processes, job.ended = found, ended
        job.seen, job.missed = seen, None

    def _failed(self, process: Process) -> bool:
        """Whether the kernel says that a process ended with an error."""
        with suppress(OSError):
            return bool(self.node.ended(*process))
        return False

    def _work(self, values: dict[tuple[Metric, tuple[str, ...]], tuple[float, float]]) -> set[At]:
        """The GPUs that have worked since the last look, or may have."""
        now: dict[At, dict[str, float]] = {}
        for (metric, (gpu, uuid, *rest)), (value, _) in values.items():
            if metric is SECONDS:
                now.setdefault((gpu, uuid), {})[rest[0]] = value
        before, self._ledger = self._ledger, {**self._ledger, **now}
        found = set()
        for at, states in now.items():
            more = {name: value - before.get(at, states)[name] for name, value in states.items()}
            idle = sum(more[name] for name in WITHOUT_WORK if name in more)
            if sum(more.values()) - idle > WORKS * sum(more.values()):
                found.add(at)
        return found

    def _samples(self, on: Mapping[JobKey, Iterable[At]]) -> Iterator[Sample]:
        for key, gpus in on.items():
            job = self._jobs[key]
            for at in sorted(gpus) if job.known else ():
                for bound, seconds in zip(BOUNDS, job.repeated, strict=True):
                    yield from REPEATED.at(seconds, *at, bound)

    def _told(self, on: Mapping[JobKey, Iterable[At]]) -> Iterator[tuple[At, GpuRestart]]:
        for key, gpus in on.items():
            job = self._jobs[key]
            for at in gpus:
                away = job.missed is not None
                yield at, GpuRestart(key, job.doing, job.repeated[1], away)
