"""How NVIDIA GPUs are identified outside their driver: by Kubernetes and on the PCI bus."""

from __future__ import annotations

import re

from gpunode.driver.driver import Identity, Vendor
from gpunode.driver.nvidia import xids

# https://github.com/GoogleCloudPlatform/container-engine-accelerators
GKE_DEVICE = re.compile(r"nvidia(?P<minor>\d+)(?:/gi(?P<instance>\d+))?(?:/vgpu\d+)?")
# Instance names before driver 470: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
OLD_MIG = re.compile(r"MIG-(?P<parent>GPU-[^/]+)/(?P<instance>\d+)/\d+")
# https://github.com/NVIDIA/k8s-dra-driver-gpu
CLAIMED_DEVICE = re.compile(r"gpu-(?P<minor>\d+)")


def is_device(gpu: Identity, device: str) -> bool:
    """Whether a kubelet device ID is this GPU or MIG instance, or a time slice of it."""
    device = device.partition("::")[0]  # GPU-…::3 is the fourth replica of a shared GPU
    if device == gpu.uuid:
        return True
    minor = gpu.index if gpu.minor is None else gpu.minor
    if match := GKE_DEVICE.fullmatch(device):
        instance = match["instance"] and int(match["instance"])
        return int(match["minor"]) == minor and instance == gpu.gpu_instance
    if match := OLD_MIG.fullmatch(device):
        return match["parent"] == gpu.parent and int(match["instance"]) == gpu.gpu_instance
    if match := CLAIMED_DEVICE.fullmatch(device):
        return int(match["minor"]) == minor and not gpu.mig
    return False


NVIDIA = Vendor(
    name="nvidia",
    pci_id="0x10de",
    counters=("gpm", "dcgm"),
    watched_errors=xids.WATCHED,
    device_prefixes=("GPU-", "MIG-", "nvidia"),
    claim_driver="gpu.nvidia.com",
    is_device=is_device,
)
