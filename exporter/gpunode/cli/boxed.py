"""The black box beside a loop."""

from __future__ import annotations

from gpunode.config.daemon import IncidentSettings, StacksSettings
from gpunode.incidents.black_box import BlackBox
from gpunode.node.node import Node


def boxed(
    node: Node, incident: IncidentSettings, stacks: StacksSettings
) -> tuple[Node, tuple[BlackBox, ...]]:
    """The node as the black box records it, and the box, if the settings ask for one."""
    if not incident.keep:
        return node, ()
    box = BlackBox(node, incident, code=stacks.code)
    return box.node, (box,)
