"""GPU Operational Events: errors that drivers from R615 on tell in fields, beside XIDs.

They are a preview: categories, modules and codes may change from driver to driver, so those without
a name here count as unread. What has an XID is also told as that, by NVML and in the kernel log.
https://docs.nvidia.com/deploy/gpu-operational-events/
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from gpunode.driver.driver import DriverError, OperationalEvent, Unsupported
from gpunode.driver.nvidia.device import Device
from gpunode.text import printable

MAX_EVENTS = 256
MAX_CONTEXTS = 16
MAX_MODULE = 16
"""Characters of a module's signature, such as GPU-NVLINK."""

SEVERITIES = {
    pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_INFORMATIONAL: "informational",
    pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_CORRECTED: "corrected",
    pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_RECOVERABLE: "recoverable",
    pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_FATAL: "fatal",
}
CATEGORIES = {
    1: "timeout",
    2: "memory",
    3: "interconnect",
    4: "corruption",
    5: "security",
    6: "power",
    7: "thermal",
}
"""https://docs.nvidia.com/deploy/gpu-operational-events/latest/event-catalog.html"""

OTHER = "other"


class OperationalEvents:
    """Takes the events of one GPU out of the set that they come to, from recoverable ones on.

    There is one set for each life of the library, as for XIDs.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._set: tuple[int, Any] | None = None
        self._registered = False
        self._unsupported = -1

    def read(self) -> list[OperationalEvent]:
        """Events since the last call; never waits for one. Raises ``Unsupported`` before R615."""
        generation = self.device.generation
        if self._unsupported == generation or self.device.parent is not None:
            raise Unsupported("GPU Operational Events: not supported by this driver")
        try:
            events = self._event_set(generation)
            found: list[OperationalEvent] = []
            while len(found) < MAX_EVENTS:
                said = pynvml.c_nvmlEventSetWait_v3_t(timeoutMs=0)
                try:
                    self._call("nvmlEventSetWait_v3", events, said)
                except DriverError as error:
                    if isinstance(error.__cause__, pynvml.NVMLError_Timeout):
                        break
                    raise
                if said.dataType == pynvml.NVML_EVENT_DATA_TYPE_GPU_OPERATIONAL_EVENT:
                    found.append(self._event(said, events))
        except Unsupported:
            self._unsupported = generation
            raise
        return found

    def _call(self, function: str, *arguments: Any) -> Any:
        device = self.device
        return device.library.call(
            function, *arguments, gpu=device.uuid, generation=device.generation
        )

    def _event_set(self, generation: int) -> Any:
        if self._set is None or self._set[0] != generation:
            self._set, self._registered = (generation, self._call("nvmlEventSetCreate")), False
        if not self._registered:
            wanted = pynvml.c_nvmlGpuOperationalEventConfig_v1_t(
                self.device.uuid, minSeverity=pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_RECOVERABLE
            )
            self._call("nvmlEventSetRegisterGpuOperationalEvents_v1", self._set[1], wanted)
            self._registered = True
        return self._set[1]

    def _event(self, said: Any, events: Any) -> OperationalEvent:
        device = self.device
        # pynvml decodes text strictly. This returns what the driver wrote.
        module = bytes(ctypes.Structure.__getattribute__(said, "sourceModule"))
        return OperationalEvent(
            printable(module.decode(errors="replace"), MAX_MODULE).lower(),
            int(said.moduleEventCode),
            device.name("category of an operational event", CATEGORIES, said.categoryId) or OTHER,
            device.name("severity of an operational event", SEVERITIES, said.severity) or OTHER,
            _origin(said),
            int(said.traceId),
            self._xid(events),
        )

    def _xid(self, events: Any) -> int | None:
        """The XID that says the same as the event that was taken last."""
        contexts = pynvml.c_nvmlEventSetGetContextCount_v1_t()
        self._call("nvmlEventSetGetContextCount_v1", events, contexts)
        for index in range(min(contexts.count, MAX_CONTEXTS)):
            about = pynvml.c_nvmlEventSetGetContextInfo_v1_t(index=index)
            self._call("nvmlEventSetGetContextInfo_v1", events, about)
            kind = about.nvmlGpuOperationalEventContextType
            if kind == pynvml.NVML_GPU_OPERATIONAL_EVENT_CONTEXT_TYPE_LEGACY_XID:
                xid = pynvml.c_nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1_t(index=index)
                self._call("nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1", events, xid)
                return int(xid.xidCode)
        return None


def _origin(said: Any) -> str:
    for bit, origin in (
        (pynvml.NVML_OPERATIONAL_EVENT_GROUP_ATTR_SIMULATED, "simulated"),
        (pynvml.NVML_OPERATIONAL_EVENT_GROUP_ATTR_PREVERR, "before"),
        (pynvml.NVML_OPERATIONAL_EVENT_GROUP_ATTR_RECOVERED, "recovered"),
    ):
        if said.groupAttributes & bit:
            return origin
    if said.attributes & pynvml.NVML_OPERATIONAL_EVENT_ATTR_PROPAGATED:
        return "propagated"
    alone = said.groupSize <= 1
    primary = said.attributes & pynvml.NVML_OPERATIONAL_EVENT_ATTR_PRIMARY
    return "primary" if primary or alone else "secondary"
