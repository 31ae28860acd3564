"""Where nodes stand, by what a site tells of it: racks, leaf switches, domains of NVLink."""

from __future__ import annotations

from alerts.examples import HELD, NODE_A, OF_NODE, series
from alerts.model import FOR_HOURS, Record
from alerts.promql import NODE
from alerts.recording.faults import INFO, UP
from alerts.recording.parts import HELD_BACK_OF_NODE
from alerts.settings import SCRAPE_JOBS

PLACE = "node:gpunode_place:info"
OF_PLACE = ("cluster", "kind", "place")
BY_PLACE = ", ".join(OF_PLACE)

RACK = "rack"
LEAF = "leaf switch"
DOMAIN = "NVLink domain"

NODE_LABELS = {
    "label_topology_kubernetes_io_rack": RACK,
    "label_network_topology_nvidia_com_leaf": LEAF,
    "label_fabric_topograph_run_tier_0": LEAF,
    "label_topology_k8s_aws_network_node_layer_3": LEAF,
}
"""Labels of Kubernetes' nodes, as kube-state-metrics hands on those that it is told to.
https://docs.nvidia.com/topograph/reference/node-labels-and-annotations and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology.html"""

TARGET_LABELS = {"rack": RACK, "leaf": LEAF}
"""Labels that a site gives to the exporter's targets in Prometheus."""

IN_A_DOMAIN = series(
    "gpunode_gpu_info",
    **{**dict(INFO.labels), "cluster_uuid": "8c0cdb2b-1f0f-4a64-9a5e-0c1b2d3e4f50"},
)
IN_A_RACK = {
    series(
        "kube_node_labels",
        node=NODE_A,
        instance="10.0.0.9:8080",
        label_topology_kubernetes_io_rack="r07",
    ): 1.0
}


def _place(series_of: str, label: str, kind: str) -> str:
    named = f'label_replace({series_of}, "place", "$1", "{label}", "(.+)")'
    return f'group by ({NODE}, kind, place) (label_replace({named}, "kind", "{kind}", "", ""))'


def _of_node(label: str) -> str:
    told = f'max by (cluster, node, {label}) (kube_node_labels{{{label}!=""}})'
    return f'label_replace({told}, "instance", "$1", "node", "(.+)")'


_TOLD = " or ".join(
    (
        *(
            _place(f'up{{job=~"{SCRAPE_JOBS}",{label}!=""}}', label, kind)
            for label, kind in TARGET_LABELS.items()
        ),
        *(_place(_of_node(label), label, kind) for label, kind in NODE_LABELS.items()),
        _place('gpunode_gpu_info{cluster_uuid!="",parent=""}', "cluster_uuid", DOMAIN),
    )
)
"""One label may contradict another: see ``_at_places``."""


def _at_places(of_nodes: str, by: str) -> str:
    """Sums over the nodes of each place, without nodes that labels put in several of a kind."""
    return " or ".join(
        f"sum by ({by}) (({of_nodes}) * on ({NODE}) group_left (kind, place) "
        f"({of_kind} and on ({NODE}) count by ({NODE}) ({of_kind}) == 1))"
        for of_kind in (f'{PLACE}{{kind="{kind}"}}' for kind in (RACK, LEAF, DOMAIN))
    )


OF_NODES: tuple[Record, ...] = (
    Record(
        name=PLACE,
        labels=(*OF_NODE, "kind", "place"),
        interval=FOR_HOURS,
        expression=_TOLD,
        purpose="The rack, the leaf switch and the domain of NVLink of each node. The first two "
        "are labels `rack` and `leaf` of the exporter's targets, or labels of Kubernetes' nodes "
        "that kube-state-metrics hands on.",
        given={
            **IN_A_RACK,
            series("up", job="gpunode", leaf="sw-3"): 0.0,
            IN_A_DOMAIN: 1.0,
        },
        results={
            (NODE_A, RACK, "r07"): 1.0,
            (NODE_A, LEAF, "sw-3"): 1.0,
            (NODE_A, DOMAIN, "8c0cdb2b-1f0f-4a64-9a5e-0c1b2d3e4f50"): 1.0,
        },
    ),
)

OF_PLACES: tuple[Record, ...] = (
    Record(
        name="place:gpunode_node:count",
        labels=OF_PLACE,
        interval=FOR_HOURS,
        expression=f"count by ({BY_PLACE}) ({PLACE})",
        purpose="Nodes of each rack, leaf switch and domain of NVLink.",
        given=IN_A_RACK,
        results={(RACK, "r07"): 1.0},
    ),
    Record(
        name="place:gpunode_gpu_bottleneck:count",
        labels=(*OF_PLACE, "cause"),
        expression=_at_places(HELD_BACK_OF_NODE, f"{BY_PLACE}, cause"),
        purpose="GPUs by what holds them back, for each rack, leaf switch and domain of NVLink.",
        given={
            **IN_A_RACK,
            series("gpunode_gpu_bottleneck", cause="shm"): 1.0,
            series("gpunode_gpu_bottleneck", cause="straggler"): 0.0,
        },
        results={(RACK, "r07", "shm"): 1.0},
    ),
    Record(
        name="place:gpunode_fault:nodes",
        labels=OF_PLACE,
        expression=_at_places(f"count by ({NODE}) (node:gpunode_fault:level)", BY_PLACE),
        purpose="Nodes with a fault of their own, for each rack, leaf switch and domain of NVLink.",
        given={**IN_A_RACK, UP: 0.0, **HELD},
        results={(RACK, "r07"): 1.0},
    ),
)
