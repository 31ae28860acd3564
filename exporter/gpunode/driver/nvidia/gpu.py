"""One NVIDIA GPU or MIG instance, read through NVML.

``nvmlDeviceGetPcieThroughput`` is never called, because it blocks for 20 ms (measured on an H200
with driver 580.159).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pynvml

from gpunode.driver.driver import (
    Activity,
    ChipLinks,
    DriverError,
    Fabric,
    Limits,
    Memory,
    Mode,
    ModulePower,
    NvLink,
    OperationalEvent,
    PcieLink,
    PowerLimits,
    PowerRange,
    Process,
    ProcessUse,
    RemappedRows,
    SampleBuffer,
    TemperatureLimits,
    Unsupported,
    Utilization,
    VideoUse,
    Xid,
)
from gpunode.driver.nvidia import fabric, health, identity, links, modes
from gpunode.driver.nvidia.dcgm import DcgmProfiling
from gpunode.driver.nvidia.device import MAX_TIMESTAMP, Device
from gpunode.driver.nvidia.gpm import GpmCounters, GpmSnapshots
from gpunode.driver.nvidia.operational_events import OperationalEvents
from gpunode.driver.nvidia.possible import (
    BUS_BITS,
    BYTES,
    CELSIUS,
    COUNTS,
    FLAGS,
    HERTZ,
    LIMITS,
    MARGINS,
    PERFORMANCE_STATES,
    PIDS,
    SHARES,
    WATTS,
    in_range,
    reading,
    scaled,
)

CLOCK_EVENTS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "gpu_idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "clocks_setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clocks",
    pynvml.nvmlClocksThrottleReasonBoardLimit: "board_limit",
    pynvml.nvmlClocksThrottleReasonReliability: "reliability",
}
THROTTLED_NANOSECONDS = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "sw_power_cap",
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "sync_boost",
    269: "sw_thermal",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_*, since nvml.h 12.9
    270: "hw_thermal",
    271: "hw_power_brake",
}
VIOLATION_NANOSECONDS = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "power",
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: "thermal",
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "sync_boost",
    pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT: "board",
    pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION: "low_utilization",
    pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY: "reliability",
}

MODES = {pynvml.NVML_FEATURE_DISABLED: "off", pynvml.NVML_FEATURE_ENABLED: "on"}

ALL_ONES = 2**64 - 1
"""A mask of clock events that the driver does not know."""


class NvmlGpu:
    """One GPU or MIG instance; see ``driver.Gpu`` for what each method answers."""

    def __init__(
        self,
        device: Device,
        monotonic: Callable[[], float],
        dcgm: DcgmProfiling | None = None,
        parent: NvmlGpu | None = None,
    ) -> None:
        self.device = device
        self.monotonic = monotonic
        self.dcgm = dcgm
        self.parent = parent
        self._xids = health.XidEvents(device)
        self._operational_events = OperationalEvents(device)
        self._gpm_snapshots = GpmSnapshots(device)
        self._forget()
        self.identity = identity.identify(device)

    def reopen(self, handle: Any, generation: int) -> None:
        """Start over with a new handle: what was learned through the old one may not be true.

        What the library allocated, which it keeps, is used again.
        """
        self._forget()
        self.device.reopen(handle, generation)

    def _forget(self) -> None:
        self._gpm: GpmCounters | None = None
        self._nvlinks = links.NvLinks(self.device)
        self._process_use_until = 0

    def limits(self) -> Limits:
        board = self.parent or self
        width = in_range(board.device.if_supported("nvmlDeviceGetMemoryBusWidth"), BUS_BITS)
        memory_clock = board._max_clock(pynvml.NVML_CLOCK_MEM)
        sm_clock = board._max_clock(pynvml.NVML_CLOCK_SM)
        pcie_speed = links.pcie_bytes_per_second(board.device)
        speeds = [link.bytes_per_second for link in board._nvlinks.read_if_any() if link.up]
        return Limits(
            # Two transfers per clock: https://en.wikipedia.org/wiki/High_Bandwidth_Memory
            memory_bytes_per_second=(
                width / 8 * memory_clock * 2 if width and memory_clock else None
            ),
            nvlink_bytes_per_second=sum(s for s in speeds if s) or None,
            pcie_bytes_per_second=pcie_speed,
            sm_clock_hertz=sm_clock or None,
            memory_clock_hertz=memory_clock or None,
        )

    def _max_clock(self, kind: int) -> float | None:
        megahertz = self.device.if_supported("nvmlDeviceGetMaxClockInfo", kind)
        return in_range(scaled(megahertz, 1e6), HERTZ)

    def activity(self) -> Activity:
        try:
            return self._gpm_counters().read()
        except Unsupported:
            if self.dcgm is None or self.parent is not None:
                raise
            return self.dcgm.activity(self.device.uuid)

    def _gpm_counters(self) -> GpmCounters:
        counters = self._gpm
        if counters is None or counters.generation != self.device.generation:
            board = self.parent or self
            counters = self._gpm = GpmCounters(
                self.device,
                self._gpm_snapshots,
                has_nvlink=lambda: bool(board._nvlinks.read_if_any()),
                monotonic=self.monotonic,
            )
        return counters

    def power_samples(self, after: int) -> SampleBuffer:
        kind = pynvml.NVML_TOTAL_POWER_SAMPLES
        return SampleBuffer(self.device.samples(kind, after, 1e-3, WATTS))

    def utilization_samples(self, after: int) -> SampleBuffer:
        kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
        return SampleBuffer(self.device.samples(kind, after, 1e-2, SHARES))

    def utilization(self) -> Utilization:
        rates = self.device.call("nvmlDeviceGetUtilizationRates")
        return Utilization(
            gpu=reading("utilisation", rates.gpu / 100, SHARES),
            memory=reading("utilisation of memory", rates.memory / 100, SHARES),
        )

    def power(self) -> float:
        return reading("power", self.device.call("nvmlDeviceGetPowerUsage") / 1e3, WATTS)

    def energy(self) -> float:
        millijoules = self.device.call("nvmlDeviceGetTotalEnergyConsumption")
        return reading("energy", reading("energy", millijoules, COUNTS) / 1e3, COUNTS)

    def memory(self) -> Memory:
        try:
            info = self.device.call("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        except Unsupported:
            # Version 1 counts the driver's reserve as used.
            device, generation = self.device, self.device.generation
            info = device.library.call(
                "nvmlDeviceGetMemoryInfo", device.handle, gpu=device.uuid, generation=generation
            )
            return _memory(info.total, info.used, None)
        return _memory(info.total, info.total - info.free - info.reserved, info.reserved)

    def sm_clock(self) -> float:
        return self._clock(pynvml.NVML_CLOCK_SM)

    def memory_clock(self) -> float:
        return self._clock(pynvml.NVML_CLOCK_MEM)

    def _clock(self, kind: int) -> float:
        return reading("clock", self.device.call("nvmlDeviceGetClockInfo", kind) * 1e6, HERTZ)

    def clock_events(self) -> list[str]:
        try:
            mask = self.device.call("nvmlDeviceGetCurrentClocksEventReasons")
        except Unsupported:
            mask = self.device.call("nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask == ALL_ONES:
            raise Unsupported(f"clock events: {mask:#x} is no reading")
        return self.device.bits("clock events", CLOCK_EVENTS, mask)

    def performance_state(self) -> int:
        state = self.device.call("nvmlDeviceGetPerformanceState")
        return int(reading("performance state", state, PERFORMANCE_STATES))

    def throttled(self) -> dict[str, float]:
        values = self.device.fields(*THROTTLED_NANOSECONDS)
        return {THROTTLED_NANOSECONDS[field]: ns / 1e9 for (field, _), ns in values.items()}

    def temperature(self) -> float:
        celsius = self.device.call("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
        return reading("temperature", celsius, CELSIUS)

    def memory_temperature(self) -> float:
        (celsius,) = self.device.fields(pynvml.NVML_FI_DEV_MEMORY_TEMP).values()
        return reading("memory temperature", celsius, CELSIUS)

    def temperature_margin(self) -> float:
        return reading("margin", self.device.call("nvmlDeviceGetMarginTemperature"), MARGINS)

    def power_limits(self) -> PowerLimits:
        default = scaled(self.device.if_supported("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3)
        enforced = self.device.call("nvmlDeviceGetEnforcedPowerLimit") * 1e-3
        return PowerLimits(reading("limit", enforced, LIMITS), in_range(default, LIMITS))

    def power_range(self) -> PowerRange:
        asked = self.device.if_supported("nvmlDeviceGetPowerManagementLimit")
        answer = self.device.if_supported("nvmlDeviceGetPowerManagementLimitConstraints")
        least, most = answer or (None, None)
        return PowerRange(*(in_range(scaled(w, 1e-3), LIMITS) for w in (asked, least, most)))

    def power_now(self) -> float:
        (milliwatts,) = self.device.fields(pynvml.NVML_FI_DEV_POWER_INSTANT).values()
        return reading("power", milliwatts * 1e-3, WATTS)

    def temperature_limits(self) -> TemperatureLimits:
        def ask(kind: int) -> float | None:
            answer = self.device.if_supported("nvmlDeviceGetTemperatureThreshold", kind)
            return in_range(answer, CELSIUS)

        return TemperatureLimits(
            slowdown=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            shutdown=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
            gpu=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
            memory=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
        )

    def video_use(self) -> VideoUse:
        def ask(name: str) -> float | None:
            answer = self.device.if_supported(name)
            return None if answer is None else in_range(answer[0] / 100, SHARES)

        return VideoUse(
            ask("nvmlDeviceGetEncoderUtilization"), ask("nvmlDeviceGetDecoderUtilization")
        )

    def processes(self) -> list[Process]:
        calls: tuple[tuple[str, Literal["compute", "graphics", "mps"]], ...] = (
            ("nvmlDeviceGetComputeRunningProcesses_v3", "compute"),
            ("nvmlDeviceGetGraphicsRunningProcesses_v3", "graphics"),
            ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "mps"),
        )
        found: list[Process] = []
        answered = False
        for name, kind in calls:
            running = self.device.if_supported(name)
            answered = answered or running is not None
            found += [
                Process(p.pid, in_range(p.usedGpuMemory, BYTES), kind)
                for p in running or ()
                if in_range(p.pid, PIDS) is not None
            ]
        if not answered:
            raise Unsupported(f"running processes: not supported by GPU {self.device.index}")
        return found

    def process_use(self) -> list[ProcessUse]:
        try:
            samples = self.device.call("nvmlDeviceGetProcessUtilization", self._process_use_until)
        except DriverError as error:
            cause = error.__cause__
            if isinstance(cause, pynvml.NVMLError) and cause.value == pynvml.NVML_ERROR_NOT_FOUND:
                return []
            raise
        samples = sorted(
            (sample for sample in samples if 0 <= sample.timeStamp <= MAX_TIMESTAMP),
            key=lambda sample: sample.timeStamp,
        )
        self._process_use_until = samples[-1].timeStamp if samples else 0
        latest = {sample.pid: in_range(sample.smUtil / 100, SHARES) for sample in samples}
        return [ProcessUse(pid, share) for pid, share in latest.items() if share is not None]

    def ecc_errors(self) -> dict[str, float]:
        return health.ecc_errors(self.device, pynvml.NVML_AGGREGATE_ECC)

    def volatile_ecc_errors(self) -> dict[str, float]:
        return health.ecc_errors(self.device, pynvml.NVML_VOLATILE_ECC)

    def violations(self) -> dict[str, float]:
        values = self.device.fields(*VIOLATION_NANOSECONDS)
        return {VIOLATION_NANOSECONDS[field]: ns / 1e9 for (field, _), ns in values.items()}

    def inforom_valid(self) -> bool:
        return health.inforom_valid(self.device)

    def vgpu_licensed(self) -> bool:
        licences = self.device.call("nvmlDeviceGetGridLicensableFeatures_v4")
        if not licences.isGridLicenseSupported:
            return False
        for feature in licences.gridLicensableFeatures[: licences.licensableFeaturesCount]:
            if feature.featureCode == pynvml.NVML_GRID_LICENSE_FEATURE_CODE_VGPU:
                return bool(reading("licence", feature.featureState, FLAGS))
        raise Unsupported(f"licence: GPU {self.device.index} has none for a virtual GPU")

    def driver_version(self) -> str:
        return identity.driver_version(self.device.library, self.device.generation)

    def cuda_version(self) -> str:
        return identity.cuda_version(self.device.library, self.device.generation)

    def firmware(self) -> dict[str, str]:
        return identity.firmware(self.device.board)

    def remapped_rows(self) -> RemappedRows:
        return health.remapped_rows(self.device)

    def remap_banks(self) -> dict[str, float]:
        return health.remap_banks(self.device)

    def sram_worn(self) -> bool:
        return health.sram_worn(self.device)

    def memory_unrepairable(self) -> bool:
        return health.memory_unrepairable(self.device)

    def recovery_action(self) -> str:
        return health.recovery_action(self.device)

    def pcie_link(self) -> PcieLink:
        return links.pcie_link(self.device)

    def pcie_replays(self) -> float:
        return links.pcie_replays(self.device)

    def pcie_errors(self) -> dict[str, float]:
        return links.pcie_errors(self.device)

    def nvlinks(self) -> list[NvLink]:
        return self._nvlinks.read()

    def nvlink_bytes(self) -> dict[str, float]:
        return links.nvlink_bytes(self.device)

    def fabric(self) -> Fabric:
        return fabric.fabric(self.device)

    def persistence(self) -> bool:
        return self._is_on("persistence mode", self.device.call("nvmlDeviceGetPersistenceMode"))

    def mig_mode(self) -> bool:
        current, _ = self.device.call("nvmlDeviceGetMigMode")
        return self._is_on("MIG mode", current)

    def _is_on(self, what: str, mode: int) -> bool:
        name = self.device.name(what, MODES, mode)
        if name is None:
            raise Unsupported(f"{what}: {mode} is neither on nor off")
        return name == "on"

    def unnamed(self) -> list[str]:
        return self.device.unnamed()

    def modes(self) -> list[Mode]:
        return modes.modes(self.device)

    def module_power(self) -> ModulePower:
        return modes.module_power(self.device)

    def power_smoothing_left(self) -> float:
        return modes.power_smoothing_left(self.device)

    def chip_links(self) -> ChipLinks:
        return links.chip_links(self.device)

    def peers(self) -> dict[int, int]:
        return links.peers(self.device)

    def xids(self) -> list[Xid]:
        return self._xids.read()

    def operational_events(self) -> list[OperationalEvent]:
        return self._operational_events.read()


def _memory(total: float, used: float, reserved: float | None) -> Memory:
    """Raises ``Unsupported`` unless the parts fit into the whole."""
    inside = 0.0, reading("memory", total, BYTES)
    reserved = None if reserved is None else reading("reserved memory", reserved, inside)
    return Memory(total, reading("used memory", used, inside), reserved)
