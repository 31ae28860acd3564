"""Who holds a job up: of its GPUs on this node, those that do not wait while the others do.

This needs no answer of any rank, so it works where a rank is stopped or gone; NCCL's RAS
(``nccl/ras.py``) knows of ranks on other nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpunode.gpu.activity import BLOCKED_STREAK, SECONDS
from gpunode.gpu.activity import STOPPED as STOPPED_ON_GPU
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.verdict.case import WaitedFor
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.causes.host import EXPLAINED, GOES_ON, THREAD_BUSY, WRITES
from gpunode.verdict.facts import LATEST_SECONDS, At, Facts
from gpunode.verdict.reasons import (
    CHECKPOINTING,
    COMPUTING,
    CPU_BOUND,
    EVALUATING,
    GARBAGE_COLLECTION,
    GONE,
    PREPARING,
    STOPPED,
    UNINTERRUPTIBLE,
    UNKNOWN,
    Reason,
)

WAITING_SHARE = 0.5
"""At this share of the last seconds spent spinning, a GPU waits for its peers."""

AWAITED_RATIO = 0.3
"""Below this multiple of what its peers spend spinning, a GPU is waited for."""

BUSY_SHARE = 0.2
"""At this share of time at work, a GPU for which others wait throughout is busy with something that
they do not do, as in evaluation."""

CONSTANT_WAIT_SHARE = 0.9
"""At this share of the last seconds spent spinning, a GPU waits all the time."""

RECENT = 7.0
"""Seconds over which it is seen who waits."""

SAVES = 5e6
"""From this many bytes per second in write calls, a process for which others wait all the time
saves something, even if slowly and elsewhere. OpenSSL sends so what goes to an object store. Logs
take far less."""

MISSED = 60.0
"""A job that does not wait this many seconds after a process ended goes on without it."""

USES = (
    BLOCKED_STREAK,
    SECONDS,
    job.BLOCKED,
    job.HOST_CPUS,
    job.HOST_THREAD,
    job.IO_BYTES,
    job.LOADER_CPUS,
    STOPPED_ON_GPU,
    job.WRITE_CALL_BYTES,
    steps.GARBAGE,
    steps.SECONDS,
)
"""The metrics that tell who waits, and why another does not come."""


class Jobs:
    """Remembers which GPUs each job has held, to miss those that are gone."""

    def __init__(self) -> None:
        self._members: dict[str, dict[At, float]] = {}
        """By job and GPU, when (monotonic) the job was last seen on it."""

    def waited_for(
        self, facts: Facts, holders: Mapping[At, Collection[str]]
    ) -> dict[At, tuple[WaitedFor, ...]]:
        """By waiting GPU, for whom it waits. ``holders`` are the jobs that hold each GPU now."""
        now = facts.snapshots[-1].moment
        present: dict[str, dict[At, float]] = {}
        for at, names in holders.items():
            for name in filter(None, names):
                present.setdefault(name, {})[at] = now
        self._members = {
            name: {**self._members.get(name, {}), **at} for name, at in present.items()
        }
        found: dict[At, tuple[WaitedFor, ...]] = {}
        recent = facts.recent(RECENT)
        for name, members in self._members.items():
            blocked = {at: _spin_share(recent, at) for at in members}
            most = max(blocked[at] for at in present[name])
            if most < WAITING_SHARE:
                for at in [at for at, seen in members.items() if now - seen > MISSED]:
                    del members[at]
                continue
            if len(members) < 2:
                continue
            late = tuple(
                WaitedFor(at, (_reason(facts, at, most) if at in present[name] else GONE).name)
                for at, share in blocked.items()
                if (share < AWAITED_RATIO * most and at in present[name])
                or (at in holders and not holders[at])
            )
            for at in present[name]:
                if blocked[at] >= WAITING_SHARE:
                    found[at] = (*found.get(at, ()), *late)
        return found

    def peers(self, at: At) -> set[At]:
        """The other GPUs of the jobs on a GPU."""
        jobs = (members for members in self._members.values() if at in members)
        return {other for members in jobs for other in members} - {at}


def _spin_share(recent: Facts, at: At) -> float:
    """Share of the last seconds in which a GPU spun; 1 in a streak."""
    if recent.now(BLOCKED_STREAK, *at):
        return 1.0
    return recent.shares(at).get("blocked", 0.0)


def _reason(facts: Facts, at: At, most: float) -> Reason:
    """What the process on a GPU does while the others wait for ``most`` of the time."""
    if facts.now(STOPPED_ON_GPU, *at):
        return STOPPED
    if _saves(facts, at, most):
        return CHECKPOINTING
    latest = facts.recent(LATEST_SECONDS)
    shares = latest.shares(at)
    working = shares.get("compute", 0.0) + latest.short_gaps(at)
    stuck = bool(facts.now(job.BLOCKED, *at)) and (facts.now(job.HOST_CPUS, *at) or 0.0) < GOES_ON
    if (latest.rate(steps.SECONDS, *at, "evaluation") or 0.0) >= WAITING_SHARE:
        return EVALUATING
    if min(_collects(facts, at), 1.0 - working) >= EXPLAINED * most and not stuck:
        return GARBAGE_COLLECTION
    if working >= BUSY_SHARE and most >= CONSTANT_WAIT_SHARE:
        return EVALUATING
    if working >= BOUND:
        return COMPUTING
    if stuck:
        return UNINTERRUPTIBLE
    if (facts.now(job.LOADER_CPUS, *at) or 0.0) >= THREAD_BUSY:
        return PREPARING
    if (facts.now(job.HOST_THREAD, *at) or 0.0) >= 1.0 - EXPLAINED * (1.0 - working):
        return CPU_BOUND
    return UNKNOWN


def _collects(facts: Facts, at: At) -> float:
    """Share of the last seconds in which the process on a GPU collected garbage.

    One that keeps Python's lock is told of once it has ended, with all of its time at once.
    """
    return min(1.0, facts.recent(RECENT).rate(steps.GARBAGE, *at) or 0.0)


def _saves(facts: Facts, at: At, most: float) -> bool:
    """Whether the job on a GPU saves its state, by its client's words or by what it writes."""
    if (facts.recent(LATEST_SECONDS).rate(steps.SECONDS, *at, "checkpoint") or 0.0) > 0.0:
        return True
    if (facts.last_rate(job.IO_BYTES, *at, "write") or 0.0) >= WRITES:
        return True
    return (
        most >= CONSTANT_WAIT_SHARE and (facts.last_rate(job.WRITE_CALL_BYTES, *at) or 0.0) >= SAVES
    )
