"""Health of each GPU: its error counters, links and modes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Fabric, Gpu, answered, optional
from gpunode.gpu import GPU
from gpunode.gpu.due import Due
from gpunode.gpu.models import UNIFIED_MEMORY, model_of
from gpunode.gpu.sensors import FAILED, Sensors
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Divided, GpuSource, Reading
from gpunode.unread import Unknown, Unread

INFO = Metric(
    "gpunode_gpu_info",
    "gauge",
    "Always 1; identity and firmware of the GPU. `parent` is the UUID of the GPU of a MIG "
    "instance, `minor` the N of /dev/nvidiaN. GPUs with equal `cluster_uuid` and `clique_id` are "
    "in one NVLink domain.",
    (
        *(*GPU, "name", "bus_id", "serial", "vbios", "compute_capability", "parent"),
        *("gsp", "inforom", "cluster_uuid", "clique_id", "minor"),
    ),
)
PEAK = Metric(
    "gpunode_gpu_peak_flops_per_second",
    "gauge",
    "Peak rate of the tensor cores of this model, dense; absent for an unknown model. `half` is "
    "BF16, or FP16 before Ampere (datasheets).",
    (*GPU, "precision"),
)
THROTTLED = Metric(
    "gpunode_gpu_throttled_seconds_total",
    "counter",
    "Seconds with throttled clocks by reason since the driver was loaded (NVML fields 74, 76, "
    "269-271).",
    (*GPU, "reason"),
)
CLOCK_EVENT = Metric(
    "gpunode_gpu_clock_event_active",
    "gauge",
    "Whether the clocks are currently throttled for this reason "
    "(nvmlDeviceGetCurrentClocksEventReasons).",
    (*GPU, "reason"),
)
MEMORY_TEMPERATURE = Metric(
    "gpunode_gpu_memory_temperature_celsius", "gauge", "Memory temperature (NVML field 82).", GPU
)
MARGIN = Metric(
    "gpunode_gpu_temperature_margin_celsius",
    "gauge",
    "Degrees Celsius left before the driver slows the GPU (nvmlDeviceGetMarginTemperature).",
    GPU,
)
ECC = Metric(
    "gpunode_gpu_ecc_errors_total",
    "counter",
    "ECC errors over the life of the GPU (nvmlDeviceGetTotalEccErrors, aggregate).",
    (*GPU, "kind"),
)
ROW_REMAPS = Metric(
    "gpunode_gpu_row_remaps_total",
    "counter",
    "Memory rows remapped to spares (nvmlDeviceGetRemappedRows).",
    (*GPU, "kind"),
)
REMAP_PENDING = Metric(
    "gpunode_gpu_row_remap_pending",
    "gauge",
    "Whether a remap of rows or banks is pending until the GPU is reset "
    "(nvmlDeviceGetRemappedRows, NVML field 307).",
    GPU,
)
REMAP_FAILED = Metric(
    "gpunode_gpu_row_remap_failed",
    "gauge",
    "Whether a row remap failed, so that the GPU needs repair (nvmlDeviceGetRemappedRows).",
    GPU,
)
RECOVERY_ACTION = Metric(
    "gpunode_gpu_recovery_action",
    "gauge",
    "Always 1; the recovery action that the driver requests for the GPU (NVML field 230).",
    (*GPU, "action"),
)
PCIE_GENERATION = Metric(
    "gpunode_gpu_pcie_link_generation",
    "gauge",
    "Current PCI Express generation of the link; an idle link drops to a lower one to save power.",
    GPU,
)
PCIE_GENERATION_MAX = Metric(
    "gpunode_gpu_pcie_link_generation_max", "gauge", "Maximum PCI Express generation.", GPU
)
PCIE_WIDTH = Metric(
    "gpunode_gpu_pcie_link_width_lanes", "gauge", "Current PCI Express lanes of the link.", GPU
)
PCIE_WIDTH_MAX = Metric(
    "gpunode_gpu_pcie_link_width_max_lanes", "gauge", "Maximum PCI Express lanes.", GPU
)
PCIE_REPLAYS = Metric(
    "gpunode_gpu_pcie_replays_total",
    "counter",
    "PCI Express packets retransmitted (nvmlDeviceGetPcieReplayCounter).",
    GPU,
)
PCIE_ERRORS = Metric(
    "gpunode_gpu_pcie_errors_total",
    "counter",
    "PCI Express errors counted by the GPU (NVML fields 169, 173, 176, 178-180).",
    (*GPU, "kind"),
)
FABRIC_READY = Metric(
    "gpunode_gpu_fabric_ready",
    "gauge",
    "Whether the GPU has joined the NVSwitch fabric (nvmlDeviceGetGpuFabricInfoV).",
    GPU,
)
FABRIC_HEALTHY = Metric(
    "gpunode_gpu_fabric_healthy",
    "gauge",
    "Whether this part of the NVSwitch fabric is healthy (nvmlDeviceGetGpuFabricInfoV).",
    (*GPU, "part"),
)
FABRIC_FAULT = Metric(
    "gpunode_gpu_fabric_fault_info",
    "gauge",
    "Always 1; what is wrong with a part of the NVSwitch fabric that is not healthy "
    "(nvmlDeviceGetGpuFabricInfoV).",
    (*GPU, "part", "fault"),
)
PERSISTENCE = Metric(
    "gpunode_gpu_persistence_mode",
    "gauge",
    "Whether persistence mode is on (nvmlDeviceGetPersistenceMode).",
    GPU,
)
MIG = Metric(
    "gpunode_gpu_mig_mode",
    "gauge",
    "Whether MIG mode is on (nvmlDeviceGetMigMode).",
    GPU,
)

MODE = Metric(
    "gpunode_gpu_mode_active",
    "gauge",
    "Always 1; a mode of the GPU that changes what it can do or what can be read: virtual "
    "machine, Confidential Compute, power smoothing, `lowered_peak_power`, "
    "`adaptive_power_limit`, `power_profile`, or `unified_memory`, in which the GPU has no "
    "memory of its own.",
    (*GPU, "mode"),
)
MODULE_POWER = Metric(
    "gpunode_gpu_module_power_watts",
    "gauge",
    "Mean power draw over one second of the module of GPUs and CPU that the GPU is part of; "
    "absent for other GPUs (NVML field 185, scope 1).",
    GPU,
)
MODULE_POWER_LIMIT = Metric(
    "gpunode_gpu_module_power_limit_watts",
    "gauge",
    "Power limit of that module enforced by the driver (NVML field 190, scope 1).",
    GPU,
)
SMOOTHING_LEFT = Metric(
    "gpunode_gpu_power_smoothing_life_ratio",
    "gauge",
    "Share of the life of the circuits for power smoothing that is left (NVML field 258).",
    GPU,
)
C2C_LINKS = Metric(
    "gpunode_gpu_c2c_links",
    "gauge",
    "Links to the CPU of the module (NVLink-C2C) by state (NVML fields 170, 171).",
    (*GPU, "state"),
)
C2C_ERRORS = Metric(
    "gpunode_gpu_c2c_errors_total",
    "counter",
    "Errors over all links to the CPU of the module by kind (NVML fields 231-233).",
    (*GPU, "kind"),
)
REMAP_BANKS = Metric(
    "gpunode_gpu_row_remap_banks",
    "gauge",
    "Banks of memory that have used spare rows, by how many are left: `high`, `partial`, `low` "
    "or `none` (nvmlDeviceGetRowRemapperHistogram).",
    (*GPU, "spare"),
)
MEMORY_FAULT = Metric(
    "gpunode_gpu_memory_fault_info",
    "gauge",
    "Always 1; why the memory needs repair though the driver requests nothing "
    "(nvmlDeviceGetSramEccErrorStatus: too many uncorrectable errors; "
    "nvmlDeviceGetUnrepairableMemoryFlag_v1).",
    (*GPU, "fault"),
)
SRAM_WORN, UNREPAIRABLE = "sram_threshold_exceeded", "unrepairable"
MEMORY_FAULTS = {
    SRAM_WORN: "SRAM errors above the threshold",
    UNREPAIRABLE: "memory unrepairable",
}
"""What they are called where people read of them."""

UNKNOWN_MODEL = Unknown(
    "gpu_model",
    "gpunode has no figures for this model of GPU; the ledger uses those of another model of its "
    "compute capability",
)

BANKS_INTERVAL = 300.0
"""Seconds between reads of the spare rows, which cost 3 ms."""

ENUM_VALUE = Unknown(
    "enum_value",
    "the driver gave a state, mode or reason that has no name in gpunode; a newer one may have it",
)

HW_SLOWDOWN = "hw_slowdown"
"""The hardware's reasons together: no more than they tell, where any is counted."""

REASONS = (
    "sw_power_cap",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "board_limit",
    "reliability",
    HW_SLOWDOWN,
)


class GpuHealth:
    """Reads one GPU's slow sensors, together several milliseconds."""

    name = "gpu_health"
    needs = "an NVIDIA driver; each sensor, a GPU that has it"
    divided: ClassVar[Divided] = "both"
    metrics = (
        INFO,
        PEAK,
        THROTTLED,
        CLOCK_EVENT,
        MEMORY_TEMPERATURE,
        MARGIN,
        ECC,
        ROW_REMAPS,
        REMAP_PENDING,
        REMAP_FAILED,
        RECOVERY_ACTION,
        PCIE_GENERATION,
        PCIE_GENERATION_MAX,
        PCIE_WIDTH,
        PCIE_WIDTH_MAX,
        PCIE_REPLAYS,
        PCIE_ERRORS,
        FABRIC_READY,
        FABRIC_HEALTHY,
        FABRIC_FAULT,
        PERSISTENCE,
        MIG,
        MODE,
        MODULE_POWER,
        MODULE_POWER_LIMIT,
        SMOOTHING_LEFT,
        C2C_LINKS,
        C2C_ERRORS,
        REMAP_BANKS,
        MEMORY_FAULT,
    )
    unknowns = (UNKNOWN_MODEL, ENUM_VALUE, FAILED)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:
        self.clock = node.clock
        self.gpu = gpu
        self.sensors = Sensors()
        self.labels = gpu.identity.labels
        self.every = settings.gpu.health_interval
        self._sampled_throttle: dict[str, float] = {}
        self._counted: set[str] = set()
        """The reasons whose time the driver has counted."""

        self._time: float | None = None
        self._banks_due = Due(BANKS_INTERVAL)
        self._banks: dict[str, float] = {}

    def read(self) -> Reading:
        """Everything that the GPU answers; a MIG instance has only ``INFO``."""
        samples = tuple(self._samples())
        return Reading(samples, unread=tuple(self._unread()))

    def _unread(self) -> Iterator[Unread]:
        """A model without figures, and values without a name that any source met of late."""
        who = self.gpu.identity
        if not who.mig and model_of(who.name) is None:
            of = f"compute capability {who.compute_capability or 'unknown'}"
            yield UNKNOWN_MODEL.seen(f"{who.name} ({of})")
        yield from (ENUM_VALUE.seen(value) for value in optional(self.gpu.unnamed) or ())
        yield from self.sensors.unread()

    def _samples(self) -> Iterator[Sample]:
        gpu, at, who = self.gpu, self.labels, self.gpu.identity
        fields = (who.name, who.bus_id, who.serial, who.vbios, who.compute_capability, who.parent)
        firmware = self.sensors.read(gpu.firmware) or {}
        fabric = None if who.mig else self.sensors.read(gpu.fabric)
        more = (
            firmware.get("gsp"),
            firmware.get("inforom"),
            None if fabric is None else fabric.cluster,
            None if fabric is None or fabric.clique is None else str(fabric.clique),
            None if who.minor is None else str(who.minor),
        )
        yield Sample(INFO, (*at, *(field or "" for field in (*fields, *more))), 1.0)
        if who.mig:
            return
        model = model_of(who.name)
        if model is not None:
            yield from PEAK.at(model.half, *at, "half")
            yield from PEAK.at(model.fp8, *at, "fp8")
        yield from self._clock_samples(at)
        yield from MEMORY_TEMPERATURE.at(self.sensors.read(gpu.memory_temperature), *at)
        yield from MARGIN.at(self.sensors.read(gpu.temperature_margin), *at)
        yield from self._memory_error_samples(at)
        yield from self._pcie_samples(at)
        if fabric is not None:
            yield from self._fabric_samples(fabric, at)
        for metric, sensor in ((PERSISTENCE, gpu.persistence), (MIG, gpu.mig_mode)):
            mode = self.sensors.read(sensor)
            yield from metric.at(None if mode is None else float(mode), *at)
        yield from self._module_samples(at)

    def _clock_samples(self, at: tuple[str, str]) -> Iterator[Sample]:
        now = self.clock.monotonic()
        elapsed = now - self._time if self._time is not None else 0.0
        self._time = now
        active = self.sensors.read(self.gpu.clock_events)
        counted = self.sensors.read(self.gpu.throttled) or {}
        self._counted.update(counted)
        if active is not None:
            for reason in REASONS:
                yield from CLOCK_EVENT.at(float(reason in active), *at, reason)
        for reason, seconds in counted.items():
            yield from THROTTLED.at(seconds, *at, reason)
        if active is None:
            return
        # Drivers have few counters or none before 575: count the time since the last read instead.
        for reason in REASONS:
            if reason not in self._counted and not (reason == HW_SLOWDOWN and self._counted):
                seconds = self._sampled_throttle.get(reason, 0.0) + elapsed * (reason in active)
                self._sampled_throttle[reason] = seconds
                yield from THROTTLED.at(seconds, *at, reason)

    def _memory_error_samples(self, at: tuple[str, str]) -> Iterator[Sample]:
        for kind, count in (self.sensors.read(self.gpu.ecc_errors) or {}).items():
            yield from ECC.at(count, *at, kind)
        rows = self.sensors.read(self.gpu.remapped_rows)
        if rows is not None:
            yield from ROW_REMAPS.at(rows.corrected, *at, "corrected")
            yield from ROW_REMAPS.at(rows.uncorrected, *at, "uncorrected")
            yield from REMAP_PENDING.at(float(rows.pending), *at)
            yield from REMAP_FAILED.at(float(rows.failed), *at)
        if self._banks_due.at(self.clock.monotonic()):
            self._banks = answered(self.gpu.remap_banks) or {}
        for spare, banks in self._banks.items():
            if spare != "max":
                yield from REMAP_BANKS.at(banks or None, *at, spare)
        if answered(self.gpu.sram_worn):
            yield from MEMORY_FAULT.at(1.0, *at, SRAM_WORN)
        if answered(self.gpu.memory_unrepairable):
            yield from MEMORY_FAULT.at(1.0, *at, UNREPAIRABLE)
        action = self.sensors.read(self.gpu.recovery_action)
        if action is not None:
            yield from RECOVERY_ACTION.at(1.0, *at, action)

    def _pcie_samples(self, at: tuple[str, str]) -> Iterator[Sample]:
        link = self.sensors.read(self.gpu.pcie_link)
        if link is not None:
            yield from PCIE_GENERATION.at(link.generation, *at)
            yield from PCIE_GENERATION_MAX.at(link.max_generation, *at)
            yield from PCIE_WIDTH.at(link.width, *at)
            yield from PCIE_WIDTH_MAX.at(link.max_width, *at)
        yield from PCIE_REPLAYS.at(self.sensors.read(self.gpu.pcie_replays), *at)
        for kind, count in (self.sensors.read(self.gpu.pcie_errors) or {}).items():
            yield from PCIE_ERRORS.at(count, *at, kind)

    def _module_samples(self, at: tuple[str, str]) -> Iterator[Sample]:
        for mode in answered(self.gpu.modes) or ():
            yield from MODE.at(1.0, *at, mode)
        if self.gpu.identity.compute_capability in UNIFIED_MEMORY:
            yield from MODE.at(1.0, *at, "unified_memory")
        power, links = answered(self.gpu.module_power), answered(self.gpu.chip_links)
        if power is not None:
            yield from MODULE_POWER.at(power.draw, *at)
            yield from MODULE_POWER_LIMIT.at(power.limit, *at)
        yield from SMOOTHING_LEFT.at(answered(self.gpu.power_smoothing_left), *at)
        if links is not None:
            yield from C2C_LINKS.at(links.up, *at, "up")
            yield from C2C_LINKS.at(links.links - links.up, *at, "down")
            for kind, count in links.errors.items():
                yield from C2C_ERRORS.at(count, *at, kind)

    def _fabric_samples(self, fabric: Fabric, at: tuple[str, str]) -> Iterator[Sample]:
        yield from FABRIC_READY.at(float(fabric.state == "completed"), *at)
        for part, healthy in fabric.healthy.items():
            yield from FABRIC_HEALTHY.at(float(healthy), *at, part)
        for part, fault in fabric.faults.items():
            yield from FABRIC_FAULT.at(1.0, *at, part, fault)


GPU_SOURCE: GpuSource = GpuHealth
