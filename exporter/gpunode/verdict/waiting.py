"""Who holds a job up: of its GPUs on this node, those that do not wait while the others do.

This needs no answer of any rank, so it works where a rank is stopped or gone; NCCL's RAS
(``nccl/ras.py``) knows of ranks on other nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.gpu.activity import BLOCKED_STREAK
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.metric import Metric
from gpunode.verdict.facts import Facts
from gpunode.verdict.limits import (
    BOUND,
    DOES_NOT_WAIT,
    EXPLAINED,
    GOES_ON,
    THREAD_BUSY,
    THROUGHOUT,
    WAITS,
    WORKS,
    WRITES,
)

REASONS = {
    "gone": "its process has ended",
    "stopped": "its process is stopped by a signal or a debugger",
    "uninterruptible": "its process waits in the kernel and cannot be interrupted",
    "checkpointing": "its process saves the state of the training",
    "evaluating": "its GPU is at work while the others wait all the time, as in an evaluation",
    "preparing": "other processes of its job use CPUs, as when data is prepared",
    "computing": "its GPU takes longer than the others",
    "cpu_bound": "a thread of its process uses a whole CPU",
    "unknown": "nothing on this node tells why",
}

WAITED_FOR = Metric(
    "gpunode_gpu_waited_for",
    "gauge",
    "The other GPUs of the job on this node wait for this one (1), and what its process does "
    "meanwhile: " + "; ".join(f"`{reason}`: {words}" for reason, words in REASONS.items()) + ".",
    (*GPU, "reason"),
)

AT_WORK = ("evaluating", "checkpointing", "preparing")
"""Reasons that end by themselves."""

RECENT = 7.0
"""Seconds over which it is seen who waits."""

LATEST = 4.5
"""Seconds over which it is seen what the others do: two windows."""

MISSED = 60.0
"""A job that does not wait this many seconds after a process ended goes on without it."""

At = tuple[str, str]


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A GPU for which its peers wait, and why its process does not come."""

    at: At
    reason: str


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
            blocked = {at: _blocked(recent, at) for at in members}
            most = max(blocked[at] for at in present[name])
            if most < WAITS:
                for at in [at for at, seen in members.items() if now - seen > MISSED]:
                    del members[at]
                continue
            if len(members) < 2:
                continue
            late = tuple(
                WaitedFor(at, _reason(facts, at, most) if at in present[name] else "gone")
                for at, share in blocked.items()
                if (share < DOES_NOT_WAIT * most and at in present[name])
                or (at in holders and not holders[at])
            )
            for at in present[name]:
                if blocked[at] >= WAITS:
                    found[at] = (*found.get(at, ()), *late)
        return found

    def peers(self, at: At) -> set[At]:
        """The other GPUs of the jobs on a GPU."""
        jobs = (members for members in self._members.values() if at in members)
        return {other for members in jobs for other in members} - {at}


def _blocked(recent: Facts, at: At) -> float:
    """Share of the last seconds that a GPU spun; 1 while a streak goes on."""
    if recent.now(BLOCKED_STREAK, *at):
        return 1.0
    return recent.shares(at).get("blocked", 0.0)


def _reason(facts: Facts, at: At, most: float) -> str:
    """What the process on a GPU does while the others wait for ``most`` of the time."""
    if facts.now(job.STOPPED, *at):
        return "stopped"
    if saves(facts, at):
        return "checkpointing"
    latest = facts.recent(LATEST)
    shares = latest.shares(at)
    working = sum(shares.get(state, 0.0) for state in ("compute", "memory", "launch"))
    evaluates = (latest.rate(steps.SECONDS, *at, "evaluation") or 0.0) >= WAITS
    if evaluates or (working >= WORKS and most >= THROUGHOUT):
        return "evaluating"
    if working >= BOUND:
        return "computing"
    if facts.now(job.BLOCKED, *at) and (facts.now(job.HOST_CPUS, *at) or 0.0) < GOES_ON:
        return "uninterruptible"
    if (facts.now(job.LOADER_THREAD, *at) or 0.0) >= THREAD_BUSY:
        return "preparing"
    if (facts.now(job.HOST_THREAD, *at) or 0.0) >= 1.0 - EXPLAINED * (1.0 - working):
        return "cpu_bound"
    return "unknown"


def saves(facts: Facts, at: At) -> bool:
    """Whether the job on a GPU saves its state, by its client's words or by what it writes."""
    if (facts.recent(LATEST).rate(steps.SECONDS, *at, "checkpoint") or 0.0) > 0.0:
        return True
    return (facts.last_rate(job.IO_BYTES, *at, "write") or 0.0) >= WRITES
