"""How NVIDIA GPUs are identified outside their driver: by Kubernetes and on the PCI bus."""

from __future__ import annotations

import re
from string import ascii_uppercase

from gpunode.driver.driver import Identity, Vendor
from gpunode.driver.nvidia import xids

# https://github.com/GoogleCloudPlatform/container-engine-accelerators
GKE_DEVICE = re.compile(r"nvidia(?P<minor>\d+)(?:/gi(?P<instance>\d+))?(?:/vgpu\d+)?")
# Instance names before driver 470: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
OLD_MIG = re.compile(r"MIG-(?P<parent>GPU-[^/]+)/(?P<instance>\d+)/\d+")
# Devices of claims: https://github.com/NVIDIA/k8s-dra-driver-gpu (CanonicalName)
CLAIMED_GPU = re.compile(r"gpu-(?P<minor>\d+)")
CLAIMED_MIG = re.compile(r"gpu-(?P<minor>\d+)-mig-(?P<place>[0-9a-z]+(?:-[0-9a-z]+){2,})")
# Another GPU or instance, or a share of it; an amount of cores or memory, which is on none:
# https://github.com/volcano-sh/volcano-vgpu-device-plugin; or a GPU that a virtual machine has.
OTHER_DEVICE = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]+(?:-(?:core|memory)-\d+)?|gpu-vfio-\d+")
# The GPU of a Jetson has no UUID to the device plugin, and is its only one:
# https://github.com/NVIDIA/k8s-device-plugin/blob/main/internal/rm/tegra_devices.go
INTEGRATED = "tegra"
INTEGRATED_NAME = re.compile(r"\b(?:Xavier|Orin|Thor|nvgpu|Tegra|Jetson)\b", re.IGNORECASE)
# GPU-…::3 is the fourth replica of a shared GPU, as is GPU-…__3: https://github.com/grgalex/nvshare
# 0:GPU-…:3 is a share of the GPU that is number 0 there:
# https://github.com/coldzerofear/vgpu-manager (vnumberDevicePlugin.Devices)
NUMBERED = re.compile(r"\d{1,3}:(GPU-[0-9a-f-]{1,64}):(?=\d{1,4}$)")
SHARE = re.compile(r"::|__(?=\d+$)")


def is_device(gpu: Identity, device: str) -> bool | None:
    """Whether a kubelet device ID is this GPU or MIG instance, or a share of it.

    None if it may be: the driver does not tell, or the form is not known.
    """
    device = SHARE.split(NUMBERED.sub(r"\1::", device), maxsplit=1)[0]
    if device == gpu.uuid or _is_slot(gpu, device):
        return True
    if device == INTEGRATED:
        return not gpu.mig and (not gpu.bus_id or bool(INTEGRATED_NAME.search(gpu.name)))
    minor = gpu.index if gpu.minor is None else gpu.minor
    if match := GKE_DEVICE.fullmatch(device):
        instance = match["instance"] and int(match["instance"])
        return int(match["minor"]) == minor and instance == gpu.gpu_instance
    if match := OLD_MIG.fullmatch(device):
        return match["parent"] == gpu.parent and int(match["instance"]) == gpu.gpu_instance
    if match := CLAIMED_GPU.fullmatch(device):
        return int(match["minor"]) == minor and not gpu.mig
    if match := CLAIMED_MIG.fullmatch(device):
        claimed = _profile_and_start(match["place"].split("-"))
        if claimed is None:
            return None
        if int(match["minor"]) != minor or not gpu.mig:
            return False
        if gpu.mig_profile is None or gpu.mig_start is None:
            return None
        return claimed == (gpu.mig_profile, gpu.mig_start)
    # GPU-…-_-17 is 1 GiB of any GPU: which one, only the pod's annotations tell.
    # https://github.com/AliyunContainerService/gpushare-device-plugin (allocate.go)
    return False if OTHER_DEVICE.fullmatch(device) else None


def _profile_and_start(parts: list[str]) -> tuple[int, int] | None:
    """The ID of a MIG profile, and the first slice of memory.

    Since 25.12, the profile's name stands before these: ``1g18gb-19-4``; before, the size behind
    them: ``19-4-1``.
    """
    if len(parts) == 3 and all(part.isdecimal() for part in parts):
        parts = parts[:2]
    profile, start = parts[-2:]
    return (int(profile), int(start)) if profile.isdecimal() and start.isdecimal() else None


def _is_slot(gpu: Identity, device: str) -> bool:
    """Whether it is one of the slots GPU-…-0, GPU-…-1, … into which HAMi divides a GPU.

    https://github.com/Project-HAMi/HAMi (GetPluginDevices)
    """
    uuid, _, slot = device.rpartition("-")
    return uuid == gpu.uuid and slot.isascii() and slot.isdecimal()


NVIDIA = Vendor(
    name="nvidia",
    pci_id="0x10de",
    counters=("gpm", "dcgm"),
    watched_errors=xids.HARDWARE_XIDS,
    device_prefixes=("GPU-", "MIG-", "nvidia", INTEGRATED),
    device_resources=(
        *("nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/vgpu"),
        # GPUs and vGPUs that virtual machines have, of NVIDIA's plugin for KubeVirt: a name of
        # pci.ids or of a vGPU type, as NVIDIA_A2-1Q, or what the site calls all of them
        *("nvidia.com/pgpu", *(f"nvidia.com/{first}" for first in ascii_uppercase)),
        # shares of some GPU: only annotations of the pod tell of which
        *(
            "tencent.com/vcuda-",
            "tensor-fusion.ai/index",
            "elasticgpu.io/",
            "k8s.amazonaws.com/vgpu",
        ),
    ),
    claim_driver="gpu.nvidia.com",
    is_device=is_device,
)
