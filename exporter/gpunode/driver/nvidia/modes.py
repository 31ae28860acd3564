"""The modes of a GPU that not every GPU has: virtual machines, Confidential Compute, its module."""

from __future__ import annotations

import contextlib

import pynvml

from gpunode.driver.driver import DriverError, Mode, ModulePower, Unsupported
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.possible import LIMITS, SHARES, WATTS, in_range, reading, scaled

VIRTUALIZATION: dict[int, Mode] = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "passthrough",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "vgpu",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "host_vgpu",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "host_vsga",
}


def modes(device: Device) -> list[Mode]:
    """The modes that the GPU is in; a question that the driver does not answer adds none."""
    found: list[Mode] = []
    virtual = VIRTUALIZATION.get(device.if_answered("nvmlDeviceGetVirtualizationMode"))
    if virtual is not None:
        found.append(virtual)
    with contextlib.suppress(DriverError):
        found += _confidential_compute(device)
    with contextlib.suppress(DriverError):
        (enabled,) = device.fields(pynvml.NVML_FI_PWR_SMOOTHING_ENABLED).values()
        if enabled == 1:
            found.append("power_smoothing")
    found += _power_management(device)
    return found


def _power_management(device: Device) -> list[Mode]:
    """What lowers or moves the power limit, of those that drivers from R590 on tell."""
    found: list[Mode] = []
    with contextlib.suppress(DriverError):
        (percent,) = device.fields(pynvml.NVML_FI_DEV_EDPP_MULTIPLIER).values()
        if 0 < percent < 100:
            found.append("lowered_peak_power")
    with contextlib.suppress(DriverError):
        adaptive = pynvml.c_nvmlAdaptiveTgpModeInfo_v1_t()
        device.call("nvmlDeviceGetAdaptiveTgpModeInfo_v1", pynvml.byref(adaptive))
        if adaptive.enablementStatus == pynvml.NVML_FEATURE_ENABLED:
            found.append("adaptive_power_limit")
    with contextlib.suppress(DriverError):
        profiles = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        device.call("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", pynvml.byref(profiles))
        if any(profiles.enforcedProfilesMask.mask):
            found.append("power_profile")
    return found


def _confidential_compute(device: Device) -> list[Mode]:
    state = device.library.call(
        "nvmlSystemGetConfComputeState", gpu=device.uuid, generation=device.generation
    )
    if state.ccFeature != pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED:
        return []
    if state.devToolsMode == pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_ON:
        return ["confidential_compute", "confidential_compute_debug"]
    return ["confidential_compute"]


def module_power(device: Device) -> ModulePower:
    """What the module draws. Raises ``Unsupported`` for a GPU that is its own module."""
    module = pynvml.NVML_POWER_SCOPE_MODULE
    draw, limit = pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT
    values = device.fields((draw, module), (limit, module))
    watts = in_range(scaled(values.get((draw, module)), 1e-3), WATTS)
    if not watts:
        raise Unsupported(f"module power: GPU {device.index} is its own module")
    return ModulePower(watts, in_range(scaled(values.get((limit, module)), 1e-3), LIMITS))


def power_smoothing_left(device: Device) -> float:
    """Share of the life of the circuits for power smoothing that is left."""
    field = pynvml.NVML_FI_PWR_SMOOTHING_HW_CIRCUITRY_PERCENT_LIFETIME_REMAINING
    (percent,) = device.fields(field).values()
    return reading("power smoothing", percent / 100, SHARES)
