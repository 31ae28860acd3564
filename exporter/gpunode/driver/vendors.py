"""Every supported vendor of GPUs."""

from __future__ import annotations

from collections.abc import Callable

from gpunode.driver.driver import Driver, Vendor
from gpunode.driver.errands import DRIVER_TIMEOUT
from gpunode.driver.nvidia.dcgm import DcgmProfiling
from gpunode.driver.nvidia.nvml import NvmlDriver
from gpunode.driver.nvidia.vendor import NVIDIA

VENDORS: dict[str, Vendor] = {vendor.name: vendor for vendor in (NVIDIA,)}


def open_drivers(
    monotonic: Callable[[], float],
    dcgm_address: str = "",
    dcgm_bindings: str = "",
    patience: float = DRIVER_TIMEOUT,
) -> tuple[Driver, ...]:
    """The driver of each vendor; one that is not installed raises when asked for its GPUs.

    ``patience`` is how many seconds to wait for a GPU that does not answer.
    """
    dcgm = DcgmProfiling(dcgm_address, dcgm_bindings, monotonic) if dcgm_address else None
    return (NvmlDriver(monotonic, dcgm, patience),)
