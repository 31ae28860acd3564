"""For how long the job that holds a GPU has not worked there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.gpu.activity import SECONDS
from gpunode.holders.owner import Started
from gpunode.metric import Metric
from gpunode.verdict.facts import LATEST_SECONDS, At, Facts

WORK = ("compute", "communication", "copy")
"""States of the ledger in which a job gets on."""

MIN_WORK = 0.05
"""At this share of time at work, a GPU has worked; below, it may be the ledger's inaccuracy."""

WORKLESS = Metric(
    "gpunode_job_workless_seconds",
    "gauge",
    f"Time since the job on the GPU last worked: since {', '.join(WORK[:-1])} and {WORK[-1]} "
    f"last took at least {MIN_WORK:.0%} (the ledger). Absent if it has not worked since one of its "
    "processes came.",
    GPU,
)

USES = (SECONDS,)
"""The metrics that tell."""

Process = tuple[int, float]
"""A process: its PID and when it started."""


@dataclass(slots=True)
class Tenancy:
    """The processes that held a GPU when it last worked; until it has, the first that held it."""

    processes: set[Process]
    since: float
    """When (monotonic) they were first seen; what the GPU did before may be another's."""

    worked: float | None = None
    """When (monotonic) the GPU last worked."""


class Tenancies:
    """Remembers when each GPU last worked, and for whom."""

    def __init__(self) -> None:
        self._held: dict[At, Tenancy] = {}

    def workless(self, facts: Facts, at: At, started: Iterable[Started]) -> float | None:
        """Seconds since those who hold a GPU worked there; None if they were not seen to."""
        now = facts.snapshots[-1].moment
        present = {(process.pid, process.start) for process in started}
        if not present:
            return None
        tenancy = self._held.get(at)
        if tenancy is None or tenancy.processes.isdisjoint(present):
            tenancy = self._held[at] = Tenancy(present, now)
        end = _end_of_work(facts.recent(LATEST_SECONDS), at, tenancy.since)
        if end is not None:
            tenancy.worked = end
            tenancy.processes = present
        return None if tenancy.worked is None else now - tenancy.worked


def _end_of_work(recent: Facts, at: At, since: float) -> float | None:
    """When (monotonic) the latest reading was made, if the GPU worked before and up to it."""
    states = zip(*(recent.readings(SECONDS, *at, state) for state in WORK), strict=False)
    readings = [
        (sum(seconds for seconds, _ in read), read[0][1]) for read in states if read[0][1] >= since
    ]
    if len(readings) < 2:
        return None
    worked, end = readings[-1]
    works = all(
        worked - had >= MIN_WORK * (end - time) for had, time in (readings[0], readings[-2])
    )
    return end if works else None
