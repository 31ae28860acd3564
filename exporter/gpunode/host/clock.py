"""The node's wall clock. Prometheus knows when it scraped, and so by how much the clock is wrong.

A clock that is an hour behind makes everything that happens on the node look an hour old.
"""

from __future__ import annotations

from gpunode.config.daemon import Settings
from gpunode.metric import Metric
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

TIME = Metric(
    "gpunode_clock_timestamp_seconds",
    "gauge",
    "The node's clock as Unix time (CLOCK_REALTIME); less `timestamp()` of this series, it is "
    "how far it is ahead of Prometheus.",
)


class WallClock:
    """Reads the wall clock."""

    name = "clock"
    needs = "nothing: every node has a clock"
    metrics = (TIME,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        return Reading((*TIME.at(self.node.clock.time()),))


NODE_SOURCE: NodeSource = WallClock
