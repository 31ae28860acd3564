"""Space in the filesystems that jobs use, each read in a thread of its own: one can hang."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Source


class Filesystems:
    """One source for each mounted filesystem of a kind that holds data."""

    metrics: tuple[Metric, ...] = ()

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.interval = interval

    def find(self) -> Iterable[Source]:
        """The sources of what is mounted now; they stay the same objects while it is."""
        return ()
