"""NVIDIA GPUs and their driver; the checks of another vendor belong in another file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from gpunode.audit.check import NO_ADAPTER, Check, Observation, Subject, Undecided, each
from gpunode.driver.driver import Gpu, optional
from gpunode.driver.nvidia.vendor import NVIDIA
from gpunode.holders.pods import POD_LOGS
from gpunode.verdict.causes.limits import LIMIT_LOWERED

T = TypeVar("T")
RESTORES_MIG = re.compile(r"\bmig\b")
"""Names of services such as nvidia-mig-manager.service:
https://github.com/NVIDIA/mig-parted/tree/main/deployments/systemd"""

NVML = "https://docs.nvidia.com/deploy/nvml-api"


def _check_gpus(
    ask: Callable[[Gpu], Callable[[], T]], wrong: Callable[[T], str | None]
) -> Callable[[Subject], Observation]:
    """Check one value of every GPU that reports it."""

    def look(subject: Subject) -> Observation:
        answers = {gpu.identity.index: optional(ask(gpu)) for gpu in subject.gpus_of(NVIDIA.name)}
        return each({f"GPU {at}": wrong(a) for at, a in answers.items() if a is not None})

    return look


def _driver_versions(subject: Subject) -> Observation:
    _, errors = subject.listed
    wrong = errors.get(NVIDIA.name, "")
    if "mismatch" in wrong.lower():
        return Observation(False, wrong)
    modules = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")
    versions = {}
    for module in modules:
        if "version" in subject.names(f"/sys/module/{module}"):
            versions[module] = subject.text(f"/sys/module/{module}/version")
    if "nvidia" not in versions:
        raise Undecided("the NVIDIA driver is not loaded")
    right = versions["nvidia"]
    return each({module: None if v == right else v for module, v in versions.items()})


def _ecc(subject: Subject) -> Observation:
    counted = {gpu.identity.index: optional(gpu.ecc_errors) for gpu in subject.gpus_of(NVIDIA.name)}
    return each({f"GPU {at}": None if errors else "off" for at, errors in counted.items()})


def _mig_layout(subject: Subject) -> Observation:
    if not any(gpu.identity.mig for gpu in subject.listed[0]):
        raise Undecided("no MIG instance")
    units = "/etc/systemd/system"
    if not (wanted := [name for name in subject.names(units) if name.endswith(".wants")]):
        raise Undecided(f"no services in {units}")
    services = [name for folder in wanted for name in subject.names(f"{units}/{folder}")]
    pods = [name for name in subject.names(POD_LOGS) if "mig-manager" in name]
    found = sorted(filter(RESTORES_MIG.search, services)) + (["mig-manager's pod"] if pods else [])
    return Observation(bool(found), found[0] if found else "no service creates them at boot")


def _peer_memory(subject: Subject) -> Observation:
    if not subject.rdma_ports:
        raise Undecided(NO_ADAPTER)
    lines = map(str.split, subject.text("/proc/modules").splitlines())
    modules = {words[0] for words in lines if words}
    if modules & {"nvidia_peermem", "nv_peer_mem"}:
        return Observation(True, "nvidia_peermem is loaded")
    driver = subject.text("/proc/driver/nvidia/version")
    if "Open Kernel Module" in driver:
        return Observation(True, "the open kernel modules use DMA-BUF")
    return Observation(False, "nvidia_peermem is not loaded")


CHECKS = (
    Check(
        "persistence_mode",
        "on",
        "Otherwise the driver unloads when the last process ends, and the next takes seconds to "
        "start.",
        "systemctl enable --now nvidia-persistenced",
        "https://docs.nvidia.com/deploy/driver-persistence/",
        _check_gpus(lambda gpu: gpu.persistence, lambda on: None if on else "off"),
    ),
    Check(
        "gpu_power_limit",
        "the board's default",
        "With a lowered limit, the GPU reduces its clocks long before it has to.",
        "nvidia-smi -i GPU -pl DEFAULT",
        f"{NVML}/group__nvmlDeviceQueries.html",
        _check_gpus(
            lambda gpu: gpu.power_limits,
            lambda limits: (
                f"{limits.enforced:g} of {limits.default:g} W"
                if limits.default and limits.enforced < LIMIT_LOWERED * limits.default
                else None
            ),
        ),
    ),
    Check(
        "gpu_clocks",
        "not limited by a setting",
        "Application or locked clocks below the maximum make every step longer.",
        "nvidia-smi -rgc; nvidia-smi -rac",
        f"{NVML}/group__nvmlClocksEventReasons.html",
        _check_gpus(
            lambda gpu: gpu.clock_events,
            lambda reasons: "limited by a setting" if "clocks_setting" in reasons else None,
        ),
    ),
    Check(
        "ecc",
        "on",
        "Without ECC, a flipped bit becomes a wrong gradient that nobody notices.",
        "nvidia-smi -e 1, then reset the GPU",
        "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/",
        _ecc,
    ),
    Check(
        "gpu_memory_repair",
        "no row remapping pending or failed",
        "A pending remapping requires a reset; after a failed one, the GPU must be replaced.",
        "drain the node and reset the GPU: nvidia-smi -i GPU -r; replace it if that fails",
        "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/",
        _check_gpus(
            lambda gpu: gpu.remapped_rows,
            lambda rows: "failed" if rows.failed else "pending" if rows.pending else None,
        ),
    ),
    Check(
        "gpu_recovery",
        "no recovery action",
        "The driver asks for a reset or reboot after an error; results of the GPU may be wrong.",
        "drain the node, then do what the driver asks for",
        "https://docs.nvidia.com/deploy/xid-errors/",
        _check_gpus(
            lambda gpu: gpu.recovery_action, lambda action: None if action == "none" else action
        ),
    ),
    Check(
        "gpu_pcie_link",
        "highest supported width",
        "Lost lanes halve the bandwidth to the host and to network adapters.",
        "reseat the board; nvidia-smi -q -i GPU | grep -A8 'Link Width'",
        f"{NVML}/group__nvmlDeviceQueries.html",
        _check_gpus(
            lambda gpu: gpu.pcie_link,
            lambda link: (
                None if link.width >= link.max_width else f"x{link.width} of x{link.max_width}"
            ),
        ),
    ),
    Check(
        "nvlinks",
        "all up",
        "NCCL works around a link that is down, and all GPUs run at the speed of the slowest.",
        "nvidia-smi nvlink -s; reset the GPU; if the link stays down, have it inspected",
        f"{NVML}/group__NvLink.html",
        _check_gpus(
            lambda gpu: gpu.nvlinks,
            lambda links: (
                None
                if all(link.up for link in links)
                else f"{sum(not link.up for link in links)} of {len(links)} down"
            ),
        ),
    ),
    Check(
        "fabric_manager",
        "every GPU has joined the NVSwitch fabric",
        "Without the fabric manager, CUDA on NVSwitch machines fails or runs without NVLink.",
        "systemctl enable --now nvidia-fabricmanager, in the same version as the driver",
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
        _check_gpus(
            lambda gpu: gpu.fabric,
            lambda fabric: None if fabric.state == "completed" else fabric.state,
        ),
    ),
    Check(
        "driver_versions",
        "the same version of all kernel modules",
        "After an upgrade without a reboot, new processes find no GPU.",
        "reboot, or reload the NVIDIA kernel modules",
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
        _driver_versions,
    ),
    Check(
        "mig_layout",
        "a service that creates the MIG instances at boot",
        "MIG instances are gone after a reboot, and from Hopper on so is the MIG mode: the node "
        "comes back with whole GPUs, and pods that ask for instances wait.",
        "systemctl enable nvidia-mig-manager, or the GPU Operator's mig-manager",
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
        _mig_layout,
    ),
    Check(
        "gpudirect_rdma",
        "nvidia_peermem, or the open GPU driver with DMA-BUF",
        "Otherwise NCCL copies all traffic to other nodes through host memory.",
        "modprobe nvidia_peermem",
        "https://docs.nvidia.com/cuda/gpudirect-rdma/",
        _peer_memory,
    ),
)
