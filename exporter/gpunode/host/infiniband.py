"""InfiniBand and RoCE ports: traffic, waits, link errors, congestion and packet loss.

https://docs.kernel.org/admin-guide/abi-stable-files.html#abi-file-stable-sysfs-class-infiniband
https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpunode.config import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import MANY, NodeSource, Reading

PORT = ("device", "port")
BYTES = Metric(
    "gpunode_infiniband_bytes_total",
    "counter",
    "Bytes through the port, including RDMA (counters/port_rcv_data and port_xmit_data, in 4-byte "
    "words).",
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
    "Link errors by kind (counters/).",
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
RATE = Metric(
    "gpunode_infiniband_rate_bytes_per_second",
    "gauge",
    "Speed of the link in each direction (rate).",
    PORT,
)
ACTIVE = Metric("gpunode_infiniband_active", "gauge", "Whether the port is active (state).", PORT)

ERROR_KINDS = {
    "symbol_error": "symbol",
    "link_error_recovery": "link_recovery",
    "link_downed": "link_downed",
    "port_rcv_errors": "receive",
    "port_xmit_discards": "discard",
    "local_link_integrity_errors": "integrity",
}
CONGESTION_KINDS = {
    "np_cnp_sent": "cnp_sent",
    "rp_cnp_handled": "cnp_handled",
    "np_ecn_marked_roce_packets": "ecn_marked",
    "roce_slow_restart": "slow_restart",
}
TRANSPORT_ERROR_KINDS = {
    "out_of_sequence": "out_of_sequence",
    "packet_seq_err": "sequence_nak",
    "local_ack_timeout_err": "ack_timeout",
    "rnr_nak_retry_err": "receiver_not_ready",
    "out_of_buffer": "out_of_buffer",
    "roce_adp_retrans": "adaptive_retransmission",
}
WORD = 4.0
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
    metrics = (BYTES, WAIT, ERRORS, CONGESTION_EVENTS, TRANSPORT_ERRORS, RATE, ACTIVE)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        return Reading(
            tuple(
                sample
                for device, port in list(self._ports())[:MANY]
                for sample in self._samples(
                    f"/sys/class/infiniband/{device}/ports/{port}", (device, port)
                )
            )
        )

    def _ports(self) -> Iterator[tuple[str, str]]:
        folder = "/sys/class/infiniband"
        try:
            devices = self.node.list_directory(folder)
        except OSError:
            return
        for device in devices:
            try:
                ports = self.node.list_directory(f"{folder}/{device}/ports")
            except OSError:
                continue
            yield from ((device, port) for port in ports if port.isdecimal())

    def _samples(self, folder: str, at: tuple[str, str]) -> Iterator[Sample]:
        for name, direction in (("rcv", "receive"), ("xmit", "transmit")):
            words = self._count(f"{folder}/counters/port_{name}_data")
            yield from BYTES.at(None if words is None else words * WORD, *at, direction)
        yield from WAIT.at(self._count(f"{folder}/counters/port_xmit_wait"), *at)
        for metric, where, kinds in (
            (ERRORS, "counters", ERROR_KINDS),
            (CONGESTION_EVENTS, "hw_counters", CONGESTION_KINDS),
            (TRANSPORT_ERRORS, "hw_counters", TRANSPORT_ERROR_KINDS),
        ):
            for name, kind in kinds.items():
                yield from metric.at(self._count(f"{folder}/{where}/{name}"), *at, kind)
        with contextlib.suppress(OSError, ValueError):
            yield from RATE.at(parse_rate(self.node.read_text(f"{folder}/rate")), *at)
        with contextlib.suppress(OSError):
            state = self.node.read_text(f"{folder}/state").strip()
            yield from ACTIVE.at(float(state == "4: ACTIVE"), *at)

    def _count(self, path: str) -> float | None:
        """A counter, or None if the adapter lacks it: no file, or "N/A (no PMA)"."""
        try:
            return counter(self.node.read_text(path))
        except (OSError, ValueError):
            return None


NODE_SOURCE: NodeSource = Infiniband
