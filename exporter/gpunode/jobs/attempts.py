"""How often a job has restarted on its GPU, which shows a crash loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.holders.owner import Started
from gpunode.metric import Metric

ENDED = Metric(
    "gpunode_job_attempts_ended_total",
    "counter",
    "Attempts of the job on the GPU that ended since the job was first seen: its container "
    "started again (/var/log/containers), or all its processes went away and others came.",
    GPU,
)


@dataclass(slots=True)
class Attempts:
    """The attempts of one job on one GPU; the next job there counts afresh."""

    job: object = None
    ended: int = 0
    processes: frozenset[tuple[int, float]] = frozenset()
    """The processes of the last read."""

    alone: bool = True
    """Whether no process of this attempt was a rank of several."""

    containers: frozenset[str] = frozenset()

    def look(self, processes: Collection[Started], containers: frozenset[str]) -> None:
        """Count what ended; ``containers`` are all that the node still knows of the job's pod."""
        if containers:
            begun = containers - self.containers if self.containers else frozenset()
            self.ended += len(begun)
            self.containers = containers
            if begun:
                self.processes = frozenset()
        now = frozenset((one.pid, one.start) for one in processes)
        if now and not now & self.processes:
            self.ended += bool(self.processes) and not self.alone
            self.alone = True
        self.alone = self.alone and all(map(_is_alone, processes))
        self.processes = now or self.processes


def _is_alone(process: Started) -> bool:
    return process.environment_read and process.world_size in ("", "0", "1")
