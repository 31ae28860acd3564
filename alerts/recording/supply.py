"""What is free and in how large pieces, and what is asked for and not given."""

from __future__ import annotations

from alerts.examples import HELD, ledger, series
from alerts.model import FOR_HOURS, Record
from alerts.promql import NODE
from alerts.recording.faults import CORDONED

BY_STATE = "node:gpunode_gpu_seconds:rate5m"
HELD_OF_NODE = "node:gpunode_job:gpus"
FREE = f'(sum by ({NODE}) ({BY_STATE}{{state="free"}}) unless on ({NODE}) {CORDONED})'

_OF_PODS = (
    "max by (cluster, namespace, pod, container) "
    '(kube_pod_container_resource_requests{resource="nvidia_com_gpu"}) '
    "and on (cluster, namespace, pod) "
    'max by (cluster, namespace, pod) (kube_pod_status_phase{phase="Pending"}) == 1'
)
POD = {
    "namespace": "research",
    "pod": "a-worker-0",
    "uid": "5f3c8a52-6d0e-4b7a-9f6e-0d1c2b3a4f5e",
    "instance": "10.0.0.9:8080",
}

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="cluster:gpunode_gpu_free:whole",
        labels=("cluster",),
        interval=FOR_HOURS,
        expression=f"sum by (cluster) ({FREE} unless on ({NODE}) {HELD_OF_NODE})",
        purpose="Free GPUs on nodes of which no job holds any, without those that take no jobs.",
        given=ledger(free=1.0),
        results={(): 1.0},
    ),
    Record(
        name="cluster:gpunode_gpu_free:scattered",
        labels=("cluster",),
        interval=FOR_HOURS,
        expression=f"sum by (cluster) ({FREE} and on ({NODE}) {HELD_OF_NODE})",
        purpose="Free GPUs on nodes of which a job holds others: a job that takes whole nodes "
        "cannot have them.",
        given={**HELD, **ledger(free=0.25)},
        results={(): 0.25},
    ),
    Record(
        name="namespace:gpunode_gpu:pending",
        labels=("cluster", "owner_namespace"),
        interval=FOR_HOURS,
        expression="sum by (cluster, owner_namespace) (label_replace("
        f'{_OF_PODS}, "owner_namespace", "$1", "namespace", "(.*)"))',
        purpose="GPUs that pods ask for and have not been given, as kube-state-metrics says. A job "
        "that a queue holds back has no pod yet.",
        given={
            series(
                "kube_pod_container_resource_requests",
                **POD,
                container="main",
                node="",
                resource="nvidia_com_gpu",
                unit="integer",
            ): 8.0,
            series("kube_pod_status_phase", **POD, phase="Pending"): 1.0,
        },
        results={("research",): 8.0},
    ),
)
