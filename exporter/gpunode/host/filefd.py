"""Open files on the whole node: at the limit, unprivileged programs cannot open more.

https://docs.kernel.org/admin-guide/sysctl/fs.html#file-max-file-nr
"""

from __future__ import annotations

from gpunode.config.daemon import Settings
from gpunode.metric import Metric
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

ALLOCATED = Metric(
    "gpunode_filefd_allocated", "gauge", "Open files on the node (/proc/sys/fs/file-nr)."
)
MAXIMUM = Metric(
    "gpunode_filefd_maximum", "gauge", "Limit on open files on the node (/proc/sys/fs/file-nr)."
)


def parse(text: str) -> tuple[float, float]:
    """The number of open files and its limit. Raises ``ValueError``."""
    allocated, _, maximum = map(counter, text.split())
    return allocated, maximum


class OpenFiles:
    """Reads the number of open files and its limit."""

    name = "filefd"
    needs = "/proc/sys of the node: its root at path.rootfs"
    metrics = (ALLOCATED, MAXIMUM)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        try:
            allocated, maximum = parse(self.node.read_text("/proc/sys/fs/file-nr"))
        except FileNotFoundError:  # not on this tape
            return Reading(())
        return Reading((*ALLOCATED.at(allocated), *MAXIMUM.at(maximum)))


NODE_SOURCE: NodeSource = OpenFiles
