"""What the node is called, which ``instance`` need not say: that may be an address."""

from __future__ import annotations

import os

from gpunode.config.daemon import Settings
from gpunode.node.node import Node, names_in, text_of
from gpunode.text import printable

MAX_NAME = 253
"""Characters of a name: the most that Kubernetes and DNS allow."""

SLURM = ("/etc/slurm", "/run/slurm")
"""Where slurmd has its configuration, also if it gets it from its controller.
https://slurm.schedmd.com/configless_slurm.html"""


def given_name(node: Node, settings: Settings) -> str:
    """What Kubernetes or Slurm calls the node; empty if that is not known.

    A pod is told it by a variable, from ``spec.nodeName``. Slurm goes by the name of the host.
    """
    told = _configured_name(settings)
    if not told and any(names_in(node, folder) for folder in SLURM):
        told = _host(node).partition(".")[0]
    return told


def name(node: Node, settings: Settings) -> str:
    """What the node was said to be called, or else the host's name; a container has its own."""
    return _configured_name(settings) or _host(node)


def _configured_name(settings: Settings) -> str:
    return printable(settings.web.node_name or os.environ.get("NODE_NAME", ""), MAX_NAME)


def _host(node: Node) -> str:
    return printable(text_of(node, "/proc/sys/kernel/hostname"), MAX_NAME)
