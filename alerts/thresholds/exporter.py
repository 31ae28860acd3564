"""The exporter itself: without it, every other alert is silent."""

from __future__ import annotations

from alerts.thresholds.references import LEDGER
from alerts.thresholds.row import NODE, Example, Threshold, Tier, ledger, series, state

TARGETS = 'up{job=~".*gpunode.*"}'
UP = series("up", job="gpunode")
DISK_SOURCE = series("gpunode_source_up", source="disk", gpu="", uuid="", mountpoint="")
ALLOCATABLE_GPUS = series(
    "kube_node_status_allocatable",
    resource="nvidia_com_gpu",
    unit="integer",
    node="node-a",
    instance="10.0.0.9:8080",
)

EXPORTER = (
    Threshold(
        alert="GpunodeDown",
        group="exporter",
        summary="The exporter of a GPU node does not answer",
        summary_ko="gpunode 익스포터가 응답하지 않습니다",
        says="Prometheus cannot scrape the exporter",
        meaning="The node, its network or the exporter is down.",
        remedy="Bring the node back, or restart the exporter.",
        source="https://prometheus.io/docs/concepts/jobs_instances/",
        signal=f"max by ({NODE}) ({TARGETS})",
        window="0s",
        unit="flag",
        comparison="<",
        tiers=(Tier(severity="critical", threshold=0.5, after="5m"),),
        scope="node",
        gate="always",
        example=Example(fires={UP: 0.0}, quiet={UP: 1.0}, value=0.0),
    ),
    Threshold(
        alert="GpunodeAbsent",
        group="exporter",
        summary="No exporter of any GPU node is scraped",
        summary_ko="수집되는 gpunode 익스포터가 없습니다",
        says="Prometheus has no target in a job whose name contains gpunode",
        meaning="The DaemonSet is gone, or Prometheus no longer discovers it.",
        remedy="Restore the DaemonSet, the PodMonitor or the scrape configuration.",
        source="https://prometheus.io/docs/prometheus/latest/querying/functions/#absent",
        signal=(
            f"((count by (cluster) ({TARGETS} offset 1h) "
            f"or on (cluster) count by (cluster) ({TARGETS} offset 1d)) "
            f"unless on (cluster) count by (cluster) ({TARGETS}) "
            f"or on () absent({TARGETS}))"
        ),
        window="0s",
        unit="flag",
        tiers=(Tier(severity="critical", threshold=0.5, after="10m"),),
        scope="cluster",
        gate="always",
        over_nodes=True,
        example=Example(fires={UP: None}, quiet={UP: 1.0}, value=1.0),
    ),
    Threshold(
        alert="GpunodeMissing",
        group="exporter",
        summary="A node has GPUs but no exporter",
        summary_ko="GPU 노드에 gpunode 익스포터가 없습니다",
        says="GPUs that no exporter watches: {value}",
        meaning="Kubernetes lists GPUs on a node that Prometheus does not scrape.",
        remedy="Tolerate the node's taints, or restore the exporter's pod.",
        source="https://github.com/kubernetes/kube-state-metrics/tree/main/docs",
        signal=(
            f"max by ({NODE}) "
            '(label_replace(kube_node_status_allocatable{resource="nvidia_com_gpu"}, '
            '"instance", "$1", "node", "(.+)"))'
        ),
        where=f"unless on ({NODE}) max by ({NODE}) ({TARGETS})",
        window="0s",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.0, after="15m"),),
        scope="node",
        gate="always",
        over_nodes=True,
        example=Example(fires={ALLOCATABLE_GPUS: 8.0, UP: None}, quiet={UP: 1.0}, value=8.0),
    ),
    Threshold(
        alert="GpunodeSourceFailing",
        group="exporter",
        summary="A source of the exporter fails",
        summary_ko="gpunode의 데이터 수집이 실패하고 있습니다",
        says="reads of source {source} fail",
        meaning="The exporter cannot read a source, so the series of that source are absent.",
        remedy="Fix what the exporter's log names: a privilege, a mount or a driver.",
        source="https://github.com/gpunode/gpunode/blob/main/docs/architecture.md",
        signal=f"min by ({NODE}, source, gpu, uuid, mountpoint) (gpunode_source_up)",
        window="0s",
        unit="flag",
        comparison="<",
        tiers=(Tier(severity="warning", threshold=0.5, after="15m"),),
        scope="node",
        labels=("source", "gpu", "uuid", "mountpoint"),
        gate="always",
        example=Example(fires={DISK_SOURCE: 0.0}, quiet={DISK_SOURCE: 1.0}, value=0.0),
    ),
    Threshold(
        alert="GpuLedgerBlind",
        group="exporter",
        summary="The exporter cannot tell what a GPU does",
        summary_ko="GPU 상태를 알 수 없습니다",
        says="no sensor could tell what it did for {value} of the time",
        meaning="The driver returns errors, the GPU is lost, or its sensors are missing.",
        remedy="Reset the GPU if it is lost; upgrade the driver if sensors are missing.",
        source=LEDGER,
        signal=state("unknown"),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.5, after="30m"),),
        gate="always",
        example=Example(fires=ledger(unknown=0.9), quiet=ledger(unknown=0.2), value=0.9),
    ),
)
