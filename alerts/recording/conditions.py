"""What Kubernetes says of nodes, beside their faults: conditions that are not as they should be."""

from __future__ import annotations

from alerts.examples import NODE_A, OF_NODE, series
from alerts.model import Record, Series
from alerts.promql import NODE
from alerts.recording.faults import CORDONED

METRIC = "kube_node_status_condition"
READY = "Ready"
"""The condition that is well where it is true. That others are true is a problem, by convention:
https://github.com/kubernetes/node-problem-detector#problem-api"""

_NOT_WELL = (
    f'{METRIC}{{condition="{READY}",status!="true"}} == 1 '
    f'or {METRIC}{{condition!="{READY}",status="true"}} == 1'
)


def _condition(condition: str, status: str) -> Series:
    return series(METRIC, condition=condition, status=status, node=NODE_A)


OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="node:gpunode_node:condition",
        labels=(*OF_NODE, "condition"),
        expression=(
            f"max by ({NODE}, condition) (label_replace(label_replace("
            f'{_NOT_WELL}, "condition", "not ready", "condition", "{READY}"), '
            '"instance", "$1", "node", "(.+)")) '
            f"or on ({NODE}, condition) "
            f'label_replace({CORDONED}, "condition", "cordoned or drained", "", "")'
        ),
        purpose="Conditions of a node that are not as they should be, as kube-state-metrics says, "
        "and whether it is cordoned or drained. They notify nobody.",
        given={
            _condition(READY, "true"): 0.0,
            _condition(READY, "false"): 0.0,
            _condition(READY, "unknown"): 1.0,
            _condition("DiskPressure", "true"): 1.0,
            _condition("MemoryPressure", "true"): 0.0,
            series("kube_node_spec_unschedulable", node=NODE_A): 1.0,
        },
        results={
            (NODE_A, "not ready"): 1.0,
            (NODE_A, "DiskPressure"): 1.0,
            (NODE_A, "cordoned or drained"): 1.0,
        },
    ),
)
"""Rules for the Prometheus that scrapes kube-state-metrics."""
