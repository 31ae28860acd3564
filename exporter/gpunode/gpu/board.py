"""What a GPU that is divided into MIG instances has as a whole: its power, heat, clocks and XIDs.

The driver tells them of the board and not of an instance, and before Hopper also the bytes of its
NVLinks; those of PCI Express it then tells of neither. What its work does is told of the
instances, so the energy of the board is all in the state ``unknown``.
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.driver.nvidia.xids import UNREAD_XID
from gpunode.gpu import power, units, xids
from gpunode.gpu.activity import MEMORY_CLOCK, SM_CLOCK, TEMPERATURE
from gpunode.gpu.power import Power
from gpunode.gpu.sensors import FAILED, Sensors
from gpunode.gpu.units import Units
from gpunode.gpu.xids import Xids
from gpunode.metric import Sample
from gpunode.node.node import Node
from gpunode.source import MORE_XIDS, Divided, GpuSource, Reading

MIN_LINK_CAPABILITY = 9.0
"""Compute capability from which on the instances tell the bytes of their links: Hopper's GPM.
https://github.com/NVIDIA/dcgm-exporter/issues/726"""


class GpuBoard:
    """Reads it of one GPU while that has instances."""

    name = "gpu_board"
    needs = "a GPU in MIG mode that has instances"
    divided: ClassVar[Divided] = "divided_board"
    metrics = (
        *(SM_CLOCK, MEMORY_CLOCK, TEMPERATURE, units.NVLINK_BYTES),
        *(*power.METRICS, *xids.METRICS),
    )
    unknowns = (UNREAD_XID, MORE_XIDS, FAILED)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:
        self.clock = node.clock
        self.gpu = gpu
        self.every = settings.gpu.interval
        self.sensors = Sensors()
        self.power = Power(gpu, self.sensors)
        self.xids = Xids(gpu, self.clock, self.sensors)
        self.links = Units(gpu)
        self._begun = False
        self._counted: float | None = None

    def read(self) -> Reading:
        """The power since the last read, and the rest as it is now."""
        samples = tuple(self._samples())
        return Reading(samples, unread=(*self.xids.unread(), *self.sensors.unread()))

    def _samples(self) -> Iterator[Sample]:
        now, at = self.clock.monotonic(), self.gpu.identity.labels
        drawn = self.power.drain(now)
        if self._begun:
            self.power.count(drawn, now, {"unknown": 1.0}, None)
        elif drawn is not None:
            self.power.energy.begin(now)
        self._begun = True
        yield from SM_CLOCK.at(self.sensors.read(self.gpu.sm_clock), *at)
        yield from MEMORY_CLOCK.at(self.sensors.read(self.gpu.memory_clock), *at)
        yield from TEMPERATURE.at(self.sensors.read(self.gpu.temperature), *at)
        yield from self.power.samples(drawn)
        yield from self.xids.samples()
        if float(self.gpu.identity.compute_capability or MIN_LINK_CAPABILITY) < MIN_LINK_CAPABILITY:
            self.links.count_nvlinks(0.0 if self._counted is None else now - self._counted)
            self._counted = now
            yield from self.links.samples()


GPU_SOURCE: GpuSource = GpuBoard
