"""InfiniBand, RoCE and other RDMA ports: traffic, waits, errors, congestion and packet loss.

``rdma_counters.py`` says which counter of which driver is what.
https://docs.kernel.org/admin-guide/abi-stable-files.html#abi-file-stable-sysfs-class-infiniband
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from gpunode.config.daemon import Settings
from gpunode.host.rdma_counters import (
    CXI,
    MEANINGS,
    REGISTERS,
    SATURATED,
    VPORT_PREFIX,
    Meaning,
    What,
)
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node, names_in
from gpunode.source import MAX_ITEMS, NodeSource, Reading, bounded, limit
from gpunode.unread import Unknown, Unread, shape

PORT = ("device", "port")
BYTES = Metric(
    "gpunode_infiniband_bytes_total",
    "counter",
    "Bytes through the port, including RDMA (counters/port_rcv_data and port_xmit_data, in 4-byte "
    "words, or the driver's own in hw_counters/).",
    (*PORT, "direction"),
)
WAIT = Metric(
    "gpunode_infiniband_wait_ticks_total",
    "counter",
    "Ticks during which the port had data but could not send; the length of a tick depends on the "
    "adapter (counters/port_xmit_wait).",
    PORT,
)
ERRORS = Metric(
    "gpunode_infiniband_errors_total",
    "counter",
    "Link errors by kind (counters/, hw_counters/). remote_physical, switch_relay, constraint "
    "and vl15_dropped are not faults of this link, and absent while zero.",
    (*PORT, "kind"),
)
CONGESTION_EVENTS = Metric(
    "gpunode_infiniband_congestion_events_total",
    "counter",
    "Signs of congestion, which slows traffic but loses no packets (hw_counters/).",
    (*PORT, "kind"),
)
TRANSPORT_ERRORS = Metric(
    "gpunode_infiniband_transport_errors_total",
    "counter",
    "Signs of lost and retransmitted packets (hw_counters/).",
    (*PORT, "kind"),
)
RETRANSMITTED_BYTES = Metric(
    "gpunode_infiniband_retransmitted_bytes_total",
    "counter",
    "Bytes that the adapter sent again; on AWS EFA, some are normal (hw_counters/retrans_bytes).",
    PORT,
)
RETRANSMITTED_PACKETS = Metric(
    "gpunode_infiniband_retransmitted_packets_total",
    "counter",
    "Packets that the adapter sent again by itself (hw_counters/retrans_pkts).",
    PORT,
)
FAILURES = Metric(
    "gpunode_infiniband_failures_total",
    "counter",
    "Requests, connections, packets and commands that failed, mostly because a program or its "
    "peer ended; only where not zero (hw_counters/).",
    (*PORT, "kind"),
)
RATE = Metric(
    "gpunode_infiniband_rate_bytes_per_second",
    "gauge",
    "Speed of the link in each direction (rate).",
    PORT,
)
ACTIVE = Metric("gpunode_infiniband_active", "gauge", "Whether the port is active (state).", PORT)

COUNTERS: Mapping[What, Metric] = {
    "bytes": BYTES,
    "wait": WAIT,
    "link_error": ERRORS,
    "congestion": CONGESTION_EVENTS,
    "loss": TRANSPORT_ERRORS,
    "retransmitted_bytes": RETRANSMITTED_BYTES,
    "retransmitted_packets": RETRANSMITTED_PACKETS,
    "failure": FAILURES,
}
REMOTE_ERRORS = ("remote_physical", "switch_relay", "constraint", "vl15_dropped")
"""Kinds of link errors that this link did not cause; a few are normal in healthy fabrics."""

RARE_ERRORS = frozenset({*REMOTE_ERRORS, "cnp_ignored"})
"""Kinds that are exported only where they are not zero."""

Series = tuple[What, str]
"""The counter and its kind."""

ORDER: list[Series] = list(
    dict.fromkeys(
        (of.what, of.kind) for of in (*MEANINGS.values(), *CXI.values()) if of is not None
    )
)
"""The order of series."""

MORE_PORTS, MORE_ADAPTERS = limit("ports"), limit("slingshot_adapters")

UNREAD_COUNTER = Unknown(
    "counter", "an RDMA port has a counter whose meaning gpunode does not know"
)
FULL_COUNTER = Unknown(
    "counter_full",
    "a counter of an RDMA port is full, so it has no series; `perfquery -R` resets it",
)
UNREAD_PORT = Unknown(
    "port", "an RDMA port has no counter that gpunode can read, so its traffic is not seen"
)

FOLDER = "/sys/class/infiniband"
CXI_FOLDER = "/sys/class/cxi"
GIGABIT = 1e9 / 8


def parse_rate(text: str) -> float:
    """Bytes per second from a rate such as ``400 Gb/sec (4X NDR)``. Raises ``ValueError``."""
    number, unit = text.split()[:2]
    value = float(number)
    if unit != "Gb/sec" or not 0 < value < 1e6:
        raise ValueError(f"not a link rate: {text[:80]!r}")
    return value * GIGABIT


class Infiniband:
    """Reads the ports of every RDMA adapter."""

    name = "infiniband"
    needs = "an InfiniBand or RoCE adapter, and /sys of the node: its root at path.rootfs"
    metrics = (*COUNTERS.values(), RATE, ACTIVE)
    unknowns = (UNREAD_COUNTER, FULL_COUNTER, UNREAD_PORT, MORE_PORTS, MORE_ADAPTERS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        samples: list[Sample] = []
        unread: dict[Unread, None] = {}  # in order, and what ports have in common once
        ports, more_ports = bounded(self._ports(), MORE_PORTS, of="RDMA ports")
        for device, port, alone in ports:
            folder = f"{FOLDER}/{device}/ports/{port}"
            files, strange = self._counters(device, folder, alone)
            values, full = self._values(files)
            driver = self._driver(device) if strange or full or not values else ""
            unread |= dict.fromkeys(FULL_COUNTER.seen(f"{driver}: {name}") for name in full)
            if not values and not full:
                unread[UNREAD_PORT.seen(driver)] = None
            if driver not in REGISTERS:
                unread |= dict.fromkeys(UNREAD_COUNTER.seen(f"{driver}: {n}") for n in strange)
            samples += _samples(values, (device, port))
            samples += self._state(folder, (device, port))
        devices, more_devices = bounded(
            names_in(self.node, CXI_FOLDER), MORE_ADAPTERS, of="Slingshot adapters"
        )
        for device in devices:
            folder = f"{CXI_FOLDER}/{device}/device/telemetry"
            values, _ = self._values({f"{folder}/{name}": of for name, of in CXI.items()})
            if not values:
                unread[UNREAD_PORT.seen("cxi")] = None
            samples += _samples(values, (device, "0"))
        return Reading(
            tuple(samples), unread=(*more_ports, *more_devices, *list(unread)[:MAX_ITEMS])
        )

    def _ports(self) -> Iterator[tuple[str, str, bool]]:
        """The ports, and whether each is the only one of its adapter."""
        for device in names_in(self.node, FOLDER):
            ports = names_in(self.node, f"{FOLDER}/{device}/ports")
            alone = len(ports) == 1
            yield from ((device, port, alone) for port in ports if port.isdecimal())

    def _counters(
        self, device: str, folder: str, alone: bool
    ) -> tuple[dict[str, Meaning], list[str]]:
        """The files of a port that count what is told, and the names of those not understood.

        Counters of the device belong to its only port.
        """
        folders = [f"{folder}/{part}" for part in ("counters_ext", "counters", "hw_counters")]
        if alone:
            folders.append(f"{FOLDER}/{device}/hw_counters")
        seen: dict[str, str] = {}
        for each in folders:
            for name in names_in(self.node, each):
                seen.setdefault(name, f"{each}/{name}")
        files: dict[str, Meaning] = {}
        strange = []
        for name, path in seen.items():
            known = name.removeprefix(VPORT_PREFIX)
            if known not in MEANINGS:
                strange.append(name)
            elif (meaning := MEANINGS[known]) is not None:
                files[path] = meaning
        return files, strange

    def _values(self, files: Mapping[str, Meaning]) -> tuple[dict[Series, float], list[str]]:
        """What the counters of a port say; of those that say the same, the first that it has.

        Second are the names of those that are full, whose series are left out.
        """
        series: dict[Series, dict[int, list[tuple[str, float]]]] = {}
        for path, of in files.items():
            choices = series.setdefault((of.what, of.kind), {})
            choices.setdefault(of.choice, []).append((path, of.unit))
        found = {}
        full: list[str] = []
        for each in filter(series.__contains__, ORDER):
            choices = series[each]
            for choice in sorted(choices):
                asked = [(path, self._count(path), unit) for path, unit in choices[choice]]
                counts = [(path, count, unit) for path, count, unit in asked if count is not None]
                stuck = [path for path, count, _ in counts if _is_full(path, count)]
                full += [path.rpartition("/")[2] for path in stuck]
                if counts and not stuck:
                    found[each] = sum(count * unit for _, count, unit in counts)
                if counts:
                    break
        return found, full

    def _state(self, folder: str, at: tuple[str, str]) -> Iterator[Sample]:
        with contextlib.suppress(OSError, ValueError):
            yield from RATE.at(parse_rate(self.node.read_text(f"{folder}/rate")), *at)
        with contextlib.suppress(OSError):
            state = self.node.read_text(f"{folder}/state").strip()
            yield from ACTIVE.at(float(state == "4: ACTIVE"), *at)

    def _driver(self, device: str) -> str:
        """The driver of an adapter; as it may be called by anyone, of its own name the shape."""
        with contextlib.suppress(OSError):
            for line in self.node.read_text(f"{FOLDER}/{device}/device/uevent").splitlines():
                name, _, value = line.partition("=")
                if name == "DRIVER":
                    return value
        return shape(device)

    def _count(self, path: str) -> float | None:
        """A counter, or None if the adapter lacks it: no file, or "N/A (no PMA)"."""
        try:
            return counter(self.node.read_text(path).partition("@")[0])
        except (OSError, ValueError):
            return None


def _is_full(path: str, count: float) -> bool:
    *_, folder, name = path.split("/")
    return folder == "counters" and count == SATURATED.get(name)


def _samples(values: Mapping[Series, float], at: tuple[str, str]) -> Iterator[Sample]:
    for (what, kind), value in values.items():
        if value or not (what == "failure" or kind in RARE_ERRORS):
            yield from COUNTERS[what].at(value, *at, *([kind] if kind else []))


NODE_SOURCE: NodeSource = Infiniband
