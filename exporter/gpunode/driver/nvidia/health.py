"""What tells whether a GPU is healthy: XID events, memory errors, and what the driver advises."""

from __future__ import annotations

import contextlib
from typing import Any

import pynvml

from gpunode.driver.driver import DriverError, RemappedRows, Unsupported, Xid
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.possible import COUNTS, FLAGS, ROWS, reading
from gpunode.driver.nvidia.xids import RECOVERY_ACTIONS

REMAP_AVAILABILITIES = ("max", "high", "partial", "low", "none")
MAX_EVENTS = 256
"""More XID events than a window has."""


class XidEvents:
    """Takes the XID events of one GPU out of the set that they come to.

    There is one set for each life of the library, also if the GPU is lost or cannot be registered:
    NVML keeps a set until it is freed, and a call may be waiting on it.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._set: tuple[int, Any] | None = None
        self._registered: Any = None

    def read(self) -> list[Xid]:
        """Events since the last call; never waits for one."""
        device, generation = self.device, self.device.generation
        events = self._event_set(generation)
        found: list[Xid] = []
        for _ in range(MAX_EVENTS):
            try:
                event = device.library.call(
                    "nvmlEventSetWait_v2", events, 0, gpu=device.uuid, generation=generation
                )
            except DriverError as error:
                if isinstance(error.__cause__, pynvml.NVMLError_Timeout):
                    return found
                raise
            found.append(Xid(int(event.eventData)))
        return found

    def _event_set(self, generation: int) -> Any:
        if self._set is None or self._set[0] != generation:
            events = self.device.library.call("nvmlEventSetCreate", generation=generation)
            self._set = generation, events
            self._registered = None
        handle = self.device.handle
        if self._registered is not handle:
            kind, events = pynvml.nvmlEventTypeXidCriticalError, self._set[1]
            self.device.call("nvmlDeviceRegisterEvents", kind, events, generation=generation)
            self._registered = handle
        return self._set[1]


def ecc_errors(device: Device, since: int) -> dict[str, float]:
    """ECC errors by whether they were corrected; ``since`` is a counter of NVML."""
    kinds = {
        "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    }
    return {
        name: reading("ECC errors", device.call("nvmlDeviceGetTotalEccErrors", kind, since), COUNTS)
        for name, kind in kinds.items()
    }


def remapped_rows(device: Device) -> RemappedRows:
    """Rows of memory that spares stand in for; see ``driver.Gpu``, as for the functions below.

    Whole banks may wait for a reset as well (drivers from R615 on).
    """
    corrected, uncorrected, pending, failed = device.call("nvmlDeviceGetRemappedRows")
    banks = 0.0
    with contextlib.suppress(Unsupported):
        (banks,) = device.fields(pynvml.NVML_FI_DEV_PENDING_BANK_REMAPPING).values()
    return RemappedRows(
        reading("remapped rows", corrected, ROWS),
        reading("remapped rows", uncorrected, ROWS),
        bool(reading("pending remap", pending, FLAGS)) or banks == 1,
        bool(reading("failed remap", failed, FLAGS)),
    )


def remap_banks(device: Device) -> dict[str, float]:
    """Banks of memory by how many of their spare rows are left."""
    histogram = device.call("nvmlDeviceGetRowRemapperHistogram")
    return {name: reading("banks", getattr(histogram, name), ROWS) for name in REMAP_AVAILABILITIES}


def sram_worn(device: Device) -> bool:
    """Whether uncorrectable errors of the SRAM exceed the driver's threshold."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    device.call("nvmlDeviceGetSramEccErrorStatus", pynvml.byref(status))
    return bool(reading("SRAM threshold", status.bThresholdExceeded, FLAGS))


def memory_unrepairable(device: Device) -> bool:
    """Whether memory is broken for good; drivers of 2026 and later say."""
    flag = device.call("nvmlDeviceGetUnrepairableMemoryFlag_v1")
    return bool(reading("unrepairable memory", flag, FLAGS))


def recovery_action(device: Device) -> str:
    """What the driver advises, one of ``RECOVERY_ACTIONS`` or ``other``."""
    (action,) = device.fields(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).values()
    return device.name("recovery action", RECOVERY_ACTIONS, int(action)) or "other"


def inforom_valid(device: Device) -> bool:
    """Whether the checksums of the board's own memory of settings are right."""
    try:
        device.call("nvmlDeviceValidateInforom")
    except DriverError as error:
        if isinstance(error.__cause__, pynvml.NVMLError_CorruptedInforom):
            return False
        raise
    return True
