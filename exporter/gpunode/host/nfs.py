"""NFS clients: bytes, requests and server latency of each mount.

https://git.linux-nfs.org/?p=steved/nfs-utils.git;a=blob;f=tools/mountstats/mountstats.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpunode.config import Settings
from gpunode.host.counter import counter
from gpunode.host.mounts import read_as_node, unescaped
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import MANY, NodeSource, Reading

BYTES = Metric(
    "gpunode_nfs_bytes_total",
    "counter",
    "Bytes read from and written to the server (/proc/1/mountstats).",
    ("mountpoint", "direction"),
)
OPERATION = ("mountpoint", "operation")
REQUESTS = Metric(
    "gpunode_nfs_requests_total",
    "counter",
    "Requests to the server (/proc/1/mountstats).",
    OPERATION,
)
RETRANSMISSIONS = Metric(
    "gpunode_nfs_retransmissions_total",
    "counter",
    "Requests sent again because no reply arrived (/proc/1/mountstats).",
    OPERATION,
)
RTT_SECONDS = Metric(
    "gpunode_nfs_rtt_seconds_total",
    "counter",
    "Time from sending to the reply, over all requests (/proc/1/mountstats).",
    OPERATION,
)
WAIT_SECONDS = Metric(
    "gpunode_nfs_wait_seconds_total",
    "counter",
    "Time from queueing on this client to completion, over all requests (/proc/1/mountstats).",
    OPERATION,
)

OPERATIONS = {"READ": "read", "WRITE": "write", "COMMIT": "commit"}
"""Operations that move data; all others count as ``metadata``."""


@dataclass(slots=True)
class Operation:
    """Counters of one kind of request since mounting."""

    requests: float = 0.0
    retransmissions: float = 0.0
    rtt_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(slots=True)
class NfsMount:
    """Counters of one mount."""

    read: float | None = None
    written: float | None = None
    operations: dict[str, Operation] = field(default_factory=dict)


def parse(text: str) -> dict[str, NfsMount]:
    """Parse the NFS mounts in a mountstats file, by mount point. Raises ``ValueError``."""
    found: dict[str, NfsMount] = {}
    mount: NfsMount | None = None
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "device":
            mount = None
            if "fstype" in words[:-1] and len(words) > 4:
                kind = words[words.index("fstype") + 1]
                if kind in ("nfs", "nfs4") and len(found) < MANY:
                    mount = found[unescaped(words[4])] = NfsMount()
        elif mount is not None:
            _add(mount, words)
    return found


def _add(mount: NfsMount, words: list[str]) -> None:
    """Add one line of a mount's statistics."""
    head, *fields = words
    if head == "bytes:":
        # Bytes of normal, direct and server I/O, each read and written
        if len(fields) < 6:
            raise ValueError("mountstats: the bytes line is too short")
        mount.read, mount.written = counter(fields[4]), counter(fields[5])
    elif head.endswith(":") and head[:-1].isupper() and len(fields) >= 8:
        requests, transmissions, _, _, _, _, rtt, total = map(counter, fields[:8])
        name = OPERATIONS.get(head[:-1], "metadata")
        operation = mount.operations.setdefault(name, Operation())
        operation.requests += requests
        operation.retransmissions += max(0.0, transmissions - requests)
        operation.rtt_seconds += rtt / 1e3
        operation.wait_seconds += total / 1e3


class Nfs:
    """Reads the statistics of every NFS mount."""

    name = "nfs"
    metrics = (BYTES, REQUESTS, RETRANSMISSIONS, RTT_SECONDS, WAIT_SECONDS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        try:
            mounts = parse(read_as_node(self.node, "mountstats"))
        except FileNotFoundError:
            mounts = {}
        return Reading(tuple(_samples(mounts)))


def _samples(mounts: dict[str, NfsMount]) -> Iterator[Sample]:
    for point, mount in mounts.items():
        yield from BYTES.at(mount.read, point, "read")
        yield from BYTES.at(mount.written, point, "write")
        for name, operation in mount.operations.items():
            yield from REQUESTS.at(operation.requests, point, name)
            yield from RETRANSMISSIONS.at(operation.retransmissions, point, name)
            yield from RTT_SECONDS.at(operation.rtt_seconds, point, name)
            yield from WAIT_SECONDS.at(operation.wait_seconds, point, name)


NODE_SOURCE: NodeSource = Nfs
