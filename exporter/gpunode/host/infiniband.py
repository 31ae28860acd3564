"""InfiniBand and RoCE ports."""

from __future__ import annotations

from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Reading


class Infiniband:
    """InfiniBand and RoCE ports."""

    name = "infiniband"
    device = gpu = ""
    metrics: tuple[Metric, ...] = ()

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.every = interval

    def read(self) -> Reading:
        return Reading(())
