"""What the processes on each GPU get from the node: CPU, memory, pressure and /dev/shm."""

from __future__ import annotations

from gpunode.gpu import GPU
from gpunode.gpu.driver import Gpu
from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Reading

BUSIEST_THREAD = Metric(
    "gpunode_job_busiest_thread_ratio",
    "gauge",
    "Share of one CPU that the busiest single thread took since the last read: 1 where a lone "
    "loader or Python main thread holds the GPU up (/proc/PID/task/TID/stat).",
    GPU,
)


class JobProcesses:
    """Reads the processes of one GPU and their children."""

    name = "job_processes"
    metrics: tuple[Metric, ...] = (BUSIEST_THREAD,)

    def __init__(self, node: Node, gpu: Gpu, interval: float) -> None:
        self.node = node
        self.sensors = gpu
        self.device = gpu.identity.uuid
        self.gpu = str(gpu.identity.index)
        self.every = interval

    def read(self) -> Reading:
        return Reading(())
