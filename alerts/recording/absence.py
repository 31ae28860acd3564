"""Nodes whose exporter is gone, while the node is not."""

from __future__ import annotations

from alerts.examples import HELD, NODE_A, OF_NODE, series
from alerts.model import AT_ONCE, FOR_HOURS, Record
from alerts.promql import NODE
from alerts.recording.faults import CORDONED, SCRAPED, TARGETS
from alerts.settings import SCRAPE_JOBS

OTHERS = f'up{{job!~"{SCRAPE_JOBS}"}} == 1'
"""What else answers: node-exporter, the kubelet, a pod."""

GPUS_OF_A_DAY = 'node:gpunode_hardware:most_1d{part="gpu"} > 0'

OF_NODES: tuple[Record, ...] = (
    Record(
        name="node:gpunode_job:gpus_last",
        labels=OF_NODE,
        interval=AT_ONCE,
        expression=(
            f"node:gpunode_job:gpus unless on ({NODE}) {CORDONED} "
            f"or on ({NODE}) (node:gpunode_job:gpus_last unless on ({NODE}) {SCRAPED} "
            f"and on ({NODE}) {GPUS_OF_A_DAY})"
        ),
        purpose="GPUs of a node in service that somebody held when its exporter last answered, for "
        "up to a day; the rule reads its own past.",
        given=HELD,
        results={(NODE_A,): 1.0},
    ),
    Record(
        name="node:gpunode_node:answers",
        labels=OF_NODE,
        interval=FOR_HOURS,
        expression=(
            f'max by ({NODE}) (label_replace({OTHERS}, "instance", "$1", "node", "(.+)") '
            f'or label_replace({OTHERS}, "instance", "$1", "instance", "(.+?)(?::[0-9]+)?"))'
        ),
        purpose="Nodes of which something other than gpunode is scraped and answers, by the label "
        "`node` of its target or by its `instance` without the port.",
        given={
            series("up", job="node-exporter", instance="node-a:9100"): 1.0,
            series("up", job="node-exporter", instance="node-c:9100"): 0.0,
            series("up", job="gpunode", instance="node-d"): 1.0,
        },
        results={(NODE_A,): 1.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

_IN_ITS_CLUSTER = "count by (cluster)"
GONE = f"max by ({NODE}) ({GPUS_OF_A_DAY}) unless on ({NODE}) max by ({NODE}) ({TARGETS})"
WITHOUT_EXPORTER = (
    f"({GONE}) and on (cluster) {_IN_ITS_CLUSTER} ({TARGETS}) "
    f"and on ({NODE}) (node:gpunode_node:answers or on ({NODE}) (node:gpunode_job:gpus_last "
    f"unless on (cluster) {_IN_ITS_CLUSTER} (node:gpunode_node:answers "
    f"and on ({NODE}) max by ({NODE}) ({TARGETS}))))"
)
"""Nodes that have had GPUs within a day and are no target any more. Where other exporters of the
nodes are scraped, they tell whether the node is there. Where none is, a node was in use when it was
last seen, or it is taken to be gone for good."""
