"""The helpers that read for the daemon what it may not: whether they answer, and what they cost.

What they read is missing while they do not, and the sources that ask for it count it as unreadable.
"""

from __future__ import annotations

from gpunode.config.daemon import Settings
from gpunode.metric import Metric
from gpunode.node.node import Node, NotRecorded
from gpunode.source import NodeSource, Reading

CPU = Metric(
    "gpunode_helper_cpu_seconds_total",
    "counter",
    "CPU seconds of a helper that does for the daemon what takes privilege (`gpunode helper`).",
    ("helper",),
)


class Helpers:
    """Asks each helper that there has been."""

    name = "helpers"
    needs = "`gpunode helper` on this node, and path.helpers"
    metrics = (CPU,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        try:
            cost = self.node.helpers()
        except NotRecorded:
            cost = {}
        return Reading(tuple(s for name, used in cost.items() for s in CPU.at(used, name)))


NODE_SOURCE: NodeSource = Helpers
