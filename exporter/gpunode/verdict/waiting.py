"""Who holds a job up: of its GPUs on this node, those that do not wait while the others do.

This needs no answer of any rank, so it works where a rank is stopped or gone; NCCL's RAS
(``nccl/ras.py``) knows of ranks on other nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.gpu.activity import BLOCKED_STREAK
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from gpunode.metric import Metric
from gpunode.verdict.facts import Facts
from gpunode.verdict.limits import DOES_NOT_WAIT, EXPLAINED, LOST, WAITS, WORKS, WRITES

REASONS = {
    "gone": "its process has ended",
    "stopped": "its process is stopped by a signal or a debugger",
    "uninterruptible": "its process waits in the kernel and cannot be interrupted",
    "checkpointing": "its process saves the state of the training",
    "evaluating": "its GPU computes, as in an evaluation",
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

AT_WORK = ("evaluating", "checkpointing")
"""Reasons that end by themselves."""

RECENT = 7.0
"""Seconds over which it is seen who waits."""

At = tuple[str, str]


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A GPU for which its peers wait, and why its process does not come."""

    at: At
    reason: str


class Jobs:
    """Remembers which GPUs each job has held, to miss those that are gone."""

    def __init__(self) -> None:
        self._members: dict[str, dict[At, None]] = {}

    def waited_for(
        self, facts: Facts, holders: Mapping[At, Iterable[str]]
    ) -> dict[At, tuple[WaitedFor, ...]]:
        """By waiting GPU, for whom it waits. ``holders`` are the jobs that hold each GPU now."""
        present: dict[str, dict[At, None]] = {}
        for at, names in holders.items():
            for name in names:
                present.setdefault(name, {})[at] = None
        self._members = {
            name: {**self._members.get(name, {}), **at} for name, at in present.items()
        }
        found: dict[At, tuple[WaitedFor, ...]] = {}
        recent = facts.recent(RECENT)
        for name, members in self._members.items():
            blocked = {at: _blocked(recent, at) for at in members}
            most = max(blocked.values())
            if most < WAITS or len(members) < 2:
                continue
            late = tuple(
                WaitedFor(at, "gone" if at not in present[name] else _reason(facts, recent, at))
                for at, share in blocked.items()
                if share < DOES_NOT_WAIT * most or at not in present[name]
            )
            for at, share in blocked.items():
                if share >= WAITS:
                    found[at] = late
        return found

    def peers_starve(self, recent: Facts, at: At) -> bool:
        """Whether other GPUs of the same job have nothing to run for long: all want data."""
        return any(
            recent.shares(other).get("starved", 0.0) >= LOST
            for members in self._members.values()
            if at in members
            for other in members
            if other != at
        )


def _blocked(recent: Facts, at: At) -> float:
    """Share of the last seconds that a GPU spun; 1 while a streak goes on."""
    if recent.now(BLOCKED_STREAK, *at):
        return 1.0
    return recent.shares(at).get("blocked", 0.0)


def _reason(facts: Facts, recent: Facts, at: At) -> str:
    """What the process on a GPU does instead of joining the others."""
    if facts.now(job.STOPPED, *at):
        return "stopped"
    if saves(facts, at):
        return "checkpointing"
    shares = recent.shares(at)
    working = shares.get("compute", 0.0) + shares.get("memory", 0.0)
    if working >= WORKS or (facts.rate(steps.SECONDS, *at, "evaluation") or 0.0) >= WAITS:
        return "evaluating"
    if facts.now(job.BLOCKED, *at):
        return "uninterruptible"
    if (facts.now(job.HOST_THREAD, *at) or 0.0) >= 1.0 - EXPLAINED * (1.0 - working):
        return "cpu_bound"
    return "unknown"


def saves(facts: Facts, at: At) -> bool:
    """Whether the job on a GPU saves its state, by its client's words or by what it writes."""
    if (facts.rate(steps.SECONDS, *at, "checkpoint") or 0.0) > 0.0:
        return True
    return (facts.rate(job.IO_BYTES, *at, "write") or 0.0) >= WRITES
