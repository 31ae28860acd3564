"""When something happened, whatever the clock of its node says."""

from __future__ import annotations

from alerts.examples import NODE_A, OF_NODE, series
from alerts.model import AT_ONCE, Record
from alerts.promql import NODE
from alerts.settings import CLOCK_OFF

CLOCK = "gpunode_clock_timestamp_seconds"
AHEAD = "node:gpunode_clock:ahead"
_AHEAD = f"{CLOCK} - timestamp({CLOCK})"


def dated(moments: str, by: str) -> str:
    """Moments by the clock of their nodes as moments by Prometheus' clock."""
    return f"({moments} - on ({NODE}) group_left () {AHEAD} or on ({by}) {moments})"


OF_NODES: tuple[Record, ...] = (
    Record(
        name=AHEAD,
        labels=OF_NODE,
        interval=AT_ONCE,
        expression=(f"max by ({NODE}) ({_AHEAD}) and on ({NODE}) abs({_AHEAD}) > {CLOCK_OFF}"),
        purpose="Seconds by which the clock of a node is ahead of Prometheus' clock, or behind if "
        "negative, where it is wrong.",
        given={
            series(CLOCK, instance=NODE_A): 0.0,
            series(CLOCK, instance="node-b"): 1.0,
        },
        results={(NODE_A,): -7320.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""
