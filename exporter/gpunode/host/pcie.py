"""PCI Express links of GPUs and NICs."""

from __future__ import annotations

from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Reading


class Pcie:
    """PCI Express links of GPUs and NICs."""

    name = "pcie"
    device = gpu = ""
    metrics: tuple[Metric, ...] = ()

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.every = interval

    def read(self) -> Reading:
        return Reading(())
