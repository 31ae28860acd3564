"""The node's own /dev/shm, and an estimate of when a /dev/shm will be full."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

SIZE = Metric("gpunode_shm_size_bytes", "gauge", "Size of the node's /dev/shm (statvfs).")
USED = Metric("gpunode_shm_used_bytes", "gauge", "Space used in the node's /dev/shm (statvfs).")
FULL = Metric(
    "gpunode_shm_full_seconds",
    "gauge",
    "Seconds until the node's /dev/shm is full at the rate of the last minute; absent while it is "
    "not filling (statvfs).",
)

SLOPE_OVER = 60.0
"""Seconds over which to measure the rate."""


class Filling:
    """Predicts when something is full from the loss of free space over the last minute."""

    def __init__(self) -> None:
        self._free: deque[tuple[float, float]] = deque()

    def add(self, now: float, free: float) -> float | None:
        """Seconds until no space is free, or None while free space does not shrink."""
        self._free.append((now, free))
        while now - self._free[0][0] > SLOPE_OVER:
            self._free.popleft()
        begin, before = self._free[0]
        lost = before - free
        return free * (now - begin) / lost if lost > 0 else None


class Shm:
    """Reads the /dev/shm that the node's own processes see."""

    name = "shm"
    needs = "the node's /dev/shm: its root at path.rootfs"
    metrics = (SIZE, USED, FULL)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self.filling = Filling()

    def read(self) -> Reading:
        return Reading(tuple(self._samples()))

    def _samples(self) -> Iterator[Sample]:
        try:
            space = self.node.filesystem("/dev/shm")  # noqa: S108 not a file of ours
        except FileNotFoundError:
            return
        yield from SIZE.at(space.size)
        yield from USED.at(space.size - space.free)
        yield from FULL.at(self.filling.add(self.node.clock.monotonic(), space.free))


NODE_SOURCE: NodeSource = Shm
