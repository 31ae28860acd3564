"""What DCGM reads of a GPU and gpunode otherwise does not: read only with ``--compat=dcgm``.

On an H100 with driver 580.159, all of it takes 5 ms, of which the energy counter takes 4; the check
of the InfoROM takes 70 ms more, once an hour as in DCGM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import (
    Fabric,
    Gpu,
    Identity,
    PowerRange,
    TemperatureLimits,
    VideoUse,
    answered,
)
from gpunode.gpu.due import Due
from gpunode.gpu.sensors import FAILED, Sensors
from gpunode.metric import Metric
from gpunode.node.node import Node
from gpunode.source import Divided, Reading

LIMITS_INTERVAL = 300.0
"""Seconds between reads of what rarely changes."""

INFOROM_INTERVAL = 3600.0
"""Seconds between checks of the InfoROM."""


NO_RANGE = PowerRange(None, None, None)
NO_LIMITS = TemperatureLimits(None, None, None, None)


@dataclass(frozen=True, slots=True)
class DcgmFields:
    """Values of one GPU or MIG instance in base units; what the driver does not tell is None."""

    identity: Identity
    driver_version: str
    energy: float | None
    power_now: float | None
    power_range: PowerRange
    temperature_limits: TemperatureLimits
    video: VideoUse
    clock_events: tuple[str, ...] | None
    performance_state: int | None
    ecc: dict[str, float]
    """Since the driver was loaded."""

    violations: dict[str, float]
    inforom_valid: bool | None
    vgpu_licensed: bool | None
    fabric: Fabric | None = None
    remap_banks: Mapping[str, float] = field(default_factory=dict)
    sram_worn: bool | None = None
    memory_unrepairable: bool | None = None
    peers: Mapping[int, int] = field(default_factory=dict)
    """By the index of each other GPU, NVML's status of NVLink between the two."""


class GpuDcgmFields:
    """Reads them of one GPU or MIG instance."""

    name = "gpu_dcgm_fields"
    divided: ClassVar[Divided] = "both"
    metrics: tuple[Metric, ...] = ()
    unknowns = (FAILED,)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:
        self.clock = node.clock
        self.gpu = gpu
        self.sensors = Sensors()
        self.every = settings.gpu.health_interval
        self._limits_due = Due(LIMITS_INTERVAL)
        self._inforom_due = Due(INFOROM_INTERVAL)
        self._driver_version = ""
        self._power_range = NO_RANGE
        self._temperature_limits = NO_LIMITS
        self._inforom_valid: bool | None = None
        self._vgpu_licensed: bool | None = None
        self._peers: dict[int, int] = {}
        self._remap_banks: dict[str, float] = {}

    def read(self) -> Reading:
        gpu, now = self.gpu, self.clock.monotonic()
        if self._limits_due.at(now):
            self._driver_version = self.sensors.read(gpu.driver_version) or ""
            self._vgpu_licensed = self.sensors.read(gpu.vgpu_licensed)
            self._remap_banks = answered(gpu.remap_banks) or {}
            self._peers = {} if gpu.identity.mig else answered(gpu.peers) or {}
            self._power_range = self.sensors.read(gpu.power_range) or NO_RANGE
            self._temperature_limits = self.sensors.read(gpu.temperature_limits) or NO_LIMITS
        if self._inforom_due.at(now):
            self._inforom_valid = self.sensors.read(gpu.inforom_valid)
        events = self.sensors.read(gpu.clock_events)
        return Reading(
            (),
            DcgmFields(
                identity=gpu.identity,
                driver_version=self._driver_version,
                energy=self.sensors.read(gpu.energy),
                power_now=self.sensors.read(gpu.power_now),
                power_range=self._power_range,
                temperature_limits=self._temperature_limits,
                video=self.sensors.read(gpu.video_use) or VideoUse(None, None),
                clock_events=None if events is None else tuple(events),
                performance_state=self.sensors.read(gpu.performance_state),
                ecc=self.sensors.read(gpu.volatile_ecc_errors) or {},
                violations=self.sensors.read(gpu.violations) or {},
                inforom_valid=self._inforom_valid,
                vgpu_licensed=self._vgpu_licensed,
                fabric=self.sensors.read(gpu.fabric),
                remap_banks=self._remap_banks,
                sram_worn=answered(gpu.sram_worn),
                memory_unrepairable=answered(gpu.memory_unrepairable),
                peers=self._peers,
            ),
            self.sensors.unread(),
        )
