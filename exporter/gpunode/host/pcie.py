"""PCI Express links of GPUs and network adapters, and the adapters nearest to each GPU.

https://docs.kernel.org/PCI/sysfs-pci.html
https://docs.kernel.org/PCI/pcieaer-howto.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.driver.vendors import VENDORS
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node, names_in, text_of
from gpunode.source import NodeSource, Reading, bounded, limit
from gpunode.unread import Unread

MORE_DEVICES = limit("pcie_devices")

DEVICE = ("bus_id", "kind")
INFO = Metric(
    "gpunode_pcie_device_info",
    "gauge",
    "Always 1; a GPU or network adapter in the list of PCI devices, whether or not its driver "
    "works; not if it is passed through to a virtual machine (/sys/bus/pci/devices).",
    DEVICE,
)
WIDTH = Metric(
    "gpunode_pcie_link_width_lanes",
    "gauge",
    "Lanes in use on the link (/sys/bus/pci/devices/BUS_ID/current_link_width).",
    DEVICE,
)
WIDTH_MAX = Metric(
    "gpunode_pcie_link_width_max_lanes",
    "gauge",
    "Lanes that the device supports (/sys/bus/pci/devices/BUS_ID/max_link_width).",
    DEVICE,
)
SPEED = Metric(
    "gpunode_pcie_link_speed_transfers_per_second",
    "gauge",
    "Current transfer rate per lane (/sys/bus/pci/devices/BUS_ID/current_link_speed).",
    DEVICE,
)
SPEED_MAX = Metric(
    "gpunode_pcie_link_speed_max_transfers_per_second",
    "gauge",
    "Highest transfer rate per lane that the device supports "
    "(/sys/bus/pci/devices/BUS_ID/max_link_speed).",
    DEVICE,
)
DEGRADED = Metric(
    "gpunode_pcie_link_degraded",
    "gauge",
    "Whether the link has fewer lanes than the device supports or, for a network adapter, a "
    "lower speed.",
    DEVICE,
)
AER = Metric(
    "gpunode_pcie_aer_errors_total",
    "counter",
    "Link errors reported by the device (/sys/bus/pci/devices/BUS_ID/aer_dev_SEVERITY).",
    (*DEVICE, "severity"),
)
NEAREST = Metric(
    "gpunode_pcie_nearest_nic_info",
    "gauge",
    "Always 1; the network adapters nearest to a GPU, and what they share with it: a PCI Express "
    "switch, a host bridge, a NUMA node, or nothing.",
    ("bus_id", "nic_bus_id", "nic", "proximity"),
)

DEVICES = "/sys/bus/pci/devices"
PASSED_THROUGH = "/sys/bus/pci/drivers/vfio-pci"
"""Devices that virtual machines have: https://docs.kernel.org/driver-api/vfio.html"""

GPU_VENDORS = frozenset(vendor.pci_id for vendor in VENDORS.values())
SEVERITIES = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
MAX_BRIDGES = 8
"""The most bridges above a device to follow; real machines have three or four."""

NEAREST_NICS = 2
"""The most adapters to export for one GPU if several are equally near."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU or network adapter; ``above`` are the bridges above it, beginning at the root."""

    bus_id: str
    kind: str
    above: tuple[str, ...]
    numa_node: str
    names: tuple[str, ...]


def parse_speed(text: str) -> float:
    """Transfers per second from a speed such as ``32.0 GT/s PCIe``. Raises ``ValueError``."""
    number, unit = text.split()[:2]
    value = float(number)
    if unit != "GT/s" or not 0 < value < 1e4:
        raise ValueError(f"not a link speed: {text[:80]!r}")
    return value * 1e9


def parse_total(text: str, severity: str) -> float:
    """The total at the end of an aer_dev file. Raises ``ValueError``."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == f"TOTAL_ERR_{SEVERITIES[severity]}":
            return counter(value)
    raise ValueError("aer_dev file: no total in it")


class Pcie:
    """Reads the links; searches for devices again only when the list of PCI devices changes."""

    name = "pcie"
    needs = "a GPU or network adapter on PCI Express, and /sys of the node: its root at path.rootfs"
    metrics = (INFO, WIDTH, WIDTH_MAX, SPEED, SPEED_MAX, DEGRADED, AER, NEAREST)
    unknowns = (MORE_DEVICES,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.slow_interval
        self._listed: list[str] = []
        self._devices: list[PciDevice] = []
        self._left_out: tuple[Unread, ...] = ()

    def read(self) -> Reading:
        samples: list[Sample] = []
        for device in self.devices():
            samples += INFO.at(1.0, device.bus_id, device.kind)
            samples += self._link_samples(device)
            samples += self._error_samples(device)
        return Reading((*samples, *nearest(self._devices)), unread=self._left_out)

    def devices(self) -> list[PciDevice]:
        """The GPUs and network adapters that no virtual machine has. Raises ``OSError``."""
        try:
            passed_through = names_in(self.node, PASSED_THROUGH)
            listed = [d for d in self.node.list_directory(DEVICES) if d not in passed_through]
        except FileNotFoundError:
            listed = []
        if listed != self._listed:
            self._devices, self._left_out = bounded(
                self._find(listed), MORE_DEVICES, of="GPUs and adapters"
            )
            self._listed = listed
        return self._devices

    def _find(self, listed: list[str]) -> Iterator[PciDevice]:
        above = dict(self._paths("/sys/devices", ()))
        for bus_id in listed:
            folder = f"{DEVICES}/{bus_id}"
            vendor = text_of(self.node, f"{folder}/vendor")
            kind = text_of(self.node, f"{folder}/class")
            if vendor in GPU_VENDORS and kind.startswith(("0x0300", "0x0302")):
                name = "gpu"
            elif kind.startswith(("0x0200", "0x0207")):
                name = "nic"
            else:
                continue
            numa_node = text_of(self.node, f"{folder}/numa_node")
            names = [
                n for part in ("infiniband", "net") for n in names_in(self.node, f"{folder}/{part}")
            ]
            yield PciDevice(bus_id, name, above.get(bus_id, ()), numa_node, tuple(names))

    def _paths(self, folder: str, above: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every device below a folder with the bridges above it, which are the parent folders."""
        if len(above) > MAX_BRIDGES:
            return
        for name in names_in(self.node, folder):
            if ADDRESS.fullmatch(name):
                yield name, above
            elif above or not re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", name):
                continue
            yield from self._paths(f"{folder}/{name}", (*above, name))

    def _link_samples(self, device: PciDevice) -> Iterator[Sample]:
        at, folder = (device.bus_id, device.kind), f"{DEVICES}/{device.bus_id}"
        try:
            width = counter(self.node.read_text(f"{folder}/current_link_width"))
            width_max = counter(self.node.read_text(f"{folder}/max_link_width"))
            speed = parse_speed(self.node.read_text(f"{folder}/current_link_speed"))
            speed_max = parse_speed(self.node.read_text(f"{folder}/max_link_speed"))
        except (OSError, ValueError):
            return  # no links in virtual machines
        yield from WIDTH.at(width, *at)
        yield from WIDTH_MAX.at(width_max, *at)
        yield from SPEED.at(speed, *at)
        yield from SPEED_MAX.at(speed_max, *at)
        slower = device.kind != "gpu" and speed < speed_max
        yield from DEGRADED.at(float(width < width_max or slower), *at)

    def _error_samples(self, device: PciDevice) -> Iterator[Sample]:
        for severity in SEVERITIES:
            try:
                text = self.node.read_text(f"{DEVICES}/{device.bus_id}/aer_dev_{severity}")
                total = parse_total(text, severity)
            except (OSError, ValueError):
                continue
            yield from AER.at(total, device.bus_id, device.kind, severity)


def nearest(devices: list[PciDevice]) -> Iterator[Sample]:
    """The adapters that share the most with each GPU."""
    adapters = [device for device in devices if device.kind == "nic"]
    for gpu in (device for device in devices if device.kind == "gpu"):
        ranked = sorted(adapters, key=lambda nic: (-closeness(gpu, nic)[0], nic.bus_id))
        for nic in ranked[:NEAREST_NICS]:
            rank, words = closeness(gpu, nic)
            if rank == closeness(gpu, ranked[0])[0]:
                name = nic.names[0] if nic.names else ""
                yield Sample(NEAREST, (gpu.bus_id, nic.bus_id, name, words), 1.0)


def closeness(one: PciDevice, other: PciDevice) -> tuple[int, str]:
    """How close two devices are: a rank to compare, and a label."""
    shared = 0
    for mine, theirs in zip(one.above, other.above, strict=False):
        if mine != theirs:
            break
        shared += 1
    # The first bridge above a device is the host bridge, the second a root port.
    if shared >= 2:
        return 2 + shared, "same_switch"
    if shared == 1:
        return 3, "same_root"
    if one.numa_node == other.numa_node and one.numa_node not in ("", "-1"):
        return 2, "same_numa_node"
    return 1, "far"


NODE_SOURCE: NodeSource = Pcie
