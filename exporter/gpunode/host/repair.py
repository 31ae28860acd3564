"""Evidence that a node has been repaired: when it was started, and what a person or a test says.

A fault that has no end of its own, such as an XID, is told until there is such evidence
(``docs/rules.md``).
"""

from __future__ import annotations

import re

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

BOOTED = Metric(
    "gpunode_node_boot_timestamp_seconds",
    "gauge",
    "Unix time at which the node was started (/proc/stat: btime).",
)
REPAIRED = Metric(
    "gpunode_node_repaired_timestamp_seconds",
    "gauge",
    "Unix time up to which the faults of the node are repaired, as the file of the setting "
    "--node.repaired-file says; absent without one.",
)
BTIME = re.compile(r"^btime ([0-9]{1,12})$", re.MULTILINE)
MOMENT = re.compile(r"[0-9]{1,12}")


def parse_boot(text: str) -> float | None:
    """When the node was started, by /proc/stat; None if it does not say."""
    found = BTIME.search(text)
    return float(found[1]) if found else None


def parse_repaired(text: str) -> float:
    """The Unix time in a file that ``date +%s`` has written. Raises ``ValueError``."""
    if not MOMENT.fullmatch(text.strip()):
        raise ValueError("the file of --node.repaired-file has no Unix time; write date +%s to it")
    return float(text)


class Repair:
    """Reads when the node was started, and the file that says it is repaired."""

    name = "repair"
    needs = "/proc/stat of the node: its root at path.rootfs"
    metrics = (BOOTED, REPAIRED)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.path = settings.node.repaired_file
        self.every = settings.host.interval

    def read(self) -> Reading:
        return Reading((*self._booted(), *self._repaired()))

    def _booted(self) -> tuple[Sample, ...]:
        try:
            booted = parse_boot(self.node.read_text("/proc/stat"))
        except FileNotFoundError:  # not on this tape
            return ()
        return () if booted is None else (*BOOTED.at(booted),)

    def _repaired(self) -> tuple[Sample, ...]:
        if not self.path:
            return ()
        try:
            text = self.node.read_text(self.path)
        except FileNotFoundError:
            return ()
        return (*REPAIRED.at(parse_repaired(text)),)


NODE_SOURCE: NodeSource = Repair
