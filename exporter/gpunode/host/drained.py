"""Whether somebody has drained the node, which a file says that is there for as long.

Slurm keeps this in its controller, which the daemon does not ask; ``docs/rules.md`` has a script.
"""

from __future__ import annotations

from gpunode.config.daemon import Settings
from gpunode.metric import Metric
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

DRAINED = Metric(
    "gpunode_node_drained",
    "gauge",
    "Whether the node is drained: the file of the setting --node.drained-file is there.",
)


class DrainFile:
    """Looks for the file that the settings name, if they name one."""

    name = "drained"
    needs = "node.drained_file, with a script of Slurm's that makes and removes that file"
    metrics = (DRAINED,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.path = settings.node.drained_file
        self.every = settings.host.interval

    def read(self) -> Reading:
        if not self.path:
            return Reading(())
        folder, _, name = self.path.rpartition("/")
        try:
            there = name in self.node.list_directory(folder or "/")
        except FileNotFoundError:
            there = False
        return Reading((*DRAINED.at(float(there)),))


NODE_SOURCE: NodeSource = DrainFile
