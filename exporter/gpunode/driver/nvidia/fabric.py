"""How a GPU stands with the NVSwitches: its registration, its domain, and what is healthy there.

States and masks: https://docs.nvidia.com/deploy/nvml-api/ (NVML_GPU_FABRIC_*).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pynvml

from gpunode.driver.driver import Fabric, Unsupported
from gpunode.driver.nvidia.device import Device

STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "not_supported",
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}

PARTS = {
    "bandwidth": (0, 0x3, {0: "", 1: "degraded", 2: "healthy"}),
    "route_recovery": (2, 0x3, {0: "", 1: "in_progress", 2: "healthy"}),
    "route": (4, 0x3, {0: "", 1: "unhealthy", 2: "healthy"}),
    "access_timeout": (6, 0x3, {0: "", 1: "in_recovery", 2: "healthy"}),
    "configuration": (
        8,
        0xF,
        {
            0: "",
            1: "healthy",
            2: "incorrect_system_guid",
            3: "incorrect_chassis_serial",
            4: "no_partition",
            5: "insufficient_nvlinks",
            6: "incompatible_gpu_firmware",
            7: "invalid_location",
            8: "gpu_state_invalid",
        },
    ),
    "partition": (12, 0x3, {0: "", 1: "healthy", 2: "not_assigned"}),
    "fabric_manager": (14, 0x3, {0: "", 1: "healthy", 2: "disconnected"}),
}
"""Where in ``healthMask`` each part has its bits, and what they say; nothing if not supported."""

MASK = 0xFFFF
"""All the bits of the parts."""

SUMMARIES = {0: "", 1: "healthy", 2: "unhealthy", 3: "limited_capacity"}


def fabric(device: Device) -> Fabric:
    """Registration, domain and health; see ``driver.Gpu``."""
    info = device.if_supported(_read_v3) or device.call(_read_v2)
    state = device.name("fabric state", STATES, info.state)
    if state is None or state == "not_supported":
        raise Unsupported(f"fabric: GPU {device.index} has none")
    found: dict[str, str | None] = {
        part: device.name(f"fabric {part}", names, info.healthMask >> shift & width)
        for part, (shift, width, names) in PARTS.items()
    }
    found["summary"] = device.name("fabric summary", SUMMARIES, getattr(info, "healthSummary", 0))
    device.bits("fabric health", {MASK: ""}, info.healthMask)
    if state == "completed" and info.status != pynvml.NVML_SUCCESS:
        state = found["registration"] = "failed"
    cluster = bytes(info.clusterUuid)
    return Fabric(
        state,
        healthy={part: name == "healthy" for part, name in found.items() if name},
        faults={part: name for part, name in found.items() if name and name != "healthy"},
        cluster=str(UUID(bytes=cluster)) if any(cluster) else None,
        clique=int(info.cliqueId) if any(cluster) else None,
        health_mask=int(info.healthMask),
    )


def _read_v3(handle: Any) -> Any:
    """Version 3 of the structure, since nvml.h 12.9."""
    return _ask(handle, pynvml.c_nvmlGpuFabricInfo_v3_t())


def _read_v2(handle: Any) -> Any:
    return _ask(handle, pynvml.c_nvmlGpuFabricInfo_v2_t())


def _ask(handle: Any, info: Any) -> Any:
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return info
