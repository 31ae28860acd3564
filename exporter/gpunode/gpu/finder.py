"""Finds the GPUs: opens the driver, also when it appears or changes later."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.config import GpuSettings
from gpunode.gpu.activity import GpuActivity
from gpunode.gpu.driver import DriverError, Gpu
from gpunode.gpu.health import GpuHealth
from gpunode.gpu.nvlink import GpuNvLink
from gpunode.jobs.nccl_log import NcclLogs
from gpunode.jobs.owners import GpuOwners
from gpunode.jobs.pods import Pods
from gpunode.jobs.processes import JobProcesses
from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Absent, Source

METRICS: tuple[Metric, ...] = (
    *GpuActivity.metrics,
    *GpuHealth.metrics,
    *GpuNvLink.metrics,
    *GpuOwners.metrics,
    *NcclLogs.metrics,
    *JobProcesses.metrics,
)


INSTANCES = (GpuActivity.name, GpuOwners.name, NcclLogs.name)
"""Sources that a GPU in MIG mode leaves to its instances."""


class GpuFinder:
    """The sources of every GPU; they stay the same objects for as long as it is listed."""

    name = "gpu"

    def __init__(self, node: Node, settings: GpuSettings, pods: Pods) -> None:
        self.node = node
        self.pods = pods
        self.settings = settings
        self._sources: dict[str, list[Source]] = {}

    def find(self) -> Iterable[Source]:
        try:
            gpus = {gpu.identity.uuid: gpu for gpu in self.node.driver().gpus()}
        except DriverError as error:
            raise Absent(str(error)) from error
        divided = {gpu.identity.parent for gpu in gpus.values()}
        self._sources = {
            uuid: self._sources.get(uuid) or self._open(gpu) for uuid, gpu in gpus.items()
        }
        for uuid, sources in self._sources.items():
            # The seconds and owners of a GPU in MIG mode are those of its instances.
            yield from (s for s in sources if uuid not in divided or s.name not in INSTANCES)

    def _open(self, gpu: Gpu) -> list[Source]:
        settings = self.settings
        activity = GpuActivity(self.node, gpu, settings.interval)
        health = GpuHealth(self.node, gpu, settings.health_interval)
        processes = JobProcesses(self.node, gpu, settings.processes_interval)
        owners = GpuOwners(self.node, gpu, self.pods, settings.owners_interval)
        logs = NcclLogs(self.node, gpu, settings.processes_interval)
        sources: list[Source] = [activity, health, processes, owners, logs]
        if not gpu.identity.mig:
            sources.append(GpuNvLink(gpu, settings.nvlink_interval))
        return sources
