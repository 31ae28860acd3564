"""What a rule remembers of a fault, and the evidence that it has been repaired."""

from __future__ import annotations

from alerts.examples import NODE_A, OF_NODE, series
from alerts.model import AT_ONCE, Record
from alerts.promql import NODE
from alerts.recording.clocks import dated

AWAY = "1h"
"""For how long Prometheus may be away and still knows what it remembered."""

BOOTED = "gpunode_node_boot_timestamp_seconds"
WORD = "gpunode_node_repaired_timestamp_seconds"
DECLARED = "node:gpunode_node:declared_repaired"


def unrepaired(moments: str) -> str:
    """What was last known at these moments, without what a person has since said is repaired."""
    return (
        f"({moments} unless on ({NODE}) {DECLARED} "
        f"or {moments} > on ({NODE}) group_left () {DECLARED})"
    )


OF_NODES: tuple[Record, ...] = (
    Record(
        name=DECLARED,
        labels=OF_NODE,
        interval=AT_ONCE,
        expression=dated(f"max by ({NODE}) ({WORD})", NODE),
        purpose="Until when the faults of a node are repaired, by the file of "
        "`--node.repaired-file`.",
        given={series(WORD): 1.0},
        results={(NODE_A,): 7320.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""
