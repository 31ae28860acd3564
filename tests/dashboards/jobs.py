"""What the exporters of jobs show whose one bad rank is known, for tests of the job's dashboard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

GPUS_OF_NODE = 8
BAD, WAITS = "data_loading_storage", "straggler"


@dataclass(frozen=True, slots=True)
class ExampleJob:
    """A job on nodes of its own. All its ranks but one have the same verdict."""

    name: str
    workload: str
    gpus: int
    bad: int
    namespace: str = ""
    pod: str = ""
    slurm: str = ""
    user: str = ""
    others: str = WAITS
    cause: str = BAD
    processes: bool = True
    """Whether the exporter may look at processes; in the profile ``pods`` it may not."""

    mig: bool = False
    """Whether its ranks have instances of one GPU on each node, as the index says."""

    counters: bool = True
    """Whether the driver counts for the ledger (GPM); before Hopper it has the utilisation."""

    ends: str = ""
    """What goes when the bad rank ends: its ``process``, or its ``node``."""

    def node(self, rank: int) -> str:
        return f"{self.name}-{rank // GPUS_OF_NODE:04}"

    def gpu(self, rank: int) -> str:
        """The label of a rank's GPU: an instance has the index of the GPU that it is part of."""
        return "0" if self.mig else str(rank % GPUS_OF_NODE)

    def lines(self, seconds: float, ended: bool) -> Iterator[str]:
        """The exposition of its nodes after so many seconds, and whether they answered."""
        for node in dict.fromkeys(map(self.node, range(self.gpus))):
            silent = ended and self.ends == "node" and node == self.node(self.bad)
            yield f'up{{job="gpunode",instance="{node}"}} {int(not silent)}'
            if not silent:
                yield f'gpunode_clock_timestamp_seconds{{instance="{node}"}} {time.time()}'
        for rank in range(self.gpus):
            is_bad = rank == self.bad
            gone = is_bad and ended and self.ends
            if ended and self.ends == "node" and self.node(rank) == self.node(self.bad):
                continue
            gpu = (
                f'instance="{self.node(rank)}",gpu="{self.gpu(rank)}",'
                f'uuid="{"MIG" if self.mig else "GPU"}-{self.name}-{rank}"'
            )
            whole = f"GPU-{self.name}-{self.node(rank)}" if self.mig else ""
            sensor = "gpm" if self.counters else "utilization"
            owner = (
                f'owner_namespace="{self.namespace}",owner_pod="{self.pod.format(rank=rank)}",'
                f'owner_container="",slurm_job="{self.slurm}",user="{self.user}"'
            )
            job = f'workload="{self.workload}",replica=""'
            cause = self.others if self.ends or not is_bad else self.cause
            if gone:
                cause = "no_process"
            yield f'gpunode_gpu_info{{{gpu},parent="{whole}"}} 1'
            yield f'gpunode_gpu_ledger_sensor{{{gpu},sensor="{sensor}"}} 1'
            if cause != "none":
                yield f'gpunode_gpu_held_up_seconds{{{gpu},cause="{cause}"}} {seconds}'
            yield f'gpunode_gpu_workload{{{gpu},kind="training"}} 1'
            for state, share in self.ledger(cause):
                yield f'gpunode_gpu_seconds_total{{{gpu},state="{state}"}} {share * seconds}'
            yield f'gpunode_gpu_owner_info{{{gpu},{owner},{job},via="kubelet"}} 1'
            if not gone:
                yield f"gpunode_job_workless_seconds{{{gpu}}} {600 if self.ends else 0}"
            if is_bad and self.cause == BAD and not self.ends:
                yield f'gpunode_gpu_waited_for{{{gpu},reason="uninterruptible"}} 1'
            if self.processes and not gone:
                yield (
                    f"gpunode_gpu_process_info{{{gpu},{owner},"
                    f'pid="{1000 + rank}",rank="{rank}",world_size="{self.gpus}"}} 1'
                )

    @staticmethod
    def ledger(cause: str) -> Iterator[tuple[str, float]]:
        """Shares of the states of a GPU with this verdict."""
        waits = 0.75 if cause == WAITS else 0.0
        starved = 0.75 if cause in (BAD, "shm", "no_process") else 0.0
        yield from (("compute", 1 - waits - starved), ("blocked", waits), ("starved", starved))


# No node has InfiniBand.
PLAYED = (
    ExampleJob("k8s", "gpt", 8, 3, namespace="team", pod="gpt-worker-{rank}"),
    ExampleJob("slurm", "slurm-7", 8, 5, slurm="7", user="kim"),
    ExampleJob("bare", "kim@bare-0000", 8, 2, user="kim"),
    ExampleJob("pods", "bert", 8, 6, namespace="team", pod="bert-{rank}", processes=False),
    ExampleJob("alone", "solo", 1, 0, namespace="team", pod="solo-0", cause="shm"),
    ExampleJob("a100", "slurm-80", 8, 4, slurm="80", user="ana", counters=False),
    ExampleJob("mig", "slice", 7, 5, namespace="team", pod="slice-{rank}", mig=True),
    ExampleJob(
        "fine", "well", 8, 0, namespace="team", pod="well-{rank}", others="none", cause="none"
    ),
    ExampleJob("large", "slurm-512", 512, 139, slurm="512", user="lee"),
    ExampleJob("crashed", "ended", 16, 11, namespace="team", pod="ended-{rank}", ends="process"),
    ExampleJob("lost", "slurm-10", 24, 11, slurm="10", user="kim", ends="node"),
)


@dataclass(slots=True)
class Nodes:
    """What all nodes of the jobs show; the bad ranks end when they are told to."""

    begin: float
    ended: bool = False

    def text(self, _: str) -> bytes:
        seconds = time.monotonic() - self.begin
        lines = [line for job in PLAYED for line in job.lines(seconds, self.ended)]
        return "\n".join([*lines, ""]).encode()
