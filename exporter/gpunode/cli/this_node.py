"""The node that this process runs on, and the drivers of its GPUs."""

from __future__ import annotations

import time

from gpunode.config.daemon import DcgmSettings
from gpunode.config.path import PathSettings
from gpunode.driver.driver import Gpu, list_gpus
from gpunode.driver.errands import DRIVER_TIMEOUT
from gpunode.driver.vendors import open_drivers
from gpunode.node.local import LocalNode

WAKE_TIMEOUT = 60.0
"""Seconds to wait for the GPUs of a node without persistence mode, which the driver wakes one by
one; the daemon does not wait, as it finds them later."""


def local_node(
    path: PathSettings, dcgm: DcgmSettings | None = None, patience: float = DRIVER_TIMEOUT
) -> LocalNode:
    """The machine that this process runs on; ``patience`` is for its GPU drivers."""
    address, bindings = (dcgm.address, dcgm.bindings) if dcgm else ("", "")
    drivers = open_drivers(time.monotonic, address, bindings, patience)
    return LocalNode(path.rootfs, drivers, path.helpers)


def whole_gpus(node: LocalNode) -> tuple[list[Gpu], str]:
    """The GPUs without MIG instances, and what the drivers complain of."""
    found, errors = list_gpus(node.drivers)
    return [gpu for gpu in found if not gpu.identity.mig], "; ".join(errors.values())
