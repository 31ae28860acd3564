"""Latency of the network: how long packets of the node's TCP connections travel, there and back."""

from __future__ import annotations

from statistics import median

from gpunode.config.daemon import Settings
from gpunode.metric import Metric
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

ROUND_TRIP = Metric(
    "gpunode_tcp_round_trip_seconds",
    "gauge",
    "Median of the smoothed round-trip times of open TCP connections to other machines, in "
    "gpunode's network namespace (sock_diag: tcpi_rtt).",
)


class RoundTrips:
    """Asks the kernel about the connections that are open."""

    name = "round_trips"
    needs = "hostNetwork, for the connections of the node rather than of gpunode's pod"
    metrics = (ROUND_TRIP,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        try:
            found = self.node.round_trips()
        except FileNotFoundError:  # not on this tape
            return Reading(())
        return Reading((*ROUND_TRIP.at(median(found) if found else None),))


NODE_SOURCE: NodeSource = RoundTrips
