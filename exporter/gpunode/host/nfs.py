"""NFS clients: bytes, requests and server latency of each mount.

https://git.linux-nfs.org/?p=steved/nfs-utils.git;a=blob;f=tools/mountstats/mountstats.py

The kernel counts a request of a mount when it ends, so that one without an answer shows only in the
counts of its transport: https://github.com/torvalds/linux/blob/master/net/sunrpc/stats.c
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpunode.config.daemon import Settings
from gpunode.host.mounts import MORE_MOUNTS, TUNNEL, read_as_node, unescaped, volume
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading, bounded

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
TIMEOUTS = Metric(
    "gpunode_nfs_timeouts_total",
    "counter",
    "Requests whose retransmissions all went without reply, counted when the request ends: on a "
    "hard mount, once the server answers (/proc/1/mountstats).",
    OPERATION,
)
IN_FLIGHT = Metric(
    "gpunode_nfs_requests_in_flight",
    "gauge",
    "Requests to the server without an answer, over all transports, less the lowest number of "
    "the last hour in which the server answered (/proc/1/mountstats: xprt, sends minus replies).",
    ("mountpoint",),
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

OPERATIONS = {"READ": "read", "READ_PLUS": "read", "WRITE": "write", "COMMIT": "commit"}
"""Operations that move data; all others count as ``metadata``. Of servers of version 4.2, newer
kernels read with READ_PLUS: https://www.rfc-editor.org/rfc/rfc7862#section-15.10."""

SENDS = {"tcp": 5, "udp": 2, "rdma": 5}
"""By transport, the place of the requests sent among its counters; the next is that of the replies.
https://github.com/torvalds/linux/blob/master/net/sunrpc/xprtsock.c (xs_tcp_print_stats)
https://github.com/torvalds/linux/blob/master/net/sunrpc/xprtrdma/transport.c
"""

HALF_PERIOD = 1800.0
"""Half of the time, in seconds, over which the least is taken."""


@dataclass(slots=True)
class Operation:
    """Counters of one kind of request since mounting."""

    requests: float = 0.0
    retransmissions: float = 0.0
    timeouts: float = 0.0
    rtt_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(slots=True)
class NfsMount:
    """Counters of one mount, and what is mounted."""

    source: str = ""
    read: float | None = None
    written: float | None = None
    sent: float | None = None
    answered: float = 0.0
    """Requests and replies on all its transports; without a transport, it is not known."""

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
                if kind in ("nfs", "nfs4"):
                    mount = found[unescaped(words[4])] = NfsMount(unescaped(words[1]))
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
    elif head == "xprt:" and fields and fields[0] in SENDS:
        place = 1 + SENDS[fields[0]]
        if len(fields) < place + 2:
            raise ValueError("mountstats: the line of a transport is too short")
        mount.sent = (mount.sent or 0.0) + counter(fields[place])
        mount.answered += counter(fields[place + 1])
    elif head.endswith(":") and head[:-1].isupper() and len(fields) >= 8:
        requests, transmissions, timeouts, _, _, _, rtt, total = map(counter, fields[:8])
        name = OPERATIONS.get(head[:-1], "metadata")
        operation = mount.operations.setdefault(name, Operation())
        operation.requests += requests
        operation.retransmissions += max(0.0, transmissions - requests)
        operation.timeouts += timeouts
        operation.rtt_seconds += rtt / 1e3
        operation.wait_seconds += total / 1e3


class PendingRequests:
    """How many requests to a server wait for a reply.

    Sends minus replies never falls by a request that was sent again when the connection was lost,
    and replies to the server's own requests count as sends too. So the least of it while the server
    answers is what nobody waits for; once it does not, the least stays what it was.
    """

    def __init__(self) -> None:
        self._answered: float | None = None
        self._least: deque[float] = deque(maxlen=2)
        self._since = 0.0

    def count(self, sent: float, answered: float, now: float) -> float:
        """The requests that wait now (monotonic)."""
        ahead, before = sent - answered, self._answered
        self._answered = answered
        if before is not None and answered != before:
            if not self._least or now - self._since >= HALF_PERIOD:
                self._least.append(ahead)
                self._since = now
            self._least[-1] = min(self._least[-1], ahead)
        return max(0.0, ahead - min(self._least, default=0.0))


class Nfs:
    """Reads the statistics of every NFS mount."""

    name = "nfs"
    needs = (
        "an NFS filesystem; a container of gpunode takes hostPID or the node's root at path.rootfs"
    )
    metrics = (BYTES, REQUESTS, RETRANSMISSIONS, TIMEOUTS, IN_FLIGHT, RTT_SECONDS, WAIT_SECONDS)
    unknowns = (MORE_MOUNTS,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self._unanswered: dict[str, PendingRequests] = {}

    def read(self) -> Reading:
        try:
            found = self._by_mount_point(parse(read_as_node(self.node, "mountstats")))
        except FileNotFoundError:
            found = {}
        kept, left_out = bounded(found.items(), MORE_MOUNTS, of="NFS mounts")
        mounts = dict(kept)
        self._unanswered = {
            point: self._unanswered.get(point) or PendingRequests() for point in mounts
        }
        return Reading(tuple(self._samples(mounts)), unread=left_out)

    def _by_mount_point(self, mounts: dict[str, NfsMount]) -> dict[str, NfsMount]:
        """By mount point; what is mounted only as volumes of pods once, by the first name.

        Mounts of the same folder of a server share their counters.
        """
        named: dict[str, NfsMount] = {}
        volumes: dict[str, tuple[str, NfsMount]] = {}
        for point, mount in mounts.items():
            name = volume(self.node, point, mount.source)
            if name is None:
                named[point] = mount
            elif TUNNEL.match(mount.source):
                volumes.setdefault(name, (name, mount))
            else:
                known, _ = volumes.get(mount.source, (name, mount))
                volumes[mount.source] = min(name, known), mount
        elsewhere = {mount.source for mount in named.values()}
        for source, (name, mount) in volumes.items():
            if source not in elsewhere:
                named.setdefault(name, mount)
        return named

    def _samples(self, mounts: dict[str, NfsMount]) -> Iterator[Sample]:
        now = self.node.clock.monotonic()
        for point, mount in mounts.items():
            yield from BYTES.at(mount.read, point, "read")
            yield from BYTES.at(mount.written, point, "write")
            if mount.sent is not None:
                waiting = self._unanswered[point].count(mount.sent, mount.answered, now)
                yield from IN_FLIGHT.at(waiting, point)
            for name, operation in mount.operations.items():
                yield from REQUESTS.at(operation.requests, point, name)
                yield from RETRANSMISSIONS.at(operation.retransmissions, point, name)
                yield from TIMEOUTS.at(operation.timeouts, point, name)
                yield from RTT_SECONDS.at(operation.rtt_seconds, point, name)
                yield from WAIT_SECONDS.at(operation.wait_seconds, point, name)


NODE_SOURCE: NodeSource = Nfs
