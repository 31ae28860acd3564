"""NCCL's debug log: the transports and channels of each communicator.

NCCL writes it if a job starts with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from gpunode.config import Settings
from gpunode.driver.driver import Gpu, known
from gpunode.gpu import GPU
from gpunode.jobs.processes import own_pid
from gpunode.metric import Metric, Sample
from gpunode.node.node import MAX_FILE, Node
from gpunode.source import MANY, Divided, GpuSource, Reading

COMMUNICATOR = (*GPU, "communicator")
INFO = Metric(
    "gpunode_nccl_communicator_info",
    "gauge",
    "A communicator of a process on the GPU: its rank, the number of ranks and nodes, the network "
    "and the NCCL version (NCCL_DEBUG_FILE).",
    (*COMMUNICATOR, "rank", "ranks", "nodes", "network", "version"),
)
CHANNELS = Metric(
    "gpunode_nccl_channels",
    "gauge",
    "Connections of the communicator to other ranks by transport, one per channel and peer: P2P is "
    "NVLink or PCI Express, SHM is host memory, NET/IB with GDRDMA is directly from GPU memory "
    "(NCCL_DEBUG_FILE).",
    (*COMMUNICATOR, "transport"),
)
TOPOLOGY = Metric(
    "gpunode_nccl_topology_channels",
    "gauge",
    "Channels of the communicator by topology: rings, trees or NVLS (NCCL_DEBUG_FILE).",
    (*COMMUNICATOR, "topology"),
)
WARNINGS = Metric(
    "gpunode_nccl_warnings_total",
    "counter",
    "NCCL warnings of processes on the GPU (NCCL_DEBUG_FILE: NCCL WARN).",
    GPU,
)

LATEST = 8
"""The most communicators per process to export: the latest."""

# Line formats: https://github.com/NVIDIA/nccl, src/init.cc and src/transport/*.cc
VERSION = re.compile(r"NCCL version (?P<version>[\d.]{1,20})")
NETWORK = re.compile(r"Using network (?P<network>\w{1,20}(?: \w{1,20}){0,2})")
BEGIN = re.compile(
    r"(?:\[Rank \d{1,8}\] )?(?:\w{1,64} )?comm 0x(?P<comm>[0-9a-f]{1,16}) "
    r"rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8}) (?:\w{1,32} \w{1,32} ){0,8}"
    r"(?:commId 0x(?P<id>[0-9a-f]{1,16})|parent 0x(?P<parent>[0-9a-f]{1,16}) "
    r"(?:split|child)Count (?P<count>\d{1,10}) color (?P<color>-?\d{1,10}) key -?\d{1,10}) ?"
    r"- Init (?:START|COMPLETE)"
)
"""NCCL 2.16 and 2.18 to 2.20 name no function, 2.29 and later the rank before it. The one that a
communicator is split into has no id of its own from 2.23 on."""

NODES = re.compile(r"comm 0x[0-9a-f]{1,16} rank \d{1,8} nRanks \d{1,8} nNodes (?P<nodes>\d{1,8})")
CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? : \d{1,8}\[\w{1,16}\] -> \d{1,8}\[\w{1,16}\]"
    r"(?: \[(?:send|receive)\])? "
    r"via (?P<via>[A-Z]\w{1,15}(?:/\w{1,16}(?:[\w/(). ]{0,64}/GDRDMA)?)?)"
)
COUNTS = re.compile(
    r"(?P<coll>\d{1,4}) coll channels, (?:\d{1,4} collnet channels, )?"
    r"(?P<nvls>\d{1,4}) nvls channels"
)
TREES = re.compile(r"Trees \[[-\d/>\[\] ]{1,4096}")
CONNECTED = re.compile(r"Connected all (?:rings|trees)")
FACTS = (VERSION, NETWORK, BEGIN, NODES, CHANNEL, COUNTS, TREES, CONNECTED)
LINE = re.compile(
    r"^(?:\S{1,64} ){0,4}?\S{1,256}?:\d{1,10}:\d{1,10} \[-?\d{1,4}\] "
    r"(?:\S{1,256}:\d{1,10} )?NCCL "
    rf"(?P<kept>WARN|INFO (?:{'|'.join(fact.pattern for fact in FACTS)}))",
    re.ASCII | re.MULTILINE,
)
"""A line of NCCL's and what is kept of it, which holds no text that others may have put there.

Before the host there may be a time, by default of warnings of 2.26 and later, and before a warning
are the source file and its line (src/debug.cc of 2.12 to 2.30).
"""

TRANSPORT = re.compile(r"(?P<kind>P2P|SHM|NET|COLLNET)(?:/(?P<how>[A-Za-z0-9]{1,16}))?")
WAYS = {
    "P2P": frozenset({"CUMEM", "IPC", "direct", "indirect"}),
    "NET": frozenset(
        {"AWS", "FasTrak", "GPUDirectTCPX", "IB", "IBext", "Libfabric", "OFI", "Socket", "UCX"}
    ),
}
"""What a transport goes over: NCCL's own ways and the networks of common plugins, by their names.

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net
"""

HOSTNAME = re.compile(r"^([\w-]{1,64})", re.ASCII)
"""A host's name as in the name of a log: up to the first dot."""


MOST_NAMES = 64
"""The most addresses of communicators to remember the names of."""

LONGEST_NAME = 64
"""Characters of a communicator's name; that of one split off again and again is digested."""


@dataclass(slots=True)
class Communicator:
    """One communicator in the log."""

    id: str
    rank: str
    ranks: str
    nodes: str = ""
    transports: Counter[str] = field(default_factory=Counter)
    topologies: dict[str, float] = field(default_factory=dict)


class DebugLog:
    """The log at a path so far, up to the byte ``end``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.end = 0
        self.version = ""
        self.network = ""
        self.warnings = 0
        self.communicators: dict[str, Communicator] = {}
        self._now: Communicator | None = None
        self._channels: dict[str, float] = {}
        self._names: dict[str, str] = {}

    def follow(self, node: Node) -> None:
        """Add what the log has gained, or a part of it if that is much. Raises ``OSError``."""
        found = node.lines(self.path, self.end, LINE)
        self.add(found.kept)
        self.end = found.end

    def add(self, kept: Iterable[str]) -> None:
        """Add what ``LINE`` keeps of lines."""
        for line in kept:
            level, _, text = line.partition(" ")
            if level == "WARN":
                self.warnings += 1
            elif level == "INFO":
                self._take(text)

    def _take(self, text: str) -> None:
        now = self._now
        if match := VERSION.match(text):
            self.version = match["version"]
        elif match := NETWORK.match(text):
            self.network = match["network"]
        elif match := BEGIN.match(text):
            self._begin(match)
        elif now is None:
            return
        elif match := CHANNEL.match(text):
            now.transports[transport(match["via"])] += 1
        elif match := NODES.match(text):
            now.nodes = match["nodes"]
        elif TREES.match(text):
            self._channels["tree"] = float(text.count("->") // 2)
        elif match := COUNTS.match(text):
            self._channels["ring"] = float(match["coll"])
            now.topologies["nvls"] = float(match["nvls"])
        elif text.startswith("Connected all rings"):
            now.topologies["ring"] = self._channels.get("ring", 0.0)
        elif text.startswith("Connected all trees"):
            now.topologies["tree"] = self._channels.get("tree", 0.0)

    def _begin(self, match: re.Match[str]) -> None:
        name = match["id"] or self._child(match)
        self._names[match["comm"]] = name
        if len(self._names) > MOST_NAMES:
            del self._names[next(iter(self._names))]
        if name not in self.communicators:
            self._channels = {}
        self._now = self.communicators.setdefault(
            name, Communicator(name, match["rank"], match["ranks"])
        )
        while len(self.communicators) > LATEST:
            del self.communicators[next(iter(self.communicators))]

    def _child(self, match: re.Match[str]) -> str:
        """The name of what a communicator is split into: the same on all its ranks."""
        parent = self._names.get(match["parent"], match["parent"])
        name = f"{parent}.{match['count']}.{match['color']}"
        if len(name) > LONGEST_NAME:
            return hashlib.sha256(name.encode()).hexdigest()[:16]
        return name


def transport(via: str) -> str:
    """A transport as a label, from the text after ``via``, without devices and modes."""
    match = TRANSPORT.match(via)
    if match is None:
        return "other"
    kind, how = match["kind"], match["how"]
    if kind not in WAYS:
        return kind
    direct = "/GDRDMA" if kind == "NET" and "GDRDMA" in via else ""
    return f"{kind}/{how}{direct}" if how in WAYS[kind] else f"{kind}/other{direct}"


def path_of(node: Node, pid: int) -> str | None:
    """The path of a process's log on the node; None if it writes none. Raises ``OSError``."""
    name = node.environment(pid).get("NCCL_DEBUG_FILE", "")
    if not name:
        return None
    if "%h" in name:
        found = node.lines(f"/proc/{pid}/root/etc/hostname", 0, HOSTNAME).kept
        name = name.replace("%h", found[0] if found else "")
    name = name.replace("%p", str(own_pid(node, pid)))
    return f"/proc/{pid}/root{name}" if name.startswith("/") else f"/proc/{pid}/cwd/{name}"


def read(node: Node, pid: int) -> DebugLog | None:
    """The current log of a process up to ``MAX_FILE``; None if it writes none.

    Raises ``OSError``.
    """
    path = path_of(node, pid)
    if path is None:
        return None
    log, before = DebugLog(path), -1
    while before < log.end < MAX_FILE:
        before = log.end
        log.follow(node)
    return log


class NcclLogs:
    """Follows the logs of the processes on one GPU."""

    name = "nccl_log"
    divided: ClassVar[Divided] = "instances"
    metrics = (INFO, CHANNELS, TOPOLOGY, WARNINGS)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:
        self.node = node
        self.sensors = gpu
        self.labels = gpu.identity.labels
        self.every = settings.gpu.processes_interval
        self.warnings = 0
        self._logs: dict[int, DebugLog] = {}

    def read(self) -> Reading:
        pids = [process.pid for process in known(self.sensors.processes) or []][:MANY]
        self._logs = {pid: log for pid, log in self._logs.items() if pid in pids}
        read = []
        for pid in pids:
            try:
                log = self._follow(pid)
            except OSError:
                continue  # not readable, not written yet, or no answer
            if log is not None:
                read.append(log)
        return Reading(tuple(self._samples(read)))

    def _follow(self, pid: int) -> DebugLog | None:
        """The log of a process with what it has gained. Raises ``OSError``."""
        path = path_of(self.node, pid)
        log = self._logs.get(pid)
        if path is None:
            return None
        if log is None or log.path != path:
            log = self._logs[pid] = DebugLog(path)
        before = log.warnings
        log.follow(self.node)
        self.warnings += log.warnings - before
        return log

    def _samples(self, logs: list[DebugLog]) -> Iterator[Sample]:
        """One sample of each series, also where ranks of a communicator share the GPU."""
        at = self.labels
        places: dict[tuple[str, ...], None] = {}
        channels: Counter[tuple[str, str]] = Counter()
        topologies: dict[tuple[str, str], float] = {}
        for log in logs:
            for name, found in log.communicators.items():
                nodes, network = found.nodes, log.network
                places[name, found.rank, found.ranks, nodes, network, log.version] = None
                for kind, count in sorted(found.transports.items()):
                    channels[name, kind] += count
                for topology, number in sorted(found.topologies.items()):
                    topologies[name, topology] = number
        for where in places:
            yield from INFO.at(1.0, *at, *where)
        for which, count in channels.items():
            yield from CHANNELS.at(float(count), *at, *which)
        for which, number in topologies.items():
            yield from TOPOLOGY.at(number, *at, *which)
        if logs:
            yield from WARNINGS.at(float(self.warnings), *at)


GPU_SOURCE: GpuSource = NcclLogs
