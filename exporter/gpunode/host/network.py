"""Network interfaces and TCP.

https://docs.kernel.org/networking/statistics.html
https://docs.kernel.org/networking/bonding.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.config.daemon import Settings
from gpunode.host.mounts import read_as_node
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading, bounded, limit

MORE_INTERFACES = limit("network_interfaces")

INTERFACE = ("interface",)
BYTES = Metric(
    "gpunode_network_bytes_total",
    "counter",
    "Bytes through the interface; RDMA bypasses it and is counted under InfiniBand "
    "(/proc/1/net/dev).",
    (*INTERFACE, "direction"),
)
DROPS = Metric(
    "gpunode_network_drops_total",
    "counter",
    "Packets dropped, including for lack of a buffer (/proc/1/net/dev).",
    (*INTERFACE, "direction"),
)
ERRORS = Metric(
    "gpunode_network_errors_total",
    "counter",
    "Packets with errors (/proc/1/net/dev).",
    (*INTERFACE, "direction"),
)
SPEED = Metric(
    "gpunode_network_speed_bytes_per_second",
    "gauge",
    "Speed of the link in each direction (/sys/class/net/INTERFACE/speed).",
    INTERFACE,
)
UP = Metric(
    "gpunode_network_up",
    "gauge",
    "Whether the link is up (/sys/class/net/INTERFACE/operstate).",
    INTERFACE,
)
CARRIER_CHANGES = Metric(
    "gpunode_network_carrier_changes_total",
    "counter",
    "Times the link went up or down (/sys/class/net/INTERFACE/carrier_changes).",
    INTERFACE,
)
BOND_SLAVES = Metric(
    "gpunode_network_bond_slaves",
    "gauge",
    "Interfaces in the bond, by whether the bond can use their link: `up` or `down` "
    "(/sys/class/net/INTERFACE/bonding/slaves, /sys/class/net/SLAVE/bonding_slave/mii_status).",
    (*INTERFACE, "state"),
)
PAUSES = Metric(
    "gpunode_network_priority_pauses_total",
    "counter",
    "Priority flow control pause frames; absent for a priority that never had one (ethtool -S: "
    "rx_prioN_pause, tx_prioN_pause).",
    (*INTERFACE, "direction", "priority"),
)
TCP = Metric(
    "gpunode_tcp_segments_total",
    "counter",
    "TCP segments: first transmissions and retransmissions (/proc/1/net/snmp: OutSegs, "
    "RetransSegs).",
    ("kind",),
)
TCP_TIMEOUTS = Metric(
    "gpunode_tcp_timeouts_total",
    "counter",
    "TCP retransmission timeouts (/proc/1/net/netstat: TCPTimeouts).",
)
LISTEN_DROPS = Metric(
    "gpunode_tcp_listen_drops_total",
    "counter",
    "Connections dropped by listening sockets, usually because the queue was full "
    "(/proc/1/net/netstat: ListenDrops).",
)

VIRTUAL = re.compile(
    r"lo|veth.*|cali.*|cilium.*|lxc.*|docker.*|br-.*|virbr.*|cni.*|flannel.*|vxlan.*|geneve.*|"
    r"tunl.*|gre.*|sit.*|ip6tnl.*|dummy.*|ifb.*|tap.*|tun.*|wg.*|nodelocaldns|kube-.*|vnet.*|"
    r"ip_vti.*|ip6_vti.*|erspan.*|teql.*|nlmon.*"
)
"""Virtual interfaces to skip, by name; a node with many pods has hundreds of them."""

PAUSE = re.compile(r"(?P<direction>rx|tx)_prio(?P<priority>[0-7])_pause")
DIRECTIONS = {"rx": "receive", "tx": "transmit"}
MEGABIT = 1e6 / 8


def parse_devices(text: str) -> dict[str, list[float]]:
    """Parse the sixteen counters of each interface in net/dev. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines()[2:]:
        name, colon, rest = line.rpartition(":")
        fields = rest.split()
        if not colon or len(fields) < 16:
            raise ValueError(f"not a line of net/dev: {line[:80]!r}")
        found[name.strip()] = [counter(field) for field in fields[:16]]
    return found


def parse_protocols(text: str) -> dict[str, int]:
    """Parse net/snmp or net/netstat into names such as ``Tcp:OutSegs``. Raises ``ValueError``."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    for heads, values in zip(lines[::2], lines[1::2], strict=False):
        protocol, *names = heads.split() or [""]
        _, *numbers = values.split() or [""]
        for name, number in zip(names, numbers, strict=False):
            found[protocol + name] = int(number)  # -1 stands for no limit
    return found


class Network:
    """Reads the interfaces that are not virtual, and TCP of the whole node."""

    name = "network"
    needs = (
        "a network adapter; a container of gpunode takes hostPID or the node's root at path.rootfs"
    )
    metrics = (
        BYTES,
        DROPS,
        ERRORS,
        SPEED,
        UP,
        CARRIER_CHANGES,
        BOND_SLAVES,
        PAUSES,
        TCP,
        TCP_TIMEOUTS,
        LISTEN_DROPS,
    )
    unknowns = (MORE_INTERFACES,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        devices = parse_devices(read_as_node(self.node, "net/dev"))
        named = [name for name in devices if not VIRTUAL.fullmatch(name)]
        wired, left_out = bounded(self._wired(named), MORE_INTERFACES)
        bonds = (self._text("/sys/class/net/bonding_masters") or "").split()
        samples: list[Sample] = []
        for name in wired:
            samples += _counter_samples(name, devices[name])
            samples += self._link_samples(name)
            samples += self._pause_samples(name)
            if name in bonds:
                samples += self._bond_samples(name)
        return Reading((*samples, *self._tcp_samples()), unread=left_out)

    def _wired(self, names: list[str]) -> list[str]:
        """Adapters, and what is built upon others: bonds, VLANs and bridges.

        The host's ends of the pods' interfaces have neither, whatever a network plugin calls them.
        All, if none is known to be an adapter: as in a container, which has but its own end.
        """
        entries = {name: self._entries(f"/sys/class/net/{name}") for name in names}
        adapters = [name for name in names if "device" in entries[name]]
        if not adapters:
            return names
        built = [
            name
            for name in names
            if not entries[name]
            or any(one.startswith("lower_") or one == "bonding" for one in entries[name])
        ]
        return list(dict.fromkeys(adapters + built))

    def _link_samples(self, name: str) -> Iterator[Sample]:
        folder = f"/sys/class/net/{name}"
        state = self._text(f"{folder}/operstate")
        if state in ("up", "down", "lowerlayerdown", "dormant"):
            yield from UP.at(float(state == "up"), name)
        speed = self._text(f"{folder}/speed")  # -1 or an error without a link
        if speed is not None and re.fullmatch("[0-9]{1,10}", speed) and 0 < int(speed) < 1 << 32:
            yield from SPEED.at(int(speed) * MEGABIT, name)
        changes = self._text(f"{folder}/carrier_changes")
        if changes is not None and changes.isdecimal():
            yield from CARRIER_CHANGES.at(counter(changes), name)

    def _bond_samples(self, name: str) -> Iterator[Sample]:
        slaves = self._text(f"/sys/class/net/{name}/bonding/slaves")
        if slaves is None:
            return
        states = [
            self._text(f"/sys/class/net/{slave}/bonding_slave/mii_status")
            for slave in slaves.split()
        ]
        if None not in states:
            up = states.count("up")
            yield from BOND_SLAVES.at(float(up), name, "up")
            yield from BOND_SLAVES.at(float(len(states) - up), name, "down")

    def _pause_samples(self, name: str) -> Iterator[Sample]:
        try:
            statistics = self.node.network_statistics(name)
        except OSError:
            return
        for key, value in statistics.items():
            match = PAUSE.fullmatch(key)
            if match and value:
                direction = DIRECTIONS[match["direction"]]
                yield from PAUSES.at(float(value), name, direction, match["priority"])

    def _tcp_samples(self) -> Iterator[Sample]:
        try:
            counters = parse_protocols(read_as_node(self.node, "net/snmp"))
            more = parse_protocols(read_as_node(self.node, "net/netstat"))
        except OSError:
            return
        for metric, labels, value in (
            (TCP, ("first",), counters.get("Tcp:OutSegs")),  # without retransmissions (RFC 2012)
            (TCP, ("retransmitted",), counters.get("Tcp:RetransSegs")),
            (TCP_TIMEOUTS, (), more.get("TcpExt:TCPTimeouts")),
            (LISTEN_DROPS, (), more.get("TcpExt:ListenDrops")),
        ):
            if value is not None and value >= 0:
                yield from metric.at(counter(str(value)), *labels)

    def _entries(self, folder: str) -> list[str]:
        try:
            return self.node.list_directory(folder)
        except OSError:
            return []

    def _text(self, path: str) -> str | None:
        try:
            return self.node.read_text(path).strip()
        except OSError:
            return None


def _counter_samples(name: str, counters: list[float]) -> Iterator[Sample]:
    for direction, at in (("receive", 0), ("transmit", 8)):
        yield from BYTES.at(counters[at], name, direction)
        yield from ERRORS.at(counters[at + 2], name, direction)
        # fifo counts packets dropped for lack of a buffer.
        yield from DROPS.at(counters[at + 3] + counters[at + 4], name, direction)


NODE_SOURCE: NodeSource = Network
