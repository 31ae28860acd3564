"""What the node runs: versions of its drivers, firmware, kernel and system.

One series a node, whose labels are the versions: ``count by (driver) (gpunode_node_info)`` says
which nodes differ. The firmware of GPUs is in ``gpunode_gpu_info``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError, list_gpus
from gpunode.driver.errands import Errands
from gpunode.host import mounts, node_name
from gpunode.host.infiniband import FOLDER as INFINIBAND
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node, names_in, text_of
from gpunode.source import MAX_ITEMS, NodeSource, Reading
from gpunode.text import printable

VERSIONS = (
    "driver",
    "cuda",
    "kernel",
    "os",
    "rdma",
    "lustre",
    "product",
    "bios",
    "bmc",
    "nvswitch",
)
INFO = Metric(
    "gpunode_node_info",
    "gauge",
    "Always 1; the name of the `node` in Kubernetes or Slurm, the NVIDIA `driver`, the newest "
    "`cuda` that it supports, `kernel`, `os`, drivers of `rdma` adapters, `lustre` client, and "
    "the server's firmware (`product`, `bios`, `bmc`, `nvswitch`). A label is empty if unknown.",
    ("node", *VERSIONS),
)
ADAPTER = Metric(
    "gpunode_infiniband_info",
    "gauge",
    "Always 1; the firmware of an RDMA adapter, and its `board`: adapters of the same board should "
    "have the same firmware (fw_ver, board_id).",
    ("device", "board", "firmware"),
)

READ_INTERVAL = 60.0
"""Seconds between reads."""

MAX_VERSION = 96
"""Characters of a version."""

RDMA_DRIVERS = ("mlx5_core", "efa", "bnxt_re", "irdma", "hns_roce_hw_v2", "cxi_ss1")
"""Modules that tell a version of their own: those from outside the kernel's source do."""

SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
"""https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/kernel-open/nvidia/procfs_nvswitch.c"""

PLATFORM = "/sys/bus/platform/devices"
BMC = re.compile(r"ipmi_bmc\.\d+")
"""https://github.com/torvalds/linux/blob/master/drivers/char/ipmi/ipmi_msghandler.c"""

SWITCH_BIOS = re.compile(r"^BIOS Version: ([0-9a-f]{2}(?:\.[0-9a-f]{2}){4})$", re.MULTILINE)
ASSIGNED = re.compile(r"^(?P<name>[A-Z_]{1,32})=(?P<quote>[\"']?)(?P<value>[^\"']*)(?P=quote)$")
DMI = "/sys/class/dmi/id"
"""https://github.com/torvalds/linux/blob/master/drivers/firmware/dmi-id.c"""

UNNAMED = {
    "",
    "unknown",
    "none",
    "n/a",
    "not specified",
    "to be filled by o.e.m.",
    "default string",
}
"""What firmware says that names nothing."""


def parse_release(text: str) -> dict[str, str]:
    """The variables of an os-release file.

    https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    """
    found = (ASSIGNED.match(line.strip()) for line in text.split("\n"))
    return {match["name"]: match["value"] for match in found if match}


def parse_switch(text: str) -> str:
    """The version of an NVSwitch's firmware, such as 96.10.55.00.01. Raises ``ValueError``."""
    match = SWITCH_BIOS.search(text)
    if match is None:
        raise ValueError("no BIOS version")
    return match[1]


class NodeVersions:
    """Reads what the node runs, and the firmware of its RDMA adapters."""

    name = "versions"
    needs = "/sys, /proc and /etc of the node: its root at path.rootfs"
    metrics = (INFO, ADAPTER)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self.every = READ_INTERVAL
        self._errands = Errands()
        self._layers: bool | None = None

    def read(self) -> Reading:
        called = node_name.given_name(self.node, self.settings)
        found = {
            **self._driver_versions(),
            "kernel": text_of(self.node, "/proc/sys/kernel/osrelease"),
            "os": self._system(),
            "rdma": self._rdma(),
            "lustre": text_of(self.node, "/sys/fs/lustre/version"),
            "product": self._dmi("product_name"),
            "bios": self._dmi("bios_version"),
            "bmc": self._bmc(),
            "nvswitch": self._switches(),
        }
        values = tuple(printable(found[what], MAX_VERSION) for what in VERSIONS)
        info = INFO.at(1.0, called, *values) if called or any(values) else ()
        return Reading((*info, *self._adapters()))

    def _driver_versions(self) -> dict[str, str]:
        """The versions of the driver and of CUDA; of a driver that hangs, that of its module."""
        told = {"driver": "", "cuda": ""}
        self._errands.run({"versions of the driver": lambda: self._ask(told)})
        module = text_of(self.node, "/sys/module/nvidia/version")
        return {**told, "driver": module or told["driver"]}

    def _ask(self, told: dict[str, str]) -> None:
        gpus, _ = list_gpus(self.node.drivers)
        for gpu in gpus:
            for what, ask in (("driver", gpu.driver_version), ("cuda", gpu.cuda_version)):
                with contextlib.suppress(DriverError):
                    told[what] = ask()
            if all(told.values()):
                return

    def _system(self) -> str:
        """The name of the system with the version of its image, and that of DGX OS."""
        if self._is_container():
            return ""
        release: dict[str, str] = {}
        for path in ("/etc/os-release", "/usr/lib/os-release"):
            release = release or parse_release(text_of(self.node, path))
        name = release.get("PRETTY_NAME") or release.get("NAME", "")
        image = release.get("IMAGE_VERSION") or release.get("BUILD_ID", "")
        dgx = parse_release(text_of(self.node, "/etc/dgx-release"))
        version = dgx.get("DGX_OTA_VERSION") or dgx.get("DGX_SWBUILD_VERSION")
        parts = (name, image if image not in name else "", f"DGX OS {version}" if version else "")
        return ", ".join(part for part in parts if part)

    def _is_container(self) -> bool:
        """Whether /etc is that of a container, whose own process 1 has a root of layers."""
        if self._layers is None:
            try:
                root = mounts.visible(
                    mounts.parse(mounts.read_as_node(self.node, "mountinfo")), "/"
                )
            except OSError:
                root = None
            self._layers = root is not None and root.kind == "overlay"
        return self._layers

    def _rdma(self) -> str:
        told = ((name, text_of(self.node, f"/sys/module/{name}/version")) for name in RDMA_DRIVERS)
        return ", ".join(f"{name} {version}" for name, version in told if version)

    def _dmi(self, name: str) -> str:
        """What the firmware of the server says of itself."""
        text = text_of(self.node, f"{DMI}/{name}")
        return "" if text.lower() in UNNAMED else text

    def _bmc(self) -> str:
        for name in names_in(self.node, PLATFORM):
            if BMC.fullmatch(name):
                return text_of(self.node, f"{PLATFORM}/{name}/firmware_revision")
        return ""

    def _switches(self) -> str:
        """The firmware of the node's NVSwitches: each version once."""
        found = set()
        for name in names_in(self.node, SWITCHES)[:MAX_ITEMS]:
            try:
                found.add(parse_switch(self.node.read_text(f"{SWITCHES}/{name}/information")))
            except (OSError, ValueError):
                continue
        return ", ".join(sorted(found))

    def _adapters(self) -> Iterator[Sample]:
        for device in names_in(self.node, INFINIBAND)[:MAX_ITEMS]:
            folder = f"{INFINIBAND}/{device}"
            firmware = text_of(self.node, f"{folder}/fw_ver")
            board = text_of(self.node, f"{folder}/board_id") or text_of(
                self.node, f"{folder}/hca_type"
            )
            if firmware:
                yield from ADAPTER.at(
                    1.0, device, printable(board, MAX_VERSION), printable(firmware, MAX_VERSION)
                )


NODE_SOURCE: NodeSource = NodeVersions
