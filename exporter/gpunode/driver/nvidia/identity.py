"""Who a GPU is: its UUID, name, place on the PCI bus, and place on its board if it is MIG's."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pynvml

from gpunode.driver.driver import DriverError, Identity
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.library import Library
from gpunode.driver.nvidia.possible import CUDA_VERSIONS, as_integer, reading
from gpunode.text import printable

MAX_TEXT = 96
"""Characters of a text: ``NVML_DEVICE_NAME_V2_BUFFER_SIZE``."""

# pynvml decodes text strictly. These return what the driver wrote.
_get_name = pynvml.nvmlDeviceGetName.__wrapped__
_get_uuid = pynvml.nvmlDeviceGetUUID.__wrapped__
_get_serial = pynvml.nvmlDeviceGetSerial.__wrapped__
_get_vbios = pynvml.nvmlDeviceGetVbiosVersion.__wrapped__
_get_driver_version = pynvml.nvmlSystemGetDriverVersion.__wrapped__
FIRMWARE = {
    "gsp": pynvml.nvmlDeviceGetGspFirmwareVersion,
    "inforom": pynvml.nvmlDeviceGetInforomImageVersion.__wrapped__,
}


def uuid_of(library: Library, handle: Any, generation: int) -> str:
    """The UUID of the GPU or MIG instance that a handle reaches. Raises ``DriverError``."""
    uuid = label(library.call(_get_uuid, handle, generation=generation))
    if not uuid:
        raise DriverError("nvmlDeviceGetUUID: an empty answer")
    return uuid


def driver_version(library: Library, generation: int) -> str:
    """The version of the driver, such as 580.159.04. Raises ``DriverError``."""
    return label(library.call(_get_driver_version, generation=generation))


def cuda_version(library: Library, generation: int) -> str:
    """The newest version of CUDA that the driver supports: 13.0 for 13000.

    Raises ``DriverError``.
    """
    version = library.call("nvmlSystemGetCudaDriverVersion_v2", generation=generation)
    version = int(reading("CUDA version", version, CUDA_VERSIONS))
    return f"{version // 1000}.{version % 1000 // 10}"


def firmware(board: Device) -> dict[str, str]:
    """The versions of the GPU's firmware that it tells: of a corrupted InfoROM, none."""
    found = {what: label(board.if_answered(ask)) for what, ask in FIRMWARE.items()}
    return {what: version for what, version in found.items() if version}


def identify(device: Device) -> Identity:
    """What the driver says of this GPU; what it does not say is None."""
    board = device.board
    pci = board.if_answered("nvmlDeviceGetPciInfo")
    instance = _number(device, "nvmlDeviceGetGpuInstanceId") if device.parent else None
    place = None if instance is None else board.if_answered(_get_instance_info, instance)
    return Identity(
        index=device.index,
        uuid=device.uuid,
        name=label(device.if_supported(_get_name)) or "unknown",
        bus_id=_sysfs_address(label(_bus_id(pci))) or None if pci else None,
        serial=label(board.if_answered(_get_serial)) or None,
        vbios=label(board.if_answered(_get_vbios)) or None,
        compute_capability=_compute_capability(board),
        parent=device.parent.uuid if device.parent else None,
        mig=device.parent is not None,
        minor=_number(board, "nvmlDeviceGetMinorNumber"),
        gpu_instance=instance,
        mig_profile=place and as_integer(place.profileId),
        mig_start=place and as_integer(place.placement.start),
    )


def label(value: bytes | None) -> str:
    """Text of the driver as a label."""
    return printable((value or b"").decode(errors="replace"), MAX_TEXT)


def _number(device: Device, function: str) -> int | None:
    return as_integer(device.if_answered(function))


def _compute_capability(board: Device) -> str | None:
    version = board.if_answered("nvmlDeviceGetCudaComputeCapability")
    return "{}.{}".format(*version) if version and max(version) < 100 else None


def _get_instance_info(handle: Any, instance: int) -> Any:
    """Profile and place of a GPU instance."""
    return pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(handle, instance))


def _bus_id(pci: Any) -> bytes:
    return bytes(ctypes.Structure.__getattribute__(pci, "busId"))


def _sysfs_address(bus_id: str) -> str:
    """A PCI address as the kernel writes it: 0000:1b:00.0 for 00000000:1B:00.0."""
    return re.sub(r"^0{1,4}(?=[0-9a-f]{4,7}:)", "", bus_id.lower())
