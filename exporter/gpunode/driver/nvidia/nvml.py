"""The NVIDIA driver through NVML; the only module that imports pynvml.

Each GPU is asked which sensors it has: after an unsupported call, that call is not made again until
the GPUs are next listed. Costs in comments were measured on an H200 with driver 580.159.
``nvmlDeviceGetPcieThroughput`` is never called, because it blocks for 20 ms.
"""

from __future__ import annotations

import _ctypes
import ctypes
import logging
import math
import struct
import threading
from collections.abc import Callable
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
    Process,
    ProcessUse,
    RemappedRows,
    Unsupported,
    Utilization,
    Xid,
)
from gpunode.driver.nvidia import gpm
from gpunode.driver.nvidia.dcgm import DcgmProfiling

log = logging.getLogger(__name__)

ALL_LINKS = 0xFFFFFFFF
"""``scopeId`` that sums an NVLink field over all links."""

UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
}
GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_UNKNOWN,
}
"""Errors that every GPU returns after the driver was unloaded or replaced under the library."""

CLOCK_EVENTS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "gpu_idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "clocks_setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
}
THROTTLED_NANOSECONDS = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "sw_power_cap",
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "sync_boost",
    269: "sw_thermal",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_*, since nvml.h 12.9
    270: "hw_thermal",
    271: "hw_power_brake",
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

MOST_SAMPLES = 256
"""More than any buffer holds: on an H200, 120 power samples and 71 of utilisation."""

SAMPLE = struct.Struct("=QI4x")
"""``nvmlSample_t``: microseconds, and a union of which the unsigned member is used."""


def explain(call: str, error: pynvml.NVMLError) -> str:
    """The call and the driver's own text for the error."""
    return f"{call}: {error} (NVML error {error.value})"


class NvmlDriver:
    """NVML, loaded and initialised by ``gpus()``, and again when the driver is replaced."""

    vendor = "nvidia"

    def __init__(self, monotonic: Callable[[], float], dcgm: DcgmProfiling | None = None) -> None:
        self.monotonic = monotonic
        self.dcgm = dcgm
        self.generation = 0
        self._gpus: dict[str, NvmlGpu] = {}
        self._unopened: dict[int, str] = {}
        self._pending: dict[int, tuple[NvmlGpu | None, float]] = {}
        self._lock = threading.Lock()
        self._listing = threading.Lock()

    def gpus(self) -> list[Gpu]:
        """Every GPU and MIG instance; a GPU that is lost stays listed.

        A thread that would wait for another's listing, because the driver hangs, gets the last one.
        """
        if not self._listing.acquire(timeout=5):
            return list(self._gpus.values())
        try:
            self._list()
        finally:
            self._listing.release()
        return list(self._gpus.values())

    def _list(self) -> None:
        """Update the GPUs and their instances, in one thread at a time."""
        whole = [gpu for gpu in self._gpus.values() if gpu.parent is None]
        if not whole or all(gpu.gone or gpu.stale for gpu in whole):
            self._open()
        if self._unopened:
            self._take_handles()
        for gpu in [gpu for gpu in self._gpus.values() if gpu.parent is None]:
            gpu.ask_again()
            if not (gpu.stale or self._hangs(gpu)):
                self._list_instances(gpu)

    def call(
        self,
        function: str | Callable[..., Any],
        *arguments: Any,
        gpu: NvmlGpu | None = None,
        generation: int | None = None,
    ) -> Any:
        """Call one NVML function, by name or wrapped; its errors become ``DriverError``.

        Handles and pointers from a library that was unloaded since ``generation`` are never passed
        to its successor.
        """
        if isinstance(function, str):
            name, perform = function, getattr(pynvml, function)
        else:
            name, perform = function.__name__, function
        thread = threading.get_ident()
        with self._lock:
            if generation not in (None, self.generation):
                raise DriverError(f"{name}: the driver was reloaded")
            self._pending[thread] = gpu, self.monotonic()
        try:
            return perform(*arguments)
        except pynvml.NVMLError as error:
            kind = Unsupported if error.value in UNSUPPORTED else DriverError
            raise kind(explain(name, error)) from error
        finally:
            with self._lock:
                del self._pending[thread]

    def _hangs(self, gpu: NvmlGpu) -> bool:
        """Whether a call to this GPU has been pending for more than five seconds."""
        long_ago = self.monotonic() - 5
        with self._lock:
            return any(g is gpu and since < long_ago for g, since in self._pending.values())

    def _open(self) -> None:
        """Load and initialise the library from scratch, and get new handles."""
        self._unload()
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise DriverUnavailable(explain("nvmlInit", error)) from error
        self._unopened = dict.fromkeys(range(count), "")
        self._take_handles()

    def _take_handles(self) -> None:
        """Open the GPUs that are not open yet; one that fails is tried again later."""
        for index, complaint in list(self._unopened.items()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            except pynvml.NVMLError as error:
                if str(error) != complaint:
                    log.warning("GPU %d cannot be opened, trying again later: %s", index, error)
                self._unopened[index] = str(error)
                continue
            del self._unopened[index]
            known = self._gpus.get(uuid)
            if known is None:
                self._gpus[uuid] = NvmlGpu(self, handle, index, uuid)
            else:
                known.reopen(handle)

    def _unload(self) -> None:
        """Unload a library whose driver is gone, so that the current one can be loaded."""
        if pynvml.nvmlLib is None:
            return
        with self._lock:
            if self._pending:
                raise DriverUnavailable("cannot reopen the driver while a driver call hangs")
            self.generation += 1
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                log.debug("nvmlShutdown: %s", error)
            # pynvml never unloads the library. After a driver upgrade, the old one no longer
            # matches the kernel module (NVML error 18).
            pynvml._nvmlGetFunctionPointer_cache.clear()
            _ctypes.dlclose(pynvml.nvmlLib._handle)
            pynvml.nvmlLib = None

    def _list_instances(self, gpu: NvmlGpu) -> None:
        """Update the MIG instances of one GPU."""
        found: dict[str, Any] = {}
        try:
            if gpu.mig_mode():
                for index in range(self.call("nvmlDeviceGetMaxMigDeviceCount", gpu.handle)):
                    try:
                        handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
                    except pynvml.NVMLError_NotFound:
                        continue
                    found[str(self.call("nvmlDeviceGetUUID", handle))] = handle
        except Unsupported:
            pass
        except (DriverError, pynvml.NVMLError) as error:
            log.debug("%s: cannot list its MIG instances: %s", gpu.uuid, error)
            return
        for uuid in [u for u, g in self._gpus.items() if g.parent is gpu and u not in found]:
            del self._gpus[uuid]
        for uuid, handle in found.items():
            instance = self._gpus.get(uuid)
            if instance is None:
                try:
                    self._gpus[uuid] = NvmlGpu(self, handle, gpu.index, uuid, parent=gpu)
                except DriverError as error:
                    log.warning("%s: cannot be opened, trying again later: %s", uuid, error)
            elif instance.generation != self.generation:
                instance.reopen(handle)


class NvmlGpu:
    """One GPU or MIG instance; see ``driver.Gpu`` for what each method answers."""

    def __init__(
        self,
        driver: NvmlDriver,
        handle: Any,
        index: int,
        uuid: str,
        parent: NvmlGpu | None = None,
    ) -> None:
        self.driver = driver
        self.index = index
        self.uuid = uuid
        self.parent = parent
        self.reopen(handle)
        self.identity = self._identify()

    def reopen(self, handle: Any) -> None:
        """Start over with a new handle: everything kept for the old one is invalid."""
        self.handle = handle
        self.gone = False
        self._unsupported: set[str] = set()
        self._gpm: _Gpm | None = None
        self._events: tuple[int, Any] | None = None
        self._nvlink_kinds: list[int] = []
        self._nvlink_speeds: dict[int, float] = {}
        self._process_use_until = 0
        self.generation = self.driver.generation  # last, because readers check it first

    @property
    def stale(self) -> bool:
        """Whether the library that issued the handle was unloaded."""
        return self.generation != self.driver.generation

    def ask_again(self) -> None:
        """Forget what was unsupported: a new mode or permission may enable a sensor."""
        self._unsupported.clear()

    def _call(self, name: str, *arguments: Any, generation: int | None = None) -> Any:
        if name in self._unsupported:
            raise Unsupported(f"{name}: not supported by GPU {self.index}")
        generation = self.generation if generation is None else generation
        try:
            answer = self.driver.call(
                name, self.handle, *arguments, gpu=self, generation=generation
            )
        except Unsupported:
            self._unsupported.add(name)
            raise
        except DriverError as error:
            cause = error.__cause__
            self.gone = isinstance(cause, pynvml.NVMLError) and cause.value in GONE
            raise
        self.gone = False
        return answer

    def _optional(self, name: str, *arguments: Any) -> Any:
        try:
            return self._call(name, *arguments)
        except Unsupported:
            return None

    def _fields(self, *fields: int | tuple[int, int]) -> dict[tuple[int, int], float]:
        """Values of the fields that the driver answered, by (field, scope)."""
        key = f"fields {fields}"
        if key in self._unsupported:
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        answers = {
            (value.fieldId, value.scopeId): _field_value(value)
            for value in self._call("nvmlDeviceGetFieldValues", list(fields))
            if value.nvmlReturn == pynvml.NVML_SUCCESS
        }
        if not answers:
            self._unsupported.add(key)
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        return answers

    def _identify(self) -> Identity:
        board = self.parent or self
        pci = board._optional("nvmlDeviceGetPciInfo")
        capability = board._optional("nvmlDeviceGetCudaComputeCapability")
        return Identity(
            index=self.index,
            uuid=self.uuid,
            name=str(self._optional("nvmlDeviceGetName") or "unknown"),
            bus_id=_text(pci.busId).lower() if pci is not None else None,
            serial=board._optional("nvmlDeviceGetSerial"),
            vbios=board._optional("nvmlDeviceGetVbiosVersion"),
            compute_capability="{}.{}".format(*capability) if capability else None,
            parent=self.parent.uuid if self.parent else None,
            mig=self.parent is not None,
            minor=board._optional("nvmlDeviceGetMinorNumber"),
            gpu_instance=self._optional("nvmlDeviceGetGpuInstanceId") if self.parent else None,
        )

    def limits(self) -> Limits:
        board = self.parent or self
        width = board._optional("nvmlDeviceGetMemoryBusWidth")
        memory_clock = board._optional("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM)
        sm_clock = board._optional("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)
        generation = board._optional("nvmlDeviceGetMaxPcieLinkGeneration")
        lanes = board._optional("nvmlDeviceGetMaxPcieLinkWidth")
        speeds = [link.bytes_per_second for link in board._links_or_none() if link.up]
        return Limits(
            # Two transfers per clock: https://en.wikipedia.org/wiki/High_Bandwidth_Memory
            memory_bytes_per_second=(
                width / 8 * memory_clock * 1e6 * 2 if width and memory_clock else None
            ),
            nvlink_bytes_per_second=sum(s for s in speeds if s) or None,
            pcie_bytes_per_second=(
                PCIE_LANE[generation] * lanes if generation in PCIE_LANE and lanes else None
            ),
            sm_clock_hertz=sm_clock * 1e6 if sm_clock else None,
        )

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
        if self._gpm is None or self._gpm.generation != self.generation:
            support = (self.parent or self)._call("nvmlGpmQueryDeviceSupport")
            if not support.isSupportedDevice:
                raise Unsupported(f"GPM: not supported by GPU {self.index}")
            self._gpm = _Gpm(self)
        return self._gpm.read()

    def power_samples(self, after: int) -> Buffered:
        return self._samples(pynvml.NVML_TOTAL_POWER_SAMPLES, after, 1e-3)

    def utilization_samples(self, after: int) -> Buffered:
        return self._samples(pynvml.NVML_GPU_UTILIZATION_SAMPLES, after, 1e-2)

    def _samples(self, kind: int, after: int, scale: float) -> Buffered:
        key = f"nvmlDeviceGetSamples {kind}"
        if key in self._unsupported:
            raise Unsupported(f"{key}: not supported by GPU {self.index}")
        try:
            generation = self.generation
            packed = self.driver.call(
                _get_samples, self.handle, kind, after, gpu=self, generation=generation
            )
        except Unsupported:
            self._unsupported.add(key)
            raise
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_NotFound):
                return Buffered()  # an empty buffer, not a failure
            raise
        return Buffered([(time, value * scale) for time, value in SAMPLE.iter_unpack(packed)])

    def utilization(self) -> Utilization:
        rates = self._call("nvmlDeviceGetUtilizationRates")
        return Utilization(gpu=rates.gpu / 100, memory=rates.memory / 100)

    def power(self) -> float:
        return float(self._call("nvmlDeviceGetPowerUsage")) / 1e3

    def energy(self) -> float:
        return float(self._call("nvmlDeviceGetTotalEnergyConsumption")) / 1e3

    def memory(self) -> Memory:
        try:
            info = self._call("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        except Unsupported:
            # Version 1 counts the driver's reserve as used.
            generation = self.generation
            info = self.driver.call(
                "nvmlDeviceGetMemoryInfo", self.handle, gpu=self, generation=generation
            )
            return Memory(total=info.total, used=info.used, reserved=None)
        return Memory(info.total, info.total - info.free - info.reserved, info.reserved)

    def sm_clock(self) -> float:
        return float(self._call("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)) * 1e6

    def memory_clock(self) -> float:
        return float(self._call("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)) * 1e6

    def clock_events(self) -> list[str]:
        try:
            mask = self._call("nvmlDeviceGetCurrentClocksEventReasons")
        except Unsupported:
            mask = self._call("nvmlDeviceGetCurrentClocksThrottleReasons")
        return [name for bit, name in CLOCK_EVENTS.items() if mask & bit]

    def throttled(self) -> dict[str, float]:
        values = self._fields(*THROTTLED_NANOSECONDS)
        return {THROTTLED_NANOSECONDS[field]: ns / 1e9 for (field, _), ns in values.items()}

    def temperature(self) -> float:
        return float(self._call("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU))

    def memory_temperature(self) -> float:
        (celsius,) = self._fields(pynvml.NVML_FI_DEV_MEMORY_TEMP).values()
        return celsius

    def temperature_margin(self) -> float:
        return float(self._call("nvmlDeviceGetMarginTemperature"))

    def power_limits(self) -> PowerLimits:
        default = self._optional("nvmlDeviceGetPowerManagementDefaultLimit")
        return PowerLimits(
            enforced=self._call("nvmlDeviceGetEnforcedPowerLimit") / 1e3,
            default=default / 1e3 if default is not None else None,
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
            found += [Process(p.pid, p.usedGpuMemory, kind) for p in running or ()]
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
        samples = sorted(samples, key=lambda sample: sample.timeStamp)
        self._process_use_until = samples[-1].timeStamp if samples else 0
        latest = {sample.pid: sample.smUtil / 100 for sample in samples}
        return [ProcessUse(pid, share) for pid, share in latest.items()]

    def ecc_errors(self) -> dict[str, float]:
        kinds = {
            "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        return {
            name: float(self._call("nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_AGGREGATE_ECC))
            for name, kind in kinds.items()
        }

    def remapped_rows(self) -> RemappedRows:
        corrected, uncorrected, pending, failed = self._call("nvmlDeviceGetRemappedRows")
        return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))

    def recovery_action(self) -> str:
        (action,) = self._fields(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).values()
        return RECOVERY_ACTIONS.get(int(action), "other")

    def pcie_link(self) -> PcieLink:
        return PcieLink(
            generation=self._call("nvmlDeviceGetCurrPcieLinkGeneration"),
            width=self._call("nvmlDeviceGetCurrPcieLinkWidth"),
            max_generation=self._call("nvmlDeviceGetMaxPcieLinkGeneration"),
            max_width=self._call("nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def pcie_replays(self) -> float:
        return float(self._call("nvmlDeviceGetPcieReplayCounter"))

    def pcie_errors(self) -> dict[str, float]:
        return {PCIE_ERRORS[f]: count for (f, _), count in self._fields(*PCIE_ERRORS).items()}

    def nvlinks(self) -> list[NvLink]:
        ((_, count),) = self._fields(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT).items()
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
                bytes_per_second=_scaled(self._nvlink_speeds.get(link), 1e6),
                errors={
                    name: values[field, link]
                    for field, name in NVLINK_ERRORS.items()
                    if (field, link) in values
                },
            )
            for link in links
            if (state, link) in values
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
        return Fabric(FABRIC_STATES[info.state], {n: bit == 2 for n, bit in bits.items() if bit})

    def persistence(self) -> bool:
        return bool(self._call("nvmlDeviceGetPersistenceMode"))

    def mig_mode(self) -> bool:
        current, _ = self._call("nvmlDeviceGetMigMode")
        return bool(current)

    def xids(self) -> list[Xid]:
        generation = self.generation
        if self._events is None or self._events[0] != generation:
            events = self.driver.call("nvmlEventSetCreate", gpu=self, generation=generation)
            kind = pynvml.nvmlEventTypeXidCriticalError
            self._call("nvmlDeviceRegisterEvents", kind, events, generation=generation)
            self._events = generation, events
        _, events = self._events
        found: list[Xid] = []
        while True:
            try:
                event = self.driver.call(
                    "nvmlEventSetWait_v2", events, 0, gpu=self, generation=generation
                )
            except DriverError as error:
                if isinstance(error.__cause__, pynvml.NVMLError_Timeout):
                    return found
                raise
            found.append(Xid(int(event.eventData)))


class _Gpm:
    """Two alternating GPM snapshots, and the metrics that this GPU's driver knows.

    One unknown metric makes the whole call fail, so each is tried once on its own.
    """

    def __init__(self, gpu: NvmlGpu) -> None:
        self.gpu = gpu
        self.generation = gpu.generation
        self.previous = self._allocate()
        self.latest = self._allocate()
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
        values = self._means(self.metrics)
        return Activity(seconds, values)

    def _allocate(self) -> Any:
        return self.gpu.driver.call("nvmlGpmSampleAlloc", gpu=self.gpu, generation=self.generation)

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
            if answer.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(answer.value)
        }

    def _fill(self, metrics: tuple[gpm.GpmMetric, ...]) -> None:
        request = self.request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = self.previous, self.latest
        for place, metric in enumerate(metrics):
            request.metrics[place].metricId = metric.id
        self.gpu.driver.call("nvmlGpmMetricsGet", request, gpu=self.gpu, generation=self.generation)


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


def _field_value(field: Any) -> float:
    """The member of the union that ``valueType`` selects."""
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return float(getattr(field.value, member[field.valueType]))


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
