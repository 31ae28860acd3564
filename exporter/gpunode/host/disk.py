"""Block devices: I/O and latency.

https://docs.kernel.org/admin-guide/iostats.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.host.hwmon import parse_temperature
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading, bounded, limit

MORE_DISKS, MORE_CONTROLLERS = limit("disks"), limit("nvme_controllers")

OPERATIONS = Metric(
    "gpunode_disk_operations_total",
    "counter",
    "Completed requests (/proc/diskstats).",
    ("disk", "direction"),
)
BYTES = Metric(
    "gpunode_disk_bytes_total",
    "counter",
    "Bytes read and written (/proc/diskstats).",
    ("disk", "direction"),
)
WAIT = Metric(
    "gpunode_disk_wait_seconds_total",
    "counter",
    "Time completed requests spent queued and in service; divide by the operations for the mean "
    "latency (/proc/diskstats).",
    ("disk", "direction"),
)
BUSY = Metric(
    "gpunode_disk_busy_seconds_total",
    "counter",
    "Time with at least one request in flight; a disk that serves requests in parallel may have "
    "capacity left (/proc/diskstats: io_ticks).",
    ("disk",),
)
IN_FLIGHT = Metric(
    "gpunode_disk_requests_in_flight",
    "gauge",
    "Requests in flight (/proc/diskstats).",
    ("disk",),
)
TEMPERATURE = Metric(
    "gpunode_disk_temperature_celsius",
    "gauge",
    "Composite temperature of the NVMe controller (/sys/class/nvme/CONTROLLER/hwmon*/temp1_input).",
    ("controller",),
)
STATE = Metric(
    "gpunode_disk_controller_live",
    "gauge",
    "Whether the NVMe controller is in the state `live` (/sys/class/nvme/CONTROLLER/state).",
    ("controller",),
)

CONTROLLERS = "/sys/class/nvme"

SECTOR = 512.0
"""Bytes per sector in /proc/diskstats, whatever the disk's own sector size."""

WHOLE_DISK = re.compile(
    r"nvme\d+n\d+|sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|md\d+|mmcblk\d+|dasd[a-z]+|pmem\d+"
    r"|rbd\d+|nbd\d+|drbd\d+|bcache\d+|zd\d+"
)
"""Whole disks, md arrays and disks over a network: no partitions, and no loop, RAM or device-mapper
devices."""

PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")
"""A path to an NVMe disk that has several: before Linux 6.2, only the paths count requests.
https://github.com/torvalds/linux/commit/d4d957b53d91"""


@dataclass(frozen=True, slots=True)
class Disk:
    """Counters of a disk since boot; each pair is (read, write)."""

    operations: tuple[float, float]
    bytes: tuple[float, float]
    wait_seconds: tuple[float, float]
    in_flight: float
    busy_seconds: float


def parse(text: str) -> dict[str, Disk]:
    """Parse the whole disks in /proc/diskstats. Raises ``ValueError``."""
    found: dict[str, Disk] = {}
    paths: dict[str, list[Disk]] = {}
    for line in text.splitlines():
        name, *fields = line.split()[2:] or [""]
        path = PATH.fullmatch(name)
        if not path and not WHOLE_DISK.fullmatch(name):
            continue
        if len(fields) < 11:
            raise ValueError(f"not a line of /proc/diskstats: {line[:80]!r}")
        reads, _, read, reading, writes, _, written, writing, in_flight, busy, _ = map(
            counter, fields[:11]
        )
        disk = Disk(
            (reads, writes),
            (read * SECTOR, written * SECTOR),
            (reading / 1e3, writing / 1e3),
            in_flight,
            busy / 1e3,
        )
        if path:
            paths.setdefault(path[1] + path[2], []).append(disk)
        else:
            found[name] = disk
    for name, several in paths.items():
        if name not in found or not any(found[name].operations):
            found[name] = _over_paths(several)
    return found


def _over_paths(paths: list[Disk]) -> Disk:
    """A disk by its paths, of which several may be busy at a time."""

    def total(pair: Callable[[Disk], tuple[float, float]]) -> tuple[float, float]:
        return sum(pair(path)[0] for path in paths), sum(pair(path)[1] for path in paths)

    return Disk(
        total(lambda path: path.operations),
        total(lambda path: path.bytes),
        total(lambda path: path.wait_seconds),
        sum(path.in_flight for path in paths),
        max(path.busy_seconds for path in paths),
    )


class Disks:
    """Reads all disks, and the state and temperature of NVMe controllers."""

    name = "disk"
    needs = "a disk, and /proc and /sys of the node: its root at path.rootfs"
    metrics = (OPERATIONS, BYTES, WAIT, BUSY, IN_FLIGHT, TEMPERATURE, STATE)
    unknowns = (MORE_DISKS, MORE_CONTROLLERS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        found = parse(self.node.read_text("/proc/diskstats"))
        disks, left_out = bounded(found.items(), MORE_DISKS)
        try:
            listed = self.node.list_directory(CONTROLLERS)
        except OSError:
            listed = []
        controllers, without = bounded(listed, MORE_CONTROLLERS, of="NVMe controllers")
        samples = (*_samples(dict(disks)), *self._controllers(controllers))
        return Reading(samples, unread=(*left_out, *without))

    def _controllers(self, names: list[str]) -> Iterator[Sample]:
        for name in names:
            try:
                state = self.node.read_text(f"{CONTROLLERS}/{name}/state").strip()
                yield from STATE.at(float(state == "live"), name)
            except OSError:
                continue
            try:
                (monitor,) = (
                    entry
                    for entry in self.node.list_directory(f"{CONTROLLERS}/{name}")
                    if re.fullmatch(r"hwmon\d+", entry)
                )
                path = f"{CONTROLLERS}/{name}/{monitor}/temp1_input"
                yield from TEMPERATURE.at(parse_temperature(self.node.read_text(path)), name)
            except (OSError, ValueError):
                continue


def _samples(disks: dict[str, Disk]) -> Iterator[Sample]:
    for name, disk in disks.items():
        for metric, pair in (
            (OPERATIONS, disk.operations),
            (BYTES, disk.bytes),
            (WAIT, disk.wait_seconds),
        ):
            yield Sample(metric, (name, "read"), pair[0])
            yield Sample(metric, (name, "write"), pair[1])
        yield from BUSY.at(disk.busy_seconds, name)
        yield from IN_FLIGHT.at(disk.in_flight, name)


NODE_SOURCE: NodeSource = Disks
