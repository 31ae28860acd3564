"""The NVIDIA driver through NVML; only this module and ``library.py`` import pynvml.

Each GPU is asked which sensors it has: after an unsupported call, that call is not made again until
the GPUs are next listed. Costs in comments were measured on an H200 with driver 580.159.
``nvmlDeviceGetPcieThroughput`` is never called, because it blocks for 20 ms.
"""

from __future__ import annotations

import ctypes
import logging
import re
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pynvml

from gpunode.driver.driver import (
    Activity,
    Buffered,
    DriverError,
    DriverUnavailable,
    Fabric,
    Gpu,
    Identity,
    Limits,
    Memory,
    NvLink,
    PcieLink,
    PowerLimits,
    PowerRange,
    Process,
    ProcessUse,
    RemappedRows,
    TemperatureLimits,
    Unsupported,
    Utilization,
    VideoUse,
    Xid,
)
from gpunode.driver.errands import PATIENCE, Errands
from gpunode.driver.nvidia import gpm
from gpunode.driver.nvidia.dcgm import DcgmProfiling
from gpunode.driver.nvidia.library import Library
from gpunode.driver.nvidia.possible import NOT_AVAILABLE, Range, possible
from gpunode.text import printable

log = logging.getLogger(__name__)

ALL_LINKS = 0xFFFFFFFF
"""``scopeId`` that sums an NVLink field over all links."""

GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_UNKNOWN,
}
"""Errors that every GPU returns after the driver was unloaded or replaced under the library."""

LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND}
"""Errors of one GPU that fell off the bus: a new handle may reach it when it is back."""

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
PCIE_ERRORS = {
    pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS: "correctable",
    pynvml.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR: "non_fatal",
    pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR: "fatal",
    pynvml.NVML_FI_DEV_PCIE_COUNT_BAD_TLP: "bad_tlp",
    pynvml.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP: "bad_dllp",
    pynvml.NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER: "link_recovery",
}
NVLINK_ERRORS = {
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: "replay",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: "recovery",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: "crc",
    213: "recovery_successful",  # NVLink 5 (Blackwell) replaces the three above
    214: "recovery_failed",
    208: "receive",
    219: "effective",
    221: "symbol",
}
RECOVERY_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: "none",
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain_p2p",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain_and_reset",
}
FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
FABRIC_HEALTH_BITS = {"bandwidth": 0, "route_recovery": 2, "route": 4, "access_timeout": 6}
"""Shifts of the two-bit fields of ``healthMask``: 0 not supported, 1 bad, 2 good."""

PCIE_LANE = {
    1: 2.5e9 / 10,
    2: 5e9 / 10,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}
"""Bytes/s in one direction by generation: https://en.wikipedia.org/wiki/PCI_Express#Comparison_table"""

MOST_GPUS = 64
MOST_INSTANCES = 16
MOST_EVENTS = 256
"""More than a node has GPUs, a GPU has MIG instances, and a window has XID events."""

MOST_SAMPLES = 256
"""More than any buffer holds: on an H200, 120 power samples and 71 of utilisation."""

ALL_ONES = 2**64 - 1
BYTES = 1.0, 2.0**50
BUS_BITS = 1.0, 2.0**16
CELSIUS = -60.0, 200.0
COUNTS = 0.0, 1e18
FLAGS = 0.0, 1.0
GENERATIONS = 1.0, 16.0
HERTZ = 0.0, 1e11
LANES = 1.0, 32.0
LIMITS = 1.0, 2e4
LINKS = 0.0, 64.0
MARGINS = -200.0, 200.0
NUMBERS = 0.0, 2.0**16
PERFORMANCE_STATES = 0.0, 15.0
PIDS = 1.0, 2.0**22
ROWS = 0.0, 1e6
SHARES = 0.0, 1.0
WATTS = 0.0, 2e4
"""What is physically possible, generously, in base units; anything else is no reading."""

LATEST = 2**62
"""The last time in microseconds that a clock can show; beyond, the driver knows none."""

LONGEST_TEXT = 96
"""Characters of a text: ``NVML_DEVICE_NAME_V2_BUFFER_SIZE``."""

SAMPLE = struct.Struct("=QI4x")
"""``nvmlSample_t``: microseconds, and a union of which the unsigned member is used."""


class NvmlDriver:
    """The GPUs that NVML knows, each looked at in a thread of its own, as any call may hang."""

    vendor = "nvidia"

    def __init__(
        self,
        monotonic: Callable[[], float],
        dcgm: DcgmProfiling | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.monotonic = monotonic
        self.dcgm = dcgm
        self.library = Library(monotonic)
        self._preparing = Errands(patience)
        self._looks = Errands(patience)
        self._lock = threading.Lock()  # for both of these; never held while the driver is asked
        self._gpus: dict[str, NvmlGpu] = {}
        self._at: dict[int, NvmlGpu] = {}
        self._count = 0
        self._trouble = ""
        self._complaints: dict[int, str] = {}

    def gpus(self) -> list[Gpu]:
        """Every GPU and MIG instance; a GPU that is lost stays listed.

        One that does not answer is left out until it does.
        """
        if self._preparing.run({"nvml": self._prepare}) and not self.library.usable:
            raise DriverUnavailable("nvmlInit: no answer, waiting for it")
        if self._trouble and self._gone:
            raise DriverUnavailable(self._trouble)
        looks = {index: partial(self._look, index) for index in range(self._count)}
        for index in self._looks.run(looks):
            self._complain(index, "it does not answer")
        with self._lock:
            found = sorted(self._gpus.values(), key=_order)
            complaints = set(self._complaints.values())
        if self._count and not found:
            raise DriverUnavailable(f"no GPU can be opened: {'; '.join(sorted(complaints))}")
        return list(found)

    @property
    def _gone(self) -> bool:
        """Whether no GPU is left that the library can be asked about."""
        with self._lock:
            return all(gpu.gone or gpu.stale for gpu in self._at.values())

    def _prepare(self) -> None:
        """Open the library if it is not open or its driver is gone, and count the GPUs."""
        try:
            if not self.library.usable or (self._gone and self._looks.idle):
                self.library.renew()
                with self._lock:
                    self._at.clear()
            count = self.library.call("nvmlDeviceGetCount", generation=self.library.generation)
            self._count, self._trouble = min(count, MOST_GPUS), ""
        except DriverError as error:
            self._trouble = str(error)

    def _look(self, index: int) -> None:
        """Open the GPU at this index if it is new or was lost, and update its MIG instances."""
        try:
            gpu = self._at.get(index)
            if gpu is None or gpu.lost or gpu.stale:
                gpu = self._take(index, self.library.generation)
            self._complaints.pop(index, None)
            gpu.ask_again()
            self._list_instances(gpu)
        except DriverError as error:
            self._complain(index, str(error))

    def _complain(self, index: int, complaint: str) -> None:
        """Log once why a GPU is not open."""
        if index not in self._at and self._complaints.get(index) != complaint:
            log.warning("GPU %d cannot be opened, trying again later: %s", index, complaint)
            self._complaints[index] = complaint

    def _take(self, index: int, generation: int) -> NvmlGpu:
        """The GPU at this index, with a handle of this generation."""
        handle = self.library.call("nvmlDeviceGetHandleByIndex", index, generation=generation)
        uuid = self._uuid(handle, generation)
        with self._lock:
            gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = NvmlGpu(self, handle, generation, index, uuid)
        elif gpu.lost or gpu.generation != generation:
            gpu.reopen(handle, generation)
        elif gpu.index != index:
            raise DriverError(f"it has the UUID of GPU {gpu.index}: {uuid}")
        with self._lock:
            self._gpus[uuid] = self._at[index] = gpu
        return gpu

    def _uuid(self, handle: Any, generation: int) -> str:
        uuid = _text(self.library.call(_get_uuid, handle, generation=generation))
        if not uuid:
            raise DriverError("nvmlDeviceGetUUID: an empty answer")
        return uuid

    def _list_instances(self, gpu: NvmlGpu) -> None:
        """Update the MIG instances of one GPU."""
        generation = gpu.generation
        found: dict[str, Any] = {}
        try:
            if gpu.mig_mode():
                for index in range(
                    min(gpu._call("nvmlDeviceGetMaxMigDeviceCount"), MOST_INSTANCES)
                ):
                    handle = self._instance(gpu, index)
                    if handle is not None:
                        found[self._uuid(handle, generation)] = handle
        except Unsupported:
            pass
        except DriverError as error:
            log.debug("%s: cannot list its MIG instances: %s", gpu.uuid, error)
            return
        with self._lock:
            known = {u: g for u, g in self._gpus.items() if g.parent is gpu}
            for uuid in known.keys() - found.keys():
                del self._gpus[uuid]
        for uuid, handle in found.items():
            self._open_instance(gpu, known.get(uuid), uuid, handle)

    def _instance(self, gpu: NvmlGpu, index: int) -> Any:
        """The handle of a MIG instance, or None if there is none at this index."""
        try:
            return gpu._call("nvmlDeviceGetMigDeviceHandleByIndex", index)
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_NotFound):
                return None
            raise

    def _open_instance(
        self, gpu: NvmlGpu, instance: NvmlGpu | None, uuid: str, handle: Any
    ) -> None:
        if instance is not None:
            if instance.generation != gpu.generation:
                instance.reopen(handle, gpu.generation)
            return
        try:
            instance = NvmlGpu(self, handle, gpu.generation, gpu.index, uuid, parent=gpu)
        except DriverError as error:
            log.warning("%s: cannot be opened, trying again later: %s", uuid, error)
            return
        with self._lock:
            self._gpus[uuid] = instance


def _order(gpu: NvmlGpu) -> tuple[bool, int, int]:
    """GPUs by index, then MIG instances."""
    who = gpu.identity
    return who.mig, who.index, who.gpu_instance or 0


class NvmlGpu:
    """One GPU or MIG instance; see ``driver.Gpu`` for what each method answers."""

    def __init__(
        self,
        driver: NvmlDriver,
        handle: Any,
        generation: int,
        index: int,
        uuid: str,
        parent: NvmlGpu | None = None,
    ) -> None:
        self.driver = driver
        self.library = driver.library
        self.index = index
        self.uuid = uuid
        self.parent = parent
        self._events: tuple[int, Any] | None = None
        self._registered: Any = None
        self._buffers: tuple[int, tuple[Any, Any]] | None = None
        self.reopen(handle, generation)
        self.identity = self._identify()

    def reopen(self, handle: Any, generation: int) -> None:
        """Start over with a new handle: what was learned through the old one may not be true.

        What the library allocated, which it keeps, is used again.
        """
        self.handle = handle
        self.gone = False
        self.lost = False
        self._unsupported: set[str] = set()
        self._gpm: _Gpm | None = None
        self._nvlink_kinds: list[int] = []
        self._nvlink_speeds: dict[int, float] = {}
        self._process_use_until = 0
        self.generation = generation  # last, because readers check it first

    @property
    def stale(self) -> bool:
        """Whether the library that issued the handle was unloaded."""
        return self.generation != self.library.generation

    def ask_again(self) -> None:
        """Forget what was unsupported: a new mode or permission may enable a sensor."""
        self._unsupported.clear()

    def _call(
        self,
        function: str | Callable[..., Any],
        *arguments: Any,
        generation: int | None = None,
    ) -> Any:
        name = function if isinstance(function, str) else function.__name__
        if name in self._unsupported:
            raise Unsupported(f"{name}: not supported by GPU {self.index}")
        generation = self.generation if generation is None else generation
        try:
            answer = self.library.call(
                function, self.handle, *arguments, gpu=self.uuid, generation=generation
            )
        except Unsupported:
            self._unsupported.add(name)
            raise
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError):
                self.gone = error.__cause__.value in GONE
                self.lost = error.__cause__.value in LOST
            raise
        self.gone = self.lost = False
        return answer

    def _optional(self, function: str | Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._call(function, *arguments)
        except Unsupported:
            return None

    def _fields(self, *fields: int | tuple[int, int]) -> dict[tuple[int, int], float]:
        """Values of the fields that the driver answered, by (field, scope)."""
        key = f"fields {fields}"
        if key in self._unsupported:
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        answers = {
            (value.fieldId, value.scopeId): number
            for value in self._call("nvmlDeviceGetFieldValues", list(fields))
            if value.nvmlReturn == pynvml.NVML_SUCCESS
            and (number := _field_value(value)) is not None
        }
        if not answers:
            self._unsupported.add(key)
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        return answers

    def _identify(self) -> Identity:
        board = self.parent or self
        pci = board._told("nvmlDeviceGetPciInfo")
        instance = self._number("nvmlDeviceGetGpuInstanceId") if self.parent else None
        place = None if instance is None else board._told(_get_instance_info, instance)
        return Identity(
            index=self.index,
            uuid=self.uuid,
            name=_text(self._optional(_get_name)) or "unknown",
            bus_id=_in_sysfs(_text(_bus_id(pci))) or None if pci else None,
            serial=_text(board._told(_get_serial)) or None,
            vbios=_text(board._told(_get_vbios)) or None,
            compute_capability=board._capability(),
            parent=self.parent.uuid if self.parent else None,
            mig=self.parent is not None,
            minor=board._number("nvmlDeviceGetMinorNumber"),
            gpu_instance=instance,
            mig_profile=place and _whole(place.profileId),
            mig_start=place and _whole(place.placement.start),
        )

    def _capability(self) -> str | None:
        version = self._told("nvmlDeviceGetCudaComputeCapability")
        return "{}.{}".format(*version) if version and max(version) < 100 else None

    def _number(self, function: str) -> int | None:
        return _whole(self._told(function))

    def _told(self, function: str | Callable[..., Any], *arguments: Any) -> Any:
        """Something that is good to know of a GPU, or None: no reason not to read the rest."""
        try:
            return self._call(function, *arguments)
        except DriverError:
            return None

    def limits(self) -> Limits:
        board = self.parent or self
        width = possible(board._optional("nvmlDeviceGetMemoryBusWidth"), BUS_BITS)
        memory_clock = board._max_clock(pynvml.NVML_CLOCK_MEM)
        sm_clock = board._max_clock(pynvml.NVML_CLOCK_SM)
        generation = board._optional("nvmlDeviceGetMaxPcieLinkGeneration")
        lanes = possible(board._optional("nvmlDeviceGetMaxPcieLinkWidth"), LANES)
        speeds = [link.bytes_per_second for link in board._links_or_none() if link.up]
        return Limits(
            # Two transfers per clock: https://en.wikipedia.org/wiki/High_Bandwidth_Memory
            memory_bytes_per_second=(
                width / 8 * memory_clock * 2 if width and memory_clock else None
            ),
            nvlink_bytes_per_second=sum(s for s in speeds if s) or None,
            pcie_bytes_per_second=(
                PCIE_LANE[generation] * lanes if generation in PCIE_LANE and lanes else None
            ),
            sm_clock_hertz=sm_clock or None,
            memory_clock_hertz=memory_clock or None,
        )

    def _max_clock(self, kind: int) -> float | None:
        return possible(_scaled(self._optional("nvmlDeviceGetMaxClockInfo", kind), 1e6), HERTZ)

    def _links_or_none(self) -> list[NvLink]:
        try:
            return self.nvlinks()
        except Unsupported:
            return []

    def activity(self) -> Activity:
        try:
            return self._gpm_activity()
        except Unsupported:
            if self.driver.dcgm is None or self.parent is not None:
                raise
            return self.driver.dcgm.activity(self.uuid)

    def _gpm_activity(self) -> Activity:
        counters = self._gpm
        if counters is None or counters.generation != self.generation:
            support = (self.parent or self)._call("nvmlGpmQueryDeviceSupport")
            if not support.isSupportedDevice:
                raise Unsupported(f"GPM: not supported by GPU {self.index}")
            counters = self._gpm = _Gpm(self)
        return counters.read()

    def power_samples(self, after: int) -> Buffered:
        return self._samples(pynvml.NVML_TOTAL_POWER_SAMPLES, after, 1e-3, WATTS)

    def utilization_samples(self, after: int) -> Buffered:
        return self._samples(pynvml.NVML_GPU_UTILIZATION_SAMPLES, after, 1e-2, SHARES)

    def _samples(self, kind: int, after: int, scale: float, within: Range) -> Buffered:
        key = f"nvmlDeviceGetSamples {kind}"
        if key in self._unsupported:
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        try:
            generation = self.generation
            packed = self.library.call(
                _get_samples, self.handle, kind, after, gpu=self.uuid, generation=generation
            )
        except Unsupported:
            self._unsupported.add(key)
            raise
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_NotFound):
                return Buffered()  # an empty buffer, not a failure
            raise
        most = within[1] / scale
        return Buffered(
            [
                (time, value * scale)
                for time, value in SAMPLE.iter_unpack(packed)
                if time <= LATEST and value <= most and value != NOT_AVAILABLE
            ]
        )

    def utilization(self) -> Utilization:
        rates = self._call("nvmlDeviceGetUtilizationRates")
        return Utilization(
            gpu=_reading("utilisation", rates.gpu / 100, SHARES),
            memory=_reading("utilisation of memory", rates.memory / 100, SHARES),
        )

    def power(self) -> float:
        return _reading("power", self._call("nvmlDeviceGetPowerUsage") / 1e3, WATTS)

    def energy(self) -> float:
        millijoules = self._call("nvmlDeviceGetTotalEnergyConsumption")
        return _reading("energy", _reading("energy", millijoules, COUNTS) / 1e3, COUNTS)

    def memory(self) -> Memory:
        try:
            info = self._call("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        except Unsupported:
            # Version 1 counts the driver's reserve as used.
            generation = self.generation
            info = self.library.call(
                "nvmlDeviceGetMemoryInfo", self.handle, gpu=self.uuid, generation=generation
            )
            return _memory(info.total, info.used, None)
        return _memory(info.total, info.total - info.free - info.reserved, info.reserved)

    def sm_clock(self) -> float:
        return self._clock(pynvml.NVML_CLOCK_SM)

    def memory_clock(self) -> float:
        return self._clock(pynvml.NVML_CLOCK_MEM)

    def _clock(self, kind: int) -> float:
        return _reading("clock", self._call("nvmlDeviceGetClockInfo", kind) * 1e6, HERTZ)

    def clock_events(self) -> list[str]:
        try:
            mask = self._call("nvmlDeviceGetCurrentClocksEventReasons")
        except Unsupported:
            mask = self._call("nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask == ALL_ONES:
            raise Unsupported(f"clock events: {mask:#x} is no reading")
        return [name for bit, name in CLOCK_EVENTS.items() if mask & bit]

    def performance_state(self) -> int:
        state = self._call("nvmlDeviceGetPerformanceState")
        return int(_reading("performance state", state, PERFORMANCE_STATES))

    def throttled(self) -> dict[str, float]:
        values = self._fields(*THROTTLED_NANOSECONDS)
        return {THROTTLED_NANOSECONDS[field]: ns / 1e9 for (field, _), ns in values.items()}

    def temperature(self) -> float:
        celsius = self._call("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
        return _reading("temperature", celsius, CELSIUS)

    def memory_temperature(self) -> float:
        (celsius,) = self._fields(pynvml.NVML_FI_DEV_MEMORY_TEMP).values()
        return _reading("memory temperature", celsius, CELSIUS)

    def temperature_margin(self) -> float:
        return _reading("margin", self._call("nvmlDeviceGetMarginTemperature"), MARGINS)

    def power_limits(self) -> PowerLimits:
        default = _scaled(self._optional("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3)
        enforced = self._call("nvmlDeviceGetEnforcedPowerLimit") * 1e-3
        return PowerLimits(_reading("limit", enforced, LIMITS), possible(default, LIMITS))

    def power_range(self) -> PowerRange:
        asked = self._optional("nvmlDeviceGetPowerManagementLimit")
        range_ = self._optional("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
        return PowerRange(*(possible(_scaled(w, 1e-3), LIMITS) for w in (asked, *range_)))

    def power_now(self) -> float:
        (milliwatts,) = self._fields(pynvml.NVML_FI_DEV_POWER_INSTANT).values()
        return _reading("power", milliwatts * 1e-3, WATTS)

    def temperature_limits(self) -> TemperatureLimits:
        def ask(kind: int) -> float | None:
            return possible(self._optional("nvmlDeviceGetTemperatureThreshold", kind), CELSIUS)

        return TemperatureLimits(
            slowdown=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            shutdown=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
            gpu=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
            memory=ask(pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
        )

    def video_use(self) -> VideoUse:
        def ask(name: str) -> float | None:
            answer = self._optional(name)
            return None if answer is None else possible(answer[0] / 100, SHARES)

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
            running = self._optional(name)
            answered = answered or running is not None
            found += [
                Process(p.pid, possible(p.usedGpuMemory, BYTES), kind)
                for p in running or ()
                if possible(p.pid, PIDS) is not None
            ]
        if not answered:
            raise Unsupported(f"running processes: not supported by GPU {self.index}")
        return found

    def process_use(self) -> list[ProcessUse]:
        try:
            samples = self._call("nvmlDeviceGetProcessUtilization", self._process_use_until)
        except DriverError as error:
            cause = error.__cause__
            if isinstance(cause, pynvml.NVMLError) and cause.value == pynvml.NVML_ERROR_NOT_FOUND:
                return []
            raise
        samples = sorted(
            (sample for sample in samples if 0 <= sample.timeStamp <= LATEST),
            key=lambda sample: sample.timeStamp,
        )
        self._process_use_until = samples[-1].timeStamp if samples else 0
        latest = {sample.pid: possible(sample.smUtil / 100, SHARES) for sample in samples}
        return [ProcessUse(pid, share) for pid, share in latest.items() if share is not None]

    def ecc_errors(self) -> dict[str, float]:
        return self._ecc_errors(pynvml.NVML_AGGREGATE_ECC)

    def volatile_ecc_errors(self) -> dict[str, float]:
        return self._ecc_errors(pynvml.NVML_VOLATILE_ECC)

    def _ecc_errors(self, since: int) -> dict[str, float]:
        kinds = {
            "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        return {
            name: _reading(
                "ECC errors", self._call("nvmlDeviceGetTotalEccErrors", kind, since), COUNTS
            )
            for name, kind in kinds.items()
        }

    def violations(self) -> dict[str, float]:
        values = self._fields(*VIOLATION_NANOSECONDS)
        return {VIOLATION_NANOSECONDS[field]: ns / 1e9 for (field, _), ns in values.items()}

    def inforom_valid(self) -> bool:
        try:
            self._call("nvmlDeviceValidateInforom")
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_CorruptedInforom):
                return False
            raise
        return True

    def vgpu_licensed(self) -> bool:
        told = self._call("nvmlDeviceGetGridLicensableFeatures_v4")
        if not told.isGridLicenseSupported:
            return False
        for feature in told.gridLicensableFeatures[: told.licensableFeaturesCount]:
            if feature.featureCode == pynvml.NVML_GRID_LICENSE_FEATURE_CODE_VGPU:
                return bool(_reading("licence", feature.featureState, FLAGS))
        raise Unsupported(f"licence: GPU {self.index} has none for a virtual GPU")

    def driver_version(self) -> str:
        version = self.library.call(_get_driver_version, generation=self.generation)
        return _text(version)

    def remapped_rows(self) -> RemappedRows:
        corrected, uncorrected, pending, failed = self._call("nvmlDeviceGetRemappedRows")
        return RemappedRows(
            _reading("remapped rows", corrected, ROWS),
            _reading("remapped rows", uncorrected, ROWS),
            bool(_reading("pending remap", pending, FLAGS)),
            bool(_reading("failed remap", failed, FLAGS)),
        )

    def recovery_action(self) -> str:
        (action,) = self._fields(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).values()
        return RECOVERY_ACTIONS.get(int(action), "other")

    def pcie_link(self) -> PcieLink:
        def ask(name: str, within: Range) -> int:
            return int(_reading(name, self._call(name), within))

        return PcieLink(
            generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", GENERATIONS),
            width=ask("nvmlDeviceGetCurrPcieLinkWidth", LANES),
            max_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration", GENERATIONS),
            max_width=ask("nvmlDeviceGetMaxPcieLinkWidth", LANES),
        )

    def pcie_replays(self) -> float:
        return _reading("PCIe replays", self._call("nvmlDeviceGetPcieReplayCounter"), COUNTS)

    def pcie_errors(self) -> dict[str, float]:
        return {PCIE_ERRORS[f]: count for (f, _), count in self._fields(*PCIE_ERRORS).items()}

    def nvlinks(self) -> list[NvLink]:
        ((_, count),) = self._fields(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT).items()
        count = _reading("NVLinks", count, LINKS)
        links, state = range(int(count)), pynvml.NVML_FI_DEV_NVLINK_GET_STATE
        # Fields are slow: ask once for kinds that no link supports, and once for speeds.
        kinds = self._nvlink_kinds or [state, *NVLINK_ERRORS]
        values = self._fields(*((kind, link) for link in links for kind in kinds))
        self._nvlink_kinds = sorted({kind for kind, _ in values})
        if not self._nvlink_speeds:
            speed = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
            answers = self._fields(*((speed, link) for link in links))
            self._nvlink_speeds = {link: megabytes for (_, link), megabytes in answers.items()}
        return [
            NvLink(
                link=link,
                up=values[state, link] == 1,
                bytes_per_second=possible(_scaled(self._nvlink_speeds.get(link), 1e6), gpm.RATES),
                errors={
                    name: values[field, link]
                    for field, name in NVLINK_ERRORS.items()
                    if (field, link) in values
                },
            )
            for link in links
            if possible(values.get((state, link)), FLAGS) is not None
        ]

    def nvlink_bytes(self) -> dict[str, float]:
        transmit = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
        receive = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
        values = self._fields((transmit, ALL_LINKS), (receive, ALL_LINKS))
        names = {transmit: "transmit", receive: "receive"}
        return {names[field]: kib * 1024 for (field, _), kib in values.items()}

    def fabric(self) -> Fabric:
        info = pynvml.c_nvmlGpuFabricInfoV_t()
        self._call("nvmlDeviceGetGpuFabricInfoV", pynvml.byref(info))
        if info.state not in FABRIC_STATES:
            raise Unsupported(f"fabric: GPU {self.index} has none")
        bits = {name: info.healthMask >> at & 3 for name, at in FABRIC_HEALTH_BITS.items()}
        healthy = {name: bit == 2 for name, bit in bits.items() if bit in (1, 2)}
        return Fabric(FABRIC_STATES[info.state], healthy)

    def persistence(self) -> bool:
        return bool(_reading("persistence", self._call("nvmlDeviceGetPersistenceMode"), FLAGS))

    def mig_mode(self) -> bool:
        current, _ = self._call("nvmlDeviceGetMigMode")
        return bool(_reading("MIG mode", current, FLAGS))

    def xids(self) -> list[Xid]:
        generation = self.generation
        events = self._event_set(generation)
        found: list[Xid] = []
        for _ in range(MOST_EVENTS):
            try:
                event = self.library.call(
                    "nvmlEventSetWait_v2", events, 0, gpu=self.uuid, generation=generation
                )
            except DriverError as error:
                if isinstance(error.__cause__, pynvml.NVMLError_Timeout):
                    return found
                raise
            found.append(Xid(int(event.eventData)))
        return found

    def _event_set(self, generation: int) -> Any:
        """The set that the XIDs of this GPU come to.

        One for each life of the library, also if the GPU is lost or cannot be registered: NVML
        keeps a set until it is freed, and a call may be waiting on it.
        """
        if self._events is None or self._events[0] != generation:
            events = self.library.call("nvmlEventSetCreate", generation=generation)
            self._events = generation, events
            self._registered = None
        handle = self.handle
        if self._registered is not handle:
            kind, events = pynvml.nvmlEventTypeXidCriticalError, self._events[1]
            self._call("nvmlDeviceRegisterEvents", kind, events, generation=generation)
            self._registered = handle
        return self._events[1]

    def _snapshots(self, generation: int) -> tuple[Any, Any]:
        """Two buffers for GPM, which NVML keeps as well: one pair for each life of the library."""
        if self._buffers is None or self._buffers[0] != generation:
            one, other = (
                self.library.call("nvmlGpmSampleAlloc", generation=generation) for _ in range(2)
            )
            self._buffers = generation, (one, other)
        return self._buffers[1]


class _Gpm:
    """Two alternating GPM snapshots, and the metrics that this GPU's driver knows.

    One unknown metric makes the whole call fail, so each is tried once on its own.
    """

    def __init__(self, gpu: NvmlGpu) -> None:
        self.gpu = gpu
        self.generation = gpu.generation
        self.previous, self.latest = gpu._snapshots(self.generation)
        self.metrics: tuple[gpm.GpmMetric, ...] | None = None
        self.request = pynvml.c_nvmlGpmMetricsGet_t()
        self.time = self._snapshot()

    def read(self) -> Activity:
        """The means since the last snapshot; empty if it is too recent, as at the first call."""
        self.previous, self.latest = self.latest, self.previous
        before, self.time = self.time, self._snapshot()
        seconds = self.time - before
        if seconds < 0.1:  # nvml.h: snapshots must be more than 100 ms apart
            return Activity(0.0, {})
        if self.metrics is None:
            self.metrics = tuple(m for m in self._candidates() if self._known(m))
        return Activity(seconds, self._means(self.metrics))

    def _snapshot(self) -> float:
        gpu, generation = self.gpu, self.generation
        if gpu.parent is None:
            gpu._call("nvmlGpmSampleGet", self.latest, generation=generation)
        else:
            instance = gpu._call("nvmlDeviceGetGpuInstanceId")
            arguments = instance, self.latest
            gpu.parent._call("nvmlGpmMigSampleGet", *arguments, generation=generation)
        return gpu.driver.monotonic()

    def _candidates(self) -> list[gpm.GpmMetric]:
        """All metrics but those of links that the GPU lacks, which the driver reports as zero."""
        board = self.gpu.parent or self.gpu
        present = {"nvlink": bool(board._links_or_none()), "c2c": False}
        try:
            (count,) = board._fields(pynvml.NVML_FI_DEV_C2C_LINK_COUNT).values()
            present["c2c"] = count > 0
        except Unsupported:
            pass
        return [m for m in gpm.METRICS if present.get(m.name.split("_")[0], True)]

    def _known(self, metric: gpm.GpmMetric) -> bool:
        try:
            self._fill((metric,))
        except Unsupported:
            return False
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_InvalidArgument):
                return False
            raise  # this failure says nothing about the metric
        return bool(self.request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS)

    def _means(self, metrics: tuple[gpm.GpmMetric, ...]) -> dict[str, float]:
        self._fill(metrics)
        answers = zip(metrics, self.request.metrics, strict=False)
        return {
            metric.name: answer.value * metric.scale
            for metric, answer in answers
            if answer.nvmlReturn == pynvml.NVML_SUCCESS
            and possible(answer.value * metric.scale, metric.within) is not None
        }

    def _fill(self, metrics: tuple[gpm.GpmMetric, ...]) -> None:
        request = self.request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = self.previous, self.latest
        for place, metric in enumerate(metrics):
            request.metrics[place].metricId = metric.id
        gpu, generation = self.gpu, self.generation
        gpu.library.call("nvmlGpmMetricsGet", request, gpu=gpu.uuid, generation=generation)


def _get_samples(handle: Any, kind: int, after: int) -> bytes:
    """``nvmlDeviceGetSamples`` into a buffer that holds every sample.

    pynvml's own wrapper asks for the count first, which doubles the cost.
    """
    samples = (pynvml.c_nvmlSample_t * MOST_SAMPLES)()
    count = ctypes.c_uint(MOST_SAMPLES)
    get = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetSamples")
    value_type = ctypes.c_uint()
    since = ctypes.c_ulonglong(after)
    result = get(
        handle, kind, since, ctypes.byref(value_type), ctypes.byref(count), ctypes.byref(samples)
    )
    pynvml._nvmlCheckReturn(result)
    return bytes(samples)[: count.value * SAMPLE.size]


def _get_instance_info(handle: Any, instance: int) -> Any:
    """Profile and place of a GPU instance."""
    return pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(handle, instance))


def _field_value(field: Any) -> float | None:
    """The member of the union that ``valueType`` selects; None if that can be no reading."""
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    name = member.get(field.valueType)
    return None if name is None else possible(getattr(field.value, name), COUNTS)


def _memory(total: float, used: float, reserved: float | None) -> Memory:
    """Raises ``Unsupported`` unless the parts fit into the whole."""
    inside = 0.0, _reading("memory", total, BYTES)
    reserved = None if reserved is None else _reading("reserved memory", reserved, inside)
    return Memory(total, _reading("used memory", used, inside), reserved)


def _reading(what: str, value: float, within: Range) -> float:
    """A number in a range that is physically possible.

    Raises ``Unsupported`` for any other: drivers answer -1 or all ones for a missing sensor.
    """
    reading = possible(value, within)
    if reading is None:
        raise Unsupported(f"{what}: {value:g} is no reading")
    return reading


def _whole(value: float | None) -> int | None:
    """A small whole number, or None if it can be no reading."""
    number = possible(value, NUMBERS)
    return None if number is None else int(number)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _text(value: bytes | None) -> str:
    """Text of the driver as a label."""
    return printable((value or b"").decode(errors="replace"), LONGEST_TEXT)


# pynvml decodes text strictly. These return what the driver wrote.
_get_name = pynvml.nvmlDeviceGetName.__wrapped__
_get_uuid = pynvml.nvmlDeviceGetUUID.__wrapped__
_get_serial = pynvml.nvmlDeviceGetSerial.__wrapped__
_get_vbios = pynvml.nvmlDeviceGetVbiosVersion.__wrapped__
_get_driver_version = pynvml.nvmlSystemGetDriverVersion.__wrapped__


def _bus_id(pci: Any) -> bytes:
    return bytes(ctypes.Structure.__getattribute__(pci, "busId"))


def _in_sysfs(bus_id: str) -> str:
    """A PCI address as the kernel writes it: 0000:1b:00.0 for 00000000:1B:00.0."""
    return re.sub(r"^0{1,4}(?=[0-9a-f]{4,7}:)", "", bus_id.lower())
