"""The exporters: without them, every other alert is silent; and faults that many nodes share."""

from __future__ import annotations

from alerts.examples import HELD, ledger, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import GPU, NODE, of_gpus, state
from alerts.recording.absence import WITHOUT_EXPORTER
from alerts.recording.events import WITH_GPUS
from alerts.recording.faults import CORDONED, TARGETS, UP
from alerts.recording.latched import SCRAPED_TODAY
from alerts.settings import CERTIFICATE_LEFT, KNOWN_SHARE
from alerts.thresholds.references import LEDGER

DISK_SOURCE = series("gpunode_source_up", source="disk", gpu="", uuid="", mountpoint="")
CERTIFICATE = series("gpunode_tls_certificate_expiry_timestamp_seconds")
UNREAD = series("gpunode_unread_total", source="kernel_log", what="kernel_line")
ALLOCATABLE_GPUS = series(
    "kube_node_status_allocatable",
    resource="nvidia_com_gpu",
    unit="integer",
    node="node-b",
    instance="10.0.0.9:8080",
)
ON_NODE_B = series("up", job="gpunode", instance="node-b")
HELD_ON_B = {
    type(one)(one.metric, (*one.labels, ("instance", "node-b"))): value
    for one, value in HELD.items()
}

EXPORTER = (
    Threshold(
        alert="FleetFault",
        group="exporter",
        summary="Many nodes have the same fault",
        summary_ko="여러 노드에서 같은 장애가 발생했습니다",
        says="nodes with the same fault, {fault}: {value}",
        when="{fleet_nodes} nodes have the same fault, {fault}, or {fleet_least} that are "
        "{fleet_share} of the nodes, or none is left to see of a cluster whose GPUs were in use",
        meaning="The fault is likely one thing that they share: a switch, power, cooling, a "
        "driver, a "
        "network policy.",
        remedy="Look for what the nodes have in common before you look at any of them.",
        source="https://sre.google/sre-book/practical-alerting/",
        record="cluster:gpunode_event:nodes",
        window="0s",
        unit="count",
        tiers=(
            Tier(severity="page", threshold=0.0, after="30s"),
            Tier(
                severity="ticket",
                threshold=0.0,
                after="5m",
                record="cluster:gpunode_fault:fleet_any",
            ),
        ),
        scope="fault",
        every="15s",
        keep_firing_for="10m",
        example=Example(
            fires={UP: 0.0, ON_NODE_B: 0.0, **HELD, **HELD_ON_B},
            quiet={UP: 1.0, ON_NODE_B: 1.0},
            value=2.0,
            labels={"fault": "exporter"},
        ),
    ),
    Threshold(
        alert="GpunodeDown",
        group="exporter",
        summary="The exporter of a GPU node does not answer",
        summary_ko="GPU 노드의 gpunode 익스포터가 응답하지 않습니다",
        says="the exporter answers {value} of the scrapes",
        meaning="The node, its network or the exporter is down, or the exporter starts again and "
        "again.",
        remedy="Bring the node back, or restart the exporter.",
        source="https://prometheus.io/docs/concepts/jobs_instances/",
        record="node:gpunode_exporter:answered",
        window="10m",
        unit="percent",
        comparison="<",
        tiers=(
            Tier(severity="ticket", threshold=0.5, after="15m", unless=CORDONED),
            Tier(
                severity="page",
                threshold=0.5,
                after="3m",
                record="node:gpunode_down:unexplained",
                unless=CORDONED,
                says="Prometheus cannot scrape the exporter, and GPUs of the node were in use",
            ),
        ),
        scope="node",
        fault="exporter",
        needs_all_nodes=True,
        keep_firing_for="10m",
        example=Example(fires={UP: 0.0, **HELD}, quiet={UP: 1.0}, value=0.0),
    ),
    Threshold(
        alert="GpunodeAbsent",
        group="exporter",
        summary="No exporter of any GPU node is scraped",
        summary_ko="gpunode 익스포터가 하나도 수집되지 않습니다",
        says="Prometheus has no target any more in a job whose name contains gpunode",
        when="Prometheus has no target any more in a job whose name contains gpunode, of a cluster "
        "that had some within a day or of any",
        meaning="The DaemonSet is gone, or Prometheus no longer discovers it.",
        remedy="Restore the DaemonSet, the PodMonitor or the scrape configuration.",
        source="https://prometheus.io/docs/prometheus/latest/querying/functions/#absent",
        record="cluster:gpunode_exporter:absent",
        signal=(
            f"group by (cluster) ({SCRAPED_TODAY}) "
            f"unless on (cluster) count by (cluster) ({TARGETS}) or on () absent({TARGETS})"
        ),
        window="0s",
        unit="flag",
        tiers=(Tier(severity="ticket", threshold=0.5, after="10m"),),
        scope="cluster",
        example=Example(fires={UP: None}, quiet={UP: 1.0}, value=1.0),
    ),
    Threshold(
        alert="GpunodeMissing",
        group="exporter",
        summary="A node has GPUs but no exporter",
        summary_ko="GPU 노드에 gpunode 익스포터가 없습니다",
        says="GPUs that no exporter watches: {value}",
        meaning="Kubernetes lists GPUs on a node that Prometheus does not scrape, though it "
        "scrapes "
        "others by their names. Without kube-state-metrics: the exporter of a node is no target "
        "any more, though others of the node answer, or, where none is scraped, its GPUs were "
        "in use.",
        remedy="Tolerate the node's taints, or restore the exporter's pod.",
        source="https://github.com/kubernetes/kube-state-metrics/tree/main/docs",
        record="node:gpunode_gpus:unwatched",
        signal=(
            f"{WITH_GPUS} unless on ({NODE}) max by ({NODE}) ({TARGETS}) "
            f"and on (cluster) count by (cluster) ({WITH_GPUS} and on ({NODE}) "
            f"max by ({NODE}) ({TARGETS})) "
            f"or on ({NODE}) ({WITHOUT_EXPORTER} "
            f"unless on (cluster) count by (cluster) ({WITH_GPUS}))"
        ),
        window="0s",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="30m"),),
        scope="node",
        dashboard="health",
        needs_all_nodes=True,
        example=Example(
            fires={
                UP: 1.0,
                ON_NODE_B: None,
                ALLOCATABLE_GPUS: 8.0,
                series(
                    "kube_node_status_allocatable",
                    resource="nvidia_com_gpu",
                    unit="integer",
                    node="node-a",
                    instance="10.0.0.9:8080",
                ): 8.0,
            },
            quiet={ON_NODE_B: 1.0},
            value=8.0,
            labels={"instance": "node-b"},
        ),
    ),
    Threshold(
        alert="GpunodeSourceFailing",
        group="exporter",
        summary="A source of the exporter fails",
        summary_ko="gpunode가 일부 데이터를 수집하지 못하고 있습니다",
        says="reads of source {source} fail",
        meaning="The exporter cannot read a source, so the series of that source are absent.",
        remedy="Fix what the exporter's log names: a privilege, a mount or a driver.",
        source="https://github.com/gpunode/gpunode/blob/main/docs/architecture.md",
        record="node:gpunode_source:up",
        signal=(
            f"min by ({NODE}, source) (max by ({NODE}, source, gpu, uuid, mountpoint) "
            f'(gpunode_source_up{{source!="gpu_activity"}}) unless on ({GPU}) '
            f"gpu:gpunode_gpu_fault:worst == 2) unless on ({NODE}, source) "
            f'(max by ({NODE}, source) (gpunode_source_up{{source="gpu"}}) unless on ({NODE}) '
            f'max by ({NODE}) (gpunode_pcie_device_info{{kind="gpu"}}))'
        ),
        window="0s",
        unit="flag",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=0.5, after="15m"),),
        scope="node",
        dashboard="health",
        labels=("source",),
        example=Example(fires={DISK_SOURCE: 0.0}, quiet={DISK_SOURCE: 1.0}, value=0.0),
    ),
    Threshold(
        alert="GpunodeUnread",
        group="exporter",
        summary="The exporter meets what it does not understand",
        summary_ko="gpunode가 해석하지 못하는 데이터가 있습니다",
        says="nodes on which source {source} meets what it does not understand, {what}: {value}",
        meaning="It looks like something that the exporter reads, in a form that it does not know. "
        "Whatever it says is in no other series, and no other alert looks at it.",
        remedy="See an example with gpunode doctor on such a node; update gpunode, or report it.",
        source="https://github.com/gpunode/gpunode/blob/main/docs/unread.md",
        record="cluster:gpunode_unread:nodes",
        signal="count by (cluster, source, what) (node:gpunode_unread:increase1h)",
        window="1h",
        unit="count",
        tiers=(Tier(severity="info", threshold=0.0, after="15m"),),
        scope="cluster",
        dashboard="health",
        labels=("source", "what"),
        example=Example(fires={UNREAD: 0.01}, quiet={UNREAD: 0.0}, value=1.0),
    ),
    Threshold(
        alert="GpunodeCertificateExpires",
        group="exporter",
        summary="The certificate of an exporter's web server is about to expire",
        summary_ko="gpunode 웹 서버의 인증서가 곧 만료됩니다",
        says="the certificate that the exporter shows has expired, or does within "
        "{certificate_left}",
        meaning="Nothing has renewed it. Once it has expired, Prometheus and whoever else checks "
        "it can no longer read the exporter, and all other alerts on the node are silent.",
        remedy="Renew the certificate where web.config.file names it; no restart is needed.",
        source="https://github.com/gpunode/gpunode/blob/main/docs/security.md#tls-and-passwords",
        record="node:gpunode_certificate:expires",
        signal=(
            f"min by ({NODE}) (gpunode_tls_certificate_expiry_timestamp_seconds) - time() "
            f"< bool {CERTIFICATE_LEFT}"
        ),
        window="0s",
        unit="flag",
        tiers=(Tier(severity="ticket", threshold=0.5, after="15m"),),
        scope="node",
        example=Example(fires={CERTIFICATE: 1.0}, quiet={CERTIFICATE: 4e9}, value=1.0),
    ),
    Threshold(
        alert="GpuLedgerBlind",
        group="exporter",
        summary="The exporter can no longer tell what a GPU does",
        summary_ko="GPU가 무엇을 하는지 더 이상 측정할 수 없습니다",
        says="no sensor could tell what it did for {value} of the time, where one could "
        "for {known_share} of a day",
        meaning="The driver returns errors, or sensors are gone that were there. MIG instances and "
        "GPUs before Hopper have none without DCGM, of which nobody is notified.",
        remedy="Reset the GPU if it is lost; restart DCGM; see the exporter's log.",
        source=LEDGER,
        record="gpu:gpunode_gpu_unknown:ratio",
        signal=(
            f"max by ({GPU}) ({state('unknown')}) and on ({GPU}) "
            f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate1d{{state!="unknown"}}) > {KNOWN_SHARE} '
            f"unless on ({GPU}) {of_gpus('gpunode_gpu_mig_mode')} == 1"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.5, after="30m"),),
        scope="gpu",
        example=Example(fires=ledger(unknown=0.9), quiet=ledger(unknown=0.05), value=0.9),
    ),
)
