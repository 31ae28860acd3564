"""Lustre clients: bytes, operations and server latency of each filesystem.

Most of these files are under /proc before client version 2.13 and under debugfs, which only root
can read, from then on: https://doc.lustre.org/lustre_manual.xhtml#lustreproc
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from gpunode.config.daemon import Settings
from gpunode.host.mounts import MORE_MOUNTS
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import MAX_ITEMS, NodeSource, Reading, bounded, limit
from gpunode.unread import Unread

T = TypeVar("T")

FILESYSTEM = ("filesystem",)
BYTES = Metric(
    "gpunode_lustre_bytes_total",
    "counter",
    "Bytes read and written by programs, over all mounts of the filesystem, each since the daemon "
    "first saw it (llite/*/stats).",
    (*FILESYSTEM, "direction"),
)
OPERATIONS = Metric(
    "gpunode_lustre_operations_total",
    "counter",
    "Metadata operations by programs, over all mounts, each since the daemon first saw it "
    "(llite/*/stats).",
    (*FILESYSTEM, "operation"),
)
OPERATION_SECONDS = Metric(
    "gpunode_lustre_operation_seconds_total",
    "counter",
    "Time taken by metadata operations; requires Lustre client 2.14 or later (llite/*/stats).",
    (*FILESYSTEM, "operation"),
)
RPCS = Metric(
    "gpunode_lustre_rpcs_total",
    "counter",
    "Requests answered by object (data) and metadata servers, since the daemon first saw each "
    "target (osc, mdc/*/stats: req_waittime).",
    (*FILESYSTEM, "server"),
)
RPC_SECONDS = Metric(
    "gpunode_lustre_rpc_seconds_total",
    "counter",
    "Time from request to reply, over all requests (osc, mdc/*/stats: req_waittime).",
    (*FILESYSTEM, "server"),
)
IN_FLIGHT = Metric(
    "gpunode_lustre_rpcs_in_flight",
    "gauge",
    "Requests waiting for a reply (osc, mdc/*/import).",
    (*FILESYSTEM, "server"),
)
TIMEOUTS = Metric(
    "gpunode_lustre_rpc_timeouts_total",
    "counter",
    "Requests that timed out (osc, mdc/*/import).",
    (*FILESYSTEM, "server"),
)
TARGETS = Metric(
    "gpunode_lustre_targets",
    "gauge",
    "Storage and metadata targets by whether this client is connected to them (osc, mdc/*/import: "
    "state FULL or IDLE).",
    (*FILESYSTEM, "connected"),
)

BUSIEST_TARGET = Metric(
    "gpunode_lustre_busiest_target_ratio",
    "gauge",
    "Share of the time of requests to object servers since the last read that the named target "
    "took, the highest of all; 1 divided by the targets if data is spread evenly. Absent below "
    "one second in all (osc/*/stats: req_waittime).",
    (*FILESYSTEM, "target"),
)
STRIPES = Metric(
    "gpunode_lustre_default_stripes",
    "gauge",
    "Object targets over which a new file is spread, where its directory has no layout of its own "
    "(lov/*/stripecount).",
    FILESYSTEM,
)

ROOTS = ("/proc/fs/lustre", "/sys/kernel/debug/lustre")
SERVERS = {"osc": "data", "mdc": "metadata"}
CONNECTED = ("FULL", "IDLE")
NAMED_OPERATIONS = ("open", "close", "getattr", "readdir", "create", "unlink")
"""Metadata operations with a label of their own: those most frequent in training."""

OTHER_OPERATIONS = frozenset(
    {
        "setattr", "lookup", "mkdir", "rmdir", "mknod", "link", "symlink", "rename", "statfs",
        "truncate", "fsync", "flock", "getxattr", "setxattr", "listxattr", "removexattr",
    }
)  # fmt: skip

OTHER = "other"
MOUNT_COUNTERS = {
    *((BYTES, direction) for direction in ("read", "write")),
    *(
        (metric, name)
        for metric in (OPERATIONS, OPERATION_SECONDS)
        for name in (*NAMED_OPERATIONS, OTHER)
    ),
}
"""What a mount tells, each from the first such operation on."""

CLIENT = re.compile(r"(?P<filesystem>[\w.-]{1,8})-(?:OST|MDT)[0-9a-f]{4}-\w+-[0-9a-f]{16}")
"""The name of a client's target; servers also have such devices, with a different suffix."""

LOV = re.compile(r"(?P<filesystem>[\w.-]{1,8})-clilov-[0-9a-f]{8,16}")
"""The name of the layer that spreads files over targets:
https://doc.lustre.org/lustre_manual.xhtml#lustreproc"""

SETTINGS = ("/sys/fs/lustre", *ROOTS)
"""Where settings are: from Lustre 2.11 on, in sysfs."""

MIN_REQUEST_SECONDS = 1.0
"""Seconds of requests from which the busiest target is named."""

LLITE = re.compile(r"(?P<filesystem>[\w.-]{1,8})-[0-9a-f]{8,16}")

MORE_TARGETS = limit("lustre_targets")

MAX_TARGETS = 2048
"""The most targets to read per folder; a client has one per server disk."""


@dataclass(frozen=True, slots=True)
class Count:
    """A line of a stats file: the number of samples, and their sum if they have a value."""

    samples: float
    unit: str
    sum: float | None


@dataclass(frozen=True, slots=True)
class Import:
    """The state of a client's connection to one target."""

    state: str
    in_flight: float | None
    timeouts: float | None


@dataclass(slots=True)
class LustreFilesystem:
    """The result of one read of a filesystem, over all its targets."""

    in_flight: dict[str, float] = field(default_factory=dict)
    targets: dict[bool, int] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    """Seconds that requests took since the last read, by object target."""

    stripes: float | None = None


class LustreTotals:
    """Sums of counters over devices that come and go; each device counts from its first read.

    A device is a target, or a mount: a filesystem may be mounted for each pod.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[Metric, str, str], float] = {}
        self._last: dict[str, dict[tuple[Metric, str], float]] = {}
        """By device."""

    def add(self, metric: Metric, filesystem: str, label: str, device: str, value: float) -> float:
        """Add the increase of a device's counter, which is returned, or nothing after a reset."""
        last = self._last.setdefault(device, {})
        before = last.get((metric, label), value)
        last[metric, label] = value
        key = metric, filesystem, label
        gained = max(0.0, value - before)
        self.sums[key] = self.sums.get(key, 0.0) + gained
        return gained

    def begin(self, metric: Metric, label: str, device: str) -> None:
        """Count from 0 what a device does not tell yet, as it is told from the first time on."""
        self._last.setdefault(device, {}).setdefault((metric, label), 0.0)

    def keep(self, devices: set[str]) -> None:
        """Forget all other devices."""
        self._last = {name: last for name, last in self._last.items() if name in devices}


def parse_stats(text: str) -> dict[str, Count]:
    """Parse lines such as ``open 5 samples [usec] 1 9 20 90``. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines():
        name, *fields = line.split()[:8] or [""]
        if len(fields) >= 3 and fields[1] == "samples":
            total = counter(fields[5]) if len(fields) >= 6 else None
            found[name] = Count(counter(fields[0]), fields[2].strip("[]"), total)
    return found


def parse_stripes(text: str, targets: int) -> float:
    """The targets of a file: -1 stands for all ``targets``, 0 for one. Raises ``ValueError``."""
    stripes = int(text)
    if not -1 <= stripes < 1 << 16:
        raise ValueError(f"not a stripe count: {text[:80]!r}")
    return float(targets if stripes == -1 else max(1, stripes))


def parse_import(text: str) -> Import:
    """Parse an import file. Raises ``ValueError``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.strip().partition(":")
        if colon and name in ("state", "inflight", "timeouts"):
            fields.setdefault(name, value.strip())
    if "state" not in fields:
        raise ValueError("Lustre import file: no state in it")
    in_flight, timeouts = (fields.get(name) for name in ("inflight", "timeouts"))
    return Import(
        fields["state"],
        None if in_flight is None else counter(in_flight),
        None if timeouts is None else counter(timeouts),
    )


class Lustre:
    """Reads every Lustre filesystem mounted on this node."""

    name = "lustre"
    needs = "a Lustre filesystem; from Lustre 2.13 on, root, for its files below /sys/kernel/debug"
    metrics = (
        BYTES,
        OPERATIONS,
        OPERATION_SECONDS,
        RPCS,
        RPC_SECONDS,
        IN_FLIGHT,
        TIMEOUTS,
        TARGETS,
        BUSIEST_TARGET,
        STRIPES,
    )
    unknowns = (MORE_TARGETS, MORE_MOUNTS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self.totals = LustreTotals()
        self._left_out: dict[str, tuple[Unread, ...]] = {}
        """By what there is too much of, in this read."""

        self._seen: set[str] = set()
        """The devices that are there, in this read."""

    def read(self) -> Reading:
        found: dict[str, LustreFilesystem] = {}
        self._left_out, self._seen = {}, set()
        for root in ROOTS:
            self._read_clients(root, found)
            for kind, server in SERVERS.items():
                self._read_targets(f"{root}/{kind}", server, found)
        for root in SETTINGS:
            self._read_stripes(root, found)
        self.totals.keep(self._seen)
        unread = tuple(one for each in self._left_out.values() for one in each)
        return Reading((*_samples(found), *self._total_samples(found)), unread=unread)

    def _total_samples(self, found: dict[str, LustreFilesystem]) -> Iterator[Sample]:
        """The totals of filesystems that are still mounted."""
        for (metric, filesystem, server), total in self.totals.sums.items():
            if filesystem in found:
                yield from metric.at(total, filesystem, server)

    def _read_clients(self, root: str, found: dict[str, LustreFilesystem]) -> None:
        for name, fsname in self._devices(f"{root}/llite", LLITE, found):
            stats = self._stats(f"{root}/llite/{name}/stats")
            if stats is None:
                continue
            counted = _mount_counters(stats)
            for (metric, label), value in counted.items():
                self.totals.add(metric, fsname, label, name, value)
            for metric, label in MOUNT_COUNTERS - counted.keys():
                self.totals.begin(metric, label, name)

    def _read_targets(self, folder: str, server: str, found: dict[str, LustreFilesystem]) -> None:
        for name, fsname in self._devices(folder, CLIENT, found):
            filesystem = found[fsname]
            waited = (self._stats(f"{folder}/{name}/stats") or {}).get("req_waittime")
            if waited is not None and waited.sum is not None:
                self.totals.add(RPCS, fsname, server, name, waited.samples)
                gained = self.totals.add(RPC_SECONDS, fsname, server, name, waited.sum / 1e6)
                if server == SERVERS["osc"]:
                    target = name.removeprefix(f"{fsname}-").partition("-")[0]
                    _add(filesystem.waited, target, gained)
            try:
                link = parse_import(self.node.read_text(f"{folder}/{name}/import"))
            except (OSError, ValueError):
                continue
            connected = link.state in CONNECTED
            filesystem.targets[connected] = filesystem.targets.get(connected, 0) + 1
            if link.in_flight is not None:
                _add(filesystem.in_flight, server, link.in_flight)
            if link.timeouts is not None:
                self.totals.add(TIMEOUTS, fsname, server, name, link.timeouts)

    def _read_stripes(self, root: str, found: dict[str, LustreFilesystem]) -> None:
        for name, fsname in self._devices(f"{root}/lov", LOV, found):
            filesystem = found[fsname]
            targets = len(filesystem.waited)
            with suppress(OSError, ValueError):
                text = self.node.read_text(f"{root}/lov/{name}/stripecount")
                filesystem.stripes = parse_stripes(text, targets) or None

    def _devices(
        self, folder: str, form: re.Pattern[str], found: dict[str, LustreFilesystem]
    ) -> Iterator[tuple[str, str]]:
        """The devices in a folder, each with the name of its filesystem."""
        try:
            listed = self.node.list_directory(folder)
        except OSError:
            return
        names, self._left_out[folder] = bounded(listed, MORE_TARGETS, MAX_TARGETS, "Lustre targets")
        for name in names:
            match = form.fullmatch(name)
            if match is None:
                continue
            filesystem = match["filesystem"]
            if filesystem in found or len(found) < MAX_ITEMS:
                found.setdefault(filesystem, LustreFilesystem())
                self._seen.add(name)
                yield name, filesystem
            else:
                self._left_out[""] = (
                    MORE_MOUNTS.seen(f"more than {MAX_ITEMS} Lustre filesystems"),
                )

    def _stats(self, path: str) -> dict[str, Count] | None:
        try:
            return parse_stats(self.node.read_text(path))
        except (OSError, ValueError):
            return None


def _add(totals: dict[T, float], key: T, value: float) -> None:
    totals[key] = totals.get(key, 0.0) + value


def _samples(found: dict[str, LustreFilesystem]) -> Iterator[Sample]:
    for name, filesystem in found.items():
        for server, value in filesystem.in_flight.items():
            yield from IN_FLIGHT.at(value, name, server)
        yield from STRIPES.at(filesystem.stripes, name)
        if sum(filesystem.waited.values()) >= MIN_REQUEST_SECONDS:
            target, most = max(filesystem.waited.items(), key=lambda item: item[1])
            yield from BUSIEST_TARGET.at(most / sum(filesystem.waited.values()), name, target)
        if filesystem.targets:
            for connected in (True, False):
                count = float(filesystem.targets.get(connected, 0))
                yield from TARGETS.at(count, name, str(connected).lower())


def _mount_counters(stats: dict[str, Count]) -> dict[tuple[Metric, str], float]:
    """The counters of a mount, by metric and label; a line is missing until the first operation."""
    found: dict[tuple[Metric, str], float] = {}
    for direction in ("read", "write") if stats else ():
        moved = stats.get(f"{direction}_bytes")
        found[BYTES, direction] = (moved.sum if moved else None) or 0.0
    for operation, count in stats.items():
        if operation in NAMED_OPERATIONS or operation in OTHER_OPERATIONS:
            label = operation if operation in NAMED_OPERATIONS else OTHER
            _add(found, (OPERATIONS, label), count.samples)
            if count.sum is not None and count.unit.startswith("usec"):
                _add(found, (OPERATION_SECONDS, label), count.sum / 1e6)
    return found


NODE_SOURCE: NodeSource = Lustre
