"""What files show of IMEX, through which the nodes of an NVLink domain share memory.

https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/

What its daemon thinks of the domain only ``nvidia-imex-ctl`` tells, and gpunode runs no programs.
The daemon is looked for in the cgroup of its systemd service, which only root can make: any tenant
may give a process its name.
"""

from __future__ import annotations

import re

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

CHANNELS = Metric(
    "gpunode_imex_channels",
    "gauge",
    "IMEX channels on the node (/dev/nvidia-caps-imex-channels); absent without any.",
)
RUNNING = Metric(
    "gpunode_imex_daemon_running",
    "gauge",
    "Whether the service nvidia-imex has a process; a daemon in a pod is not seen. Absent "
    "without a process and a configured domain.",
)
NODES = Metric(
    "gpunode_imex_domain_nodes",
    "gauge",
    "Nodes of the IMEX domain that the node is configured for (/etc/nvidia-imex/nodes_config.cfg).",
)

DEVICES = "/dev/nvidia-caps-imex-channels"
CHANNEL = re.compile(r"channel\d{1,6}")
CONFIGURATION = "/etc/nvidia-imex/nodes_config.cfg"
ADDRESS = re.compile(r"[\w.:%-]{1,253}", re.ASCII)
SERVICES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
"""The cgroup of systemd's services, in version 2 and in version 1."""

SERVICE = "nvidia-imex.service"


def parse(text: str) -> int:
    """How many addresses a list of nodes has, one a line. Raises ``ValueError``."""
    lines = {line.strip() for line in text.splitlines()}
    addresses = {line for line in lines if line and not line.startswith("#")}
    for address in addresses:
        if not ADDRESS.fullmatch(address):
            raise ValueError(f"{CONFIGURATION}: not an address: {address[:80]!r}")
    return len(addresses)


class Imex:
    """Counts channels and configured nodes, and looks for the daemon of the service."""

    name = "imex"
    needs = "a node with IMEX (GB200, GB300), and its /dev, /etc and /sys: its root at path.rootfs"
    metrics = (CHANNELS, RUNNING, NODES)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        samples: list[Sample] = []
        channels = sum(CHANNEL.fullmatch(n) is not None for n in self._list(DEVICES) or ())
        if channels:
            samples += CHANNELS.at(float(channels))
        nodes = self._nodes()
        if nodes:
            samples += NODES.at(float(nodes))
        running = self._running()
        if running or (nodes and running is not None):
            samples += RUNNING.at(float(running))
        return Reading(tuple(samples))

    def _nodes(self) -> int:
        try:
            return parse(self.node.read_text(CONFIGURATION))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return 0

    def _running(self) -> bool | None:
        """Whether the service has a process; None if the node shows no services."""
        for folder in SERVICES:
            services = self._list(folder)
            if services is None:
                continue
            if SERVICE not in services:
                return False
            try:
                return bool(self.node.read_text(f"{folder}/{SERVICE}/cgroup.procs").strip())
            except FileNotFoundError:  # it has just stopped
                return False
        return None

    def _list(self, folder: str) -> list[str] | None:
        try:
            return self.node.list_directory(folder)
        except (FileNotFoundError, NotADirectoryError):
            return None


NODE_SOURCE: NodeSource = Imex
