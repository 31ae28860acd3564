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

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.gpu import GPU
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder
from gpunode.holders.source import HoldersSource
from gpunode.metric import Metric, Sample
from gpunode.nccl.followed import FollowedFiles, inside, own_host, own_pid
from gpunode.node.node import MAX_FILE
from gpunode.source import Divided, Reading

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
    "Channels of the communicator to other ranks by transport: P2P is NVLink or PCI Express, SHM "
    "host memory, NET/IB with GDRDMA directly from GPU memory (NCCL_DEBUG_FILE).",
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

MAX_EXPORTED = 8
"""The most communicators of a process on a GPU to export: the latest."""

# Line formats: https://github.com/NVIDIA/nccl, src/init.cc and src/transport/*.cc
VERSION = re.compile(r"NCCL version (?P<version>[\d.]{1,20})")
NETWORK = re.compile(r"Using network (?P<network>\w{1,20}(?: \w{1,20}){0,2})")
BEGIN = re.compile(
    r"(?:\[Rank \d{1,8}\] )?(?:\w{1,64} )?comm 0x(?P<comm>[0-9a-f]{1,16}) "
    r"rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8}) (?:(?!busId)\w{1,32} \w{1,32} ){0,8}"
    r"busId (?P<bus>[0-9a-f]{1,16}) "
    r"(?:parent 0x(?P<parent>[0-9a-f]{1,16}) (?:(?:split|child)Count (?P<count>\d{1,10}) )?"
    r"color (?P<color>-?\d{1,10}) key -?\d{1,10} ?)?"
    r"(?:commId 0x(?P<id>[0-9a-f]{1,16}) )?- Init (?P<state>START|COMPLETE)"
)
"""NCCL up to 2.20 names no function, 2.29 and later the rank before it. Up to 2.18.1 only COMPLETE
is logged, and up to 2.15 no id. What a communicator is split into has none from 2.23 on."""

NODES = re.compile(
    r"comm 0x(?P<of>[0-9a-f]{1,16}) rank \d{1,8} nRanks \d{1,8} nNodes (?P<nodes>\d{1,8})"
)
CHANNEL = re.compile(
    r"(?:Channel \d{1,4}(?:/\d{1,4})? : (?P<sender>\d{1,8})\[\w{1,16}\] -> "
    r"(?P<receiver>\d{1,8})\[\w{1,16}\](?: \[(?:send|(?P<receives>receive))\])?"
    r"|CollNet \d{1,4}(?:/\d{1,4})? : (?P<alone>\d{1,8}) \[(?:send|receive)\]) "
    r"via (?P<via>direct shared memory|[A-Z]\w{1,15}(?:/\w{1,16}(?:[\w/(). ]{0,64}/GDRDMA)?)?)"
)
"""The line is the receiver's if it says so, else the sender's."""

COUNTS = re.compile(
    r"(?P<coll>\d{1,4}) coll channels, (?:\d{1,4} collnet channels, )?"
    r"(?:(?P<nvls>\d{1,4}) nvls channels|\d{1,4} p2p channels)"
)
TREES = re.compile(r"Trees \[[-\d/>\[\] ]{1,4096}")
CONNECTED = re.compile(r"Connected all (?P<what>ring|tree)s")
FACTS = (VERSION, NETWORK, BEGIN, NODES, CHANNEL, COUNTS, TREES, CONNECTED)
INFORMED = re.compile(r"\[(?P<device>-?\d{1,4})\] NCCL INFO ")
NCCL_MESSAGE = re.compile(
    r":\d{1,10} (?:\[-?\d{1,4}\] (?:(?!NCCL )[^\n]{1,512}?:\d{1,10} (?:\(\S{1,256}\) )?)?"
    r"NCCL (?=WARN)|(?=\[-?\d{1,4}\] NCCL INFO ))"
    rf"(?P<kept>WARN|\[-?\d{{1,4}}\] NCCL INFO (?:{'|'.join(fact.pattern for fact in FACTS)}))"
)
"""What follows the id of a process in a line of NCCL's, and what is kept of it, which holds no text
that others may have put there.

In brackets is the CUDA device. Before a warning are the source file and its line (src/debug.cc of
2.12 to 2.30) and, from 2.30.7 on, the function. A plugin may name its function instead, as C++
does, with spaces:
https://github.com/aws/aws-ofi-nccl/blob/v1.17.2/include/nccl_ofi_log.h (__PRETTY_FUNCTION__)
"""


def line_of(pid: int) -> re.Pattern[str]:
    """A line of the process that has this id in its own PID namespace.

    A log that is named without ``%p`` may hold those of other processes, also of other nodes.
    Before the host there may be a time, by default of warnings of 2.26 and later.
    """
    before = rf"^(?:\S{{1,64}} ){{0,4}}?\S{{0,256}}?:{pid}"
    return re.compile(before + NCCL_MESSAGE.pattern, re.ASCII | re.MULTILINE)


TRANSPORT = re.compile(r"(?P<kind>P2P|SHM|NET|COLLNET)(?:/(?P<how>[A-Za-z0-9]{1,16}))?")
SHARED_MEMORY = "direct shared memory"
"""What NCCL 2.12 calls SHM."""

WAYS = {
    "P2P": frozenset({"CUMEM", "IPC", "MNNVL", "direct", "indirect"}),
    "NET": frozenset(
        {
            *("AWS", "FasTrak", "GPUDirectTCPX", "IB", "IBext", "Libfabric", "OFI", "Socket"),
            *("UCX", "gIB"),
        }
    ),
}
"""What a transport goes over: NCCL's own ways and the networks of common plugins, by their names.

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net
"""

OVER_NETWORK = tuple(
    f"NET/{how}{direct}" for how in (*sorted(WAYS["NET"]), "other") for direct in ("", "/GDRDMA")
)
"""The transports by which data leaves a node, also where both ranks are on it."""

HOSTNAME = re.compile(r"^([\w-]{1,64})", re.ASCII)
"""A host's name as in the name of a log: up to the first dot."""

HASH = re.compile(r"[0-9a-f]{1,16}")
"""The id of a communicator; from NCCL 2.26 on that of its RAS service, up to 2.25 another."""

ALL_BITS = (1 << 64) - 1

MAX_DEVICES = 64
"""The most GPUs of a process; one may have all GPUs of a node."""

MAX_COMMUNICATORS = MAX_EXPORTED * MAX_DEVICES
"""The most communicators of a process to know."""

MAX_NAME = 64
"""Characters of a communicator's name; that of one split off again and again is digested."""


@dataclass(slots=True)
class LoggedRank:
    """A rank of one communicator in the log."""

    id: str = ""
    rank: str = ""
    ranks: str = ""
    bus: int | None = None
    """The PCI address of its GPU, as ``bus_number`` makes it."""

    nodes: str = ""
    transports: Counter[str] = field(default_factory=Counter)
    channels: dict[str, float] = field(default_factory=dict)
    """Of each topology; those of rings and trees count once they are connected."""

    connected: set[str] = field(default_factory=set)
    complete: bool = False

    @property
    def who(self) -> tuple[str, str, int | None]:
        """What no two ranks of a process share."""
        return self.id, self.rank, self.bus

    @property
    def topologies(self) -> dict[str, float]:
        """The channels of each topology in use; up to 2.21, NCCL connects before it counts."""
        used = {"nvls", *self.connected}
        return {which: number for which, number in self.channels.items() if which in used}

    def may_have(self, channel: re.Match[str]) -> bool:
        """Whether a channel joins this rank to another of the communicator."""
        sender, receiver = channel["sender"], channel["receiver"]
        own = channel["alone"] or (receiver if channel["receives"] else sender)
        most = max(int(rank) for rank in (own, sender or own, receiver or own))
        return own == self.rank and most < int(self.ranks)

    def take(self, text: str) -> None:
        """Take a line that does not say which communicator it is about."""
        if TREES.match(text):
            self.channels["tree"] = float(text.count("->") // 2)
        elif match := COUNTS.match(text):
            self.channels["ring"] = float(match["coll"])
            if match["nvls"]:
                self.channels["nvls"] = float(match["nvls"])
        elif match := CONNECTED.match(text):
            self.connected.add(match["what"])


class DebugLog:
    """What a process, by its own id, wrote to the log at a path so far, up to the byte ``end``."""

    def __init__(self, path: str, pid: int) -> None:
        self.path = path
        self.line = line_of(pid)
        self.end = 0
        self.version = ""
        self.network = ""
        self.warnings = 0
        self.communicators: list[LoggedRank] = []
        """The latest of each GPU: a process with several GPUs is a rank on each."""

        self._now: dict[str, LoggedRank] = {}
        """Which one a line is about, by the process's number of the GPU."""

        self._at: dict[str, LoggedRank] = {}
        """By address."""

    def follow(self, holder: Holder) -> None:
        """Add what the log has gained, or a part of it if that is much. Raises ``OSError``."""
        found = holder.ask(lambda: holder.node.lines(self.path, self.end, self.line))
        self.add(found.kept)
        self.end = found.end

    def add(self, kept: Iterable[str]) -> None:
        """Add what ``line_of`` keeps of lines."""
        for line in kept:
            if line == "WARN":
                self.warnings += 1
            elif match := INFORMED.match(line):
                self._take(match["device"], line[match.end() :])

    def on(self, bus_id: str | None) -> list[LoggedRank]:
        """The latest on the GPU of a PCI address, or on any if that is not known."""
        bus = bus_number(bus_id)
        found = [one for one in self.communicators if bus is None or one.bus == bus]
        return found[-MAX_EXPORTED:]

    def _take(self, device: str, text: str) -> None:
        if match := VERSION.match(text):
            self.version = match["version"]
        elif match := NETWORK.match(text):
            self.network = match["network"]
        elif match := BEGIN.match(text):
            self._name(device, match)
        elif match := NODES.match(text):
            if match["of"] in self._at:
                self._at[match["of"]].nodes = match["nodes"]
        elif match := CHANNEL.match(text):
            if about := self._joined(device, match):
                about.transports[transport(match["via"])] += 1
        else:
            now = self._now.get(device)
            if TREES.match(text) and (now is None or now.complete):
                now = self._set_current(device, LoggedRank())  # NCCL names it once it is complete
            if now is not None:
                now.take(text)

    def _joined(self, device: str, channel: re.Match[str]) -> LoggedRank | None:
        """The communicator of a channel: the latest that may have it.

        From NCCL 2.22 on, a communicator is connected when it is used, which may be after others
        were made. Until it is complete, no other is connected.
        """
        now = self._now.get(device)
        if now is None or not now.complete:
            return now
        of_gpu = (one for one in reversed(self.communicators) if one.bus == now.bus)
        return next((one for one in of_gpu if one.may_have(channel)), None)

    def _name(self, device: str, match: re.Match[str]) -> None:
        """Take a line that names a communicator, as it begins or once it is complete."""
        complete = match["state"] == "COMPLETE"
        now = self._now.get(device)
        before = self._at.get(match["comm"])
        if complete and before is not None and not before.complete:
            before.complete = True
            return
        if not complete or now is None or now.complete:
            now = self._set_current(device, LoggedRank())
        now.id, now.rank, now.ranks = self._id(match), match["rank"], match["ranks"]
        now.bus, now.complete = int(match["bus"], 16), complete
        self._at.pop(match["comm"], None)
        self._at[match["comm"]] = now
        # One of the same name is gone, or the log was read again from its beginning.
        others = [one for one in self.communicators if one.who != now.who]
        self.communicators = [*others, now]
        of_gpu = [one for one in self.communicators if one.bus == now.bus]
        if len(of_gpu) > MAX_EXPORTED:
            self.communicators.remove(of_gpu[0])
        del self.communicators[:-MAX_COMMUNICATORS]
        if len(self._at) > MAX_COMMUNICATORS:
            del self._at[next(iter(self._at))]

    def _set_current(self, device: str, communicator: LoggedRank) -> LoggedRank:
        """Take the next lines of a GPU to be about this communicator."""
        self._now[device] = communicator
        if len(self._now) > MAX_DEVICES:
            del self._now[next(iter(self._now))]
        return communicator

    def _id(self, match: re.Match[str]) -> str:
        """What NCCL calls a communicator, the same on all its ranks; else its address."""
        if match["id"]:
            return match["id"]
        if not match["parent"]:
            return f"0x{match['comm']}"
        parent = self._at.get(match["parent"])
        above = f"0x{match['parent']}" if parent is None else parent.id
        if match["count"] and HASH.fullmatch(above):
            return child_hash(int(above, 16), int(match["count"]), int(match["color"]))
        name = ".".join(filter(None, (above, match["count"], match["color"])))
        if len(name) > MAX_NAME:
            return hashlib.sha256(name.encode()).hexdigest()[:16]
        return name


def child_hash(parent: int, count: int, color: int) -> str:
    """What NCCL calls a communicator that another is split into.

    https://github.com/NVIDIA/nccl/blob/v2.28.9-1/src/include/bitops.h (eatHash, digestHash)
    """
    one, two = 1, 1
    for number, size in ((parent, 8), (count, 4), (color, 4)):
        one = ((one ^ size) + two) & ALL_BITS
        two ^= one
        one = (one ^ one >> 31) * 0x9DE62BBC8CEF3CE3 & ALL_BITS
        two = (two ^ two >> 32) * 0x485CD6311B599E79 & ALL_BITS
        one = (one + (number & (1 << 8 * size) - 1)) & ALL_BITS
    digest = ((one ^ one >> 31) * 0xBAC3BD562846DE6B + two) & ALL_BITS
    return f"{(digest ^ digest >> 32) * 0x995A187A14E7B445 & ALL_BITS:x}"


def bus_number(bus_id: str | None) -> int | None:
    """The PCI address that NCCL writes as one number (ncclBusIdToInt64); None if it is none."""
    digits = re.sub(r"[:.]", "", bus_id or "")
    return int(digits, 16) if re.fullmatch(r"[0-9A-Fa-f]{8,16}", digits) else None


def transport(via: str) -> str:
    """A transport as a label, from the text after ``via``, without devices and modes."""
    match = TRANSPORT.match(via)
    if match is None:
        return "SHM" if via == SHARED_MEMORY else "other"
    kind, how = match["kind"], match["how"]
    if kind not in WAYS:
        return kind
    direct = "/GDRDMA" if kind == "NET" and "GDRDMA" in via else ""
    return f"{kind}/{how}{direct}" if how in WAYS[kind] else f"{kind}/other{direct}"


def path_of(holder: Holder) -> str | None:
    """The path of a process's log on the node; None if it writes none. Raises ``OSError``."""
    name = holder.environment().get("NCCL_DEBUG_FILE", "")
    if not name:
        return None
    if "%h" in name:
        name = name.replace("%h", own_host(holder, HOSTNAME))
    return inside(holder, name.replace("%p", str(own_pid(holder))))


def begin(holder: Holder) -> DebugLog | None:
    """The log of a process, of which nothing is read yet. Raises ``OSError``."""
    path = path_of(holder)
    return None if path is None else DebugLog(path, own_pid(holder))


def read_log(holder: Holder) -> DebugLog | None:
    """The current log of a process up to ``MAX_FILE``; None if it writes none.

    Raises ``OSError``.
    """
    log, before = begin(holder), -1
    if log is None:
        return None
    while before < log.end < MAX_FILE:
        before = log.end
        log.follow(holder)
    return log


class NcclLogs:
    """Follows the logs of the processes on one GPU."""

    name = "nccl_log"
    needs = (
        "a process on the GPU that was started with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE; "
        "SYS_PTRACE and DAC_READ_SEARCH if it is another user's"
    )
    divided: ClassVar[Divided] = "instances"
    metrics = (INFO, CHANNELS, TOPOLOGY, WARNINGS)
    unknowns = FollowedFiles.unknowns

    def __init__(self, census: Census, gpu: Gpu, settings: Settings) -> None:
        self.gpu = gpu
        self.labels = gpu.identity.labels
        self.every = settings.gpu.processes_interval
        self.warnings = 0
        self._logs = FollowedFiles(census, gpu, begin, self._follow)

    def read(self) -> Reading:
        logs, left_out = self._logs.read()
        return Reading(tuple(self._samples(list(logs.values()))), unread=left_out)

    def _follow(self, log: DebugLog, holder: Holder) -> None:
        before = log.warnings
        log.follow(holder)
        self.warnings += log.warnings - before

    def _samples(self, logs: list[DebugLog]) -> Iterator[Sample]:
        """One sample of each series, also where ranks of a communicator share the GPU."""
        at = self.labels
        places: dict[tuple[str, ...], None] = {}
        channels: Counter[tuple[str, str]] = Counter()
        topologies: dict[tuple[str, str], float] = {}
        for log in logs:
            for found in log.on(self.gpu.identity.bus_id):
                name, nodes, network = found.id, found.nodes, log.network
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


HOLDERS_SOURCE: HoldersSource = NcclLogs
