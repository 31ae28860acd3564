"""NCCL's debug log: the transports and channels of each communicator.

NCCL writes it if a job starts with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
"""

from __future__ import annotations

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
from gpunode.node.node import Node
from gpunode.source import Divided, GpuSource, Reading

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
PREFIX = re.compile(r"\S+:\d+:\d+ \[-?\d+\] NCCL (?P<level>INFO|WARN) (?P<text>.*)")
VERSION = re.compile(r"NCCL version (?P<version>[\d.]{1,20})")
NETWORK = re.compile(r"Using network (?P<network>\w{1,20})")
BEGIN = re.compile(
    r"\w+ comm (?P<pointer>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8}) .*"
    r"commId 0x(?P<id>[0-9a-f]{1,16}) - Init (?:START|COMPLETE)"
)
NODES = re.compile(
    r"comm (?P<pointer>0x[0-9a-f]{1,16}) rank \d+ nRanks \d+ nNodes (?P<nodes>\d{1,8})"
)
CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (?P<via>\S.*)"
)
COUNTS = re.compile(
    r"(?P<coll>\d{1,4}) coll channels, \d+ collnet channels, (?P<nvls>\d{1,4}) nvls channels"
)
TRANSPORT = re.compile(r"(?P<kind>P2P|SHM|NET|COLLNET)(?:/(?P<how>[A-Za-z]{1,16}))?")


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
    """The log of one process so far."""

    def __init__(self) -> None:
        self.version = ""
        self.network = ""
        self.warnings = 0
        self.communicators: dict[str, Communicator] = {}
        self._now: Communicator | None = None
        self._channels: dict[str, float] = {}

    def add(self, lines: Iterable[str]) -> None:
        """Add lines, ignoring those that are not NCCL's or not recognised."""
        for line in lines:
            match = PREFIX.match(line)
            if match and match["level"] == "WARN":
                self.warnings += 1
            elif match:
                self._take(match["text"])

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
        elif text.startswith("Trees ["):
            self._channels["tree"] = float(text.count("->") // 2)
        elif match := COUNTS.match(text):
            self._channels["ring"] = float(match["coll"])
            now.topologies["nvls"] = float(match["nvls"])
        elif text.startswith("Connected all rings"):
            now.topologies["ring"] = self._channels.get("ring", 0.0)
        elif text.startswith("Connected all trees"):
            now.topologies["tree"] = self._channels.get("tree", 0.0)

    def _begin(self, match: re.Match[str]) -> None:
        name = match["id"]
        if name not in self.communicators:
            self._channels = {}
        self._now = self.communicators.setdefault(
            name, Communicator(name, match["rank"], match["ranks"])
        )
        while len(self.communicators) > LATEST:
            del self.communicators[next(iter(self.communicators))]


def transport(via: str) -> str:
    """A transport as a label, from the text after ``via``, without devices and modes."""
    match = TRANSPORT.match(via)
    if match is None:
        return "other"
    kind, how = match["kind"], match["how"]
    direct = "/GDRDMA" if "GDRDMA" in via else ""
    return kind if kind in ("SHM", "COLLNET") or how is None else f"{kind}/{how}{direct}"


def path_of(node: Node, pid: int) -> str | None:
    """The path of a process's log on the node; None if it writes none. Raises ``OSError``."""
    name = node.environment(pid).get("NCCL_DEBUG_FILE", "")
    if not name:
        return None
    if "%h" in name:
        name = name.replace("%h", node.read_text(f"/proc/{pid}/root/etc/hostname").strip())
    name = name.replace("%p", str(own_pid(node, pid)))
    return f"/proc/{pid}/root{name}" if name.startswith("/") else f"/proc/{pid}/cwd/{name}"


def read(node: Node, pid: int) -> DebugLog | None:
    """The current log of a process; None if it writes none. Raises ``OSError``."""
    path = path_of(node, pid)
    if path is None:
        return None
    log = DebugLog()
    log.add(node.read_text(path).splitlines())
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
        self._logs: dict[str, DebugLog] = {}

    def read(self) -> Reading:
        processes = known(self.sensors.processes) or []
        logs = {}
        for process in processes:
            try:
                path = path_of(self.node, process.pid)
                if path is not None:
                    logs[path] = self._follow(path)
            except OSError:
                continue  # not readable, or not written yet
        self._logs = logs
        return Reading(tuple(self._samples()))

    def _follow(self, path: str) -> DebugLog:
        """Read the new lines of a log, or all of a log seen for the first time."""
        known_log = self._logs.get(path)
        if known_log is None:
            self.node.log_lines(path)  # start following it
            known_log = DebugLog()
            lines = self.node.read_text(path).splitlines()
        else:
            lines = self.node.log_lines(path)
        before = known_log.warnings
        known_log.add(lines)
        self.warnings += known_log.warnings - before
        return known_log

    def _samples(self) -> Iterator[Sample]:
        at = self.labels
        for log in self._logs.values():
            for name, found in log.communicators.items():
                place = found.rank, found.ranks, found.nodes, log.network, log.version
                yield from INFO.at(1.0, *at, name, *place)
                for kind, count in sorted(found.transports.items()):
                    yield from CHANNELS.at(float(count), *at, name, kind)
                for topology, channels in sorted(found.topologies.items()):
                    yield from TOPOLOGY.at(channels, *at, name, topology)
        if self._logs:
            yield from WARNINGS.at(float(self.warnings), *at)


GPU_SOURCE: GpuSource = NcclLogs
