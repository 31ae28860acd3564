"""NFS clients."""

from __future__ import annotations

from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Reading


class Nfs:
    """NFS clients."""

    name = "nfs"
    device = gpu = ""
    metrics: tuple[Metric, ...] = ()

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.every = interval

    def read(self) -> Reading:
        return Reading(())
