"""Finds the GPUs: opens the driver, also when it appears or changes later."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.gpu.activity import GpuActivity
from gpunode.gpu.driver import DriverError
from gpunode.gpu.health import GpuHealth
from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Absent

METRICS: tuple[Metric, ...] = (*GpuActivity.metrics, *GpuHealth.metrics)


class GpuFinder:
    """The sources of every GPU; they stay the same objects for as long as it is listed."""

    name = "gpu"

    def __init__(self, node: Node, interval: float, health_interval: float) -> None:
        self.node = node
        self.interval = interval
        self.health_interval = health_interval
        self._sources: dict[str, tuple[GpuActivity, GpuHealth]] = {}

    def find(self) -> Iterable[GpuActivity | GpuHealth]:
        try:
            gpus = {gpu.identity.uuid: gpu for gpu in self.node.driver().gpus()}
        except DriverError as error:
            raise Absent(str(error)) from error
        divided = {gpu.identity.parent for gpu in gpus.values()}
        self._sources = {
            uuid: self._sources.get(uuid)
            or (
                GpuActivity(self.node, gpu, self.interval),
                GpuHealth(self.node, gpu, self.health_interval),
            )
            for uuid, gpu in gpus.items()
        }
        for uuid, (activity, health) in self._sources.items():
            # The seconds of a GPU in MIG mode are those of its instances.
            yield from (health,) if uuid in divided else (activity, health)
