"""Firmware: the same on the same hardware of a node. How nodes differ, only Prometheus sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpunode.audit.check import NO_ADAPTER, Check, Observation, Subject, Undecided, each
from gpunode.driver.driver import Gpu, optional
from gpunode.driver.nvidia.vendor import NVIDIA
from gpunode.host.infiniband import FOLDER as INFINIBAND


def _compare_versions(versions: Iterable[tuple[str, str, str]]) -> Observation:
    """Compare versions, given as (name, kind, version), among those of a kind."""
    kinds: dict[str, dict[str, str]] = {}
    for name, kind, version in versions:
        kinds.setdefault(kind, {})[name] = version
    usual = [(found, Counter(found.values()).most_common(1)[0][0]) for found in kinds.values()]
    return each(
        {
            name: None if version == most else f"{version}, others {most}"
            for found, most in usual
            for name, version in found.items()
        }
    )


def _gpu_versions(gpu: Gpu) -> str:
    """The versions of a GPU's firmware, in words."""
    told = {"VBIOS": gpu.identity.vbios or "", **(optional(gpu.firmware) or {})}
    return ", ".join(f"{what} {version}" for what, version in told.items() if version)


def _gpus(subject: Subject) -> Observation:
    gpus = {f"GPU {gpu.identity.index}": gpu for gpu in subject.gpus_of(NVIDIA.name)}
    told = ((name, gpu.identity.name, _gpu_versions(gpu)) for name, gpu in gpus.items())
    return _compare_versions(one for one in told if one[2])


def _adapters(subject: Subject) -> Observation:
    found = []
    for device in subject.names(INFINIBAND):
        folder = f"{INFINIBAND}/{device}"
        if {"board_id", "fw_ver"} <= set(subject.names(folder)):
            board, version = (subject.text(f"{folder}/{f}") for f in ("board_id", "fw_ver"))
            found.append((device, board, version))
    if not found:
        raise Undecided(NO_ADAPTER)
    return _compare_versions(found)


CHECKS = (
    Check(
        "gpu_firmware",
        "the same on all GPUs of a model",
        "A board that was replaced or missed an update may run at other clocks and limits, and "
        "every collective waits for the slowest GPU.",
        "update the firmware as the vendor of the server says; nvidia-smi -q | grep -i version",
        "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html",
        _gpus,
    ),
    Check(
        "nic_firmware",
        "the same on all adapters of a board",
        "With other firmware, an adapter may have other defaults for congestion control and PCIe, "
        "and the ring is as fast as its slowest adapter.",
        "mlxfwmanager --query; update the adapters that differ, then reset them",
        "https://docs.kernel.org/admin-guide/abi-stable-files.html",
        _adapters,
    ),
)
