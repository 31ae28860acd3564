"""One event is one alert: what holds up many jobs, which jobs those are, and until when."""

from __future__ import annotations

from alerts.examples import HELD, NODE_A, OF_JOB, OF_NODE, TRAIN, WORKLESS, series
from alerts.model import AT_ONCE, Given, Record
from alerts.promql import FILESYSTEM, GPU, JOB, NODE, by_node
from alerts.recording.faults import CORDONED, PORT_ACTIVE, TARGETS, UP, of_fleet
from alerts.recording.jobs import REMEMBERED, TOGETHER
from alerts.settings import (
    BLOCKED_FROM,
    EXPLAINS_BEFORE,
    FLEET_LEAST,
    RANKS_LEAVE_WITHIN,
    STILL_FROM,
)

FAULT = "cluster, fault"
LATELY = "4m"
"""Longer than FleetFault takes to fire, and shorter than anybody should wait for it."""

FAULTS = (
    "exporter",
    "network",
    "gpu",
    "gpu_missing",
    "nvlink",
    "power_brake",
    "thermal",
    "filesystem",
    "disk",
)
"""What many nodes may have in common, in the order in which one explains another."""

WITH_GPUS = by_node('kube_node_status_allocatable{resource="nvidia_com_gpu"}')
"""Nodes that have GPUs, as Kubernetes knows."""

_PORTS = f"{NODE}, device, port"
_SILENT = (
    f"max by ({NODE}) ({TARGETS}) == 0 and on ({NODE}) max_over_time({TARGETS}[{LATELY}]) == 1"
)
_PORT_LOST = (
    f"count by ({NODE}) (max by ({_PORTS}) (gpunode_infiniband_active) == 0 and on ({_PORTS}) "
    f"max by ({_PORTS}) (max_over_time(gpunode_infiniband_active[{LATELY}])) == 1)"
)


def _lost(expression: str, fault: str) -> str:
    """Nodes with jobs that have just lost something."""
    return (
        f"label_replace({expression} and on ({NODE}) last_over_time(node:gpunode_job:gpus[5m]), "
        f'"fault", "{fault}", "", "")'
    )


_STANDS = f"job:gpunode_workless:seconds > {STILL_FROM}"
_ENDED = (
    f"max by ({GPU}) (max by ({GPU}, pid) (last_over_time(gpunode_gpu_process_info[3m])) "
    f"unless on ({GPU}, pid) max by ({GPU}, pid) (gpunode_gpu_process_info)) "
    f"and on ({NODE}) max by ({NODE}) ({TARGETS}) == 1"
)
"""GPUs that a process has left, on nodes that are seen."""

TWO_DOWN: Given = {
    UP: 0.0,
    series("up", job="gpunode", instance="node-b"): 0.0,
    **HELD,
    series("gpunode_gpu_owner_info", **dict(next(iter(HELD)).labels), instance="node-b"): 1.0,
}
ON_SCRATCH: Given = {
    **HELD,
    WORKLESS: 7320.0,
    series("gpunode_lustre_rpcs_in_flight", filesystem="scratch", server="data"): 8.0,
    series("gpunode_lustre_rpcs_total", filesystem="scratch", server="data"): 0.0,
}

UNSEEN: Given = {one: value for one, value in TWO_DOWN.items() if one.metric != "up"}
SCRAPING = "group(count_over_time(up[2m] offset 90s))"
"""Prometheus has scraped anything at all. When it has just started it has not, and what it finds
nothing of is not gone: its first scrapes take as long as its interval, of up to a minute."""

OF_EVENTS: tuple[Record, ...] = (
    Record(
        name="node:gpunode_lost:lately",
        labels=(*OF_NODE, "fault"),
        interval=AT_ONCE,
        expression=f"{_lost(_SILENT, 'exporter')} or {_lost(_PORT_LOST, 'network')}",
        purpose="Nodes with jobs that have just stopped to answer or lost a port: a job notices "
        "sooner than the alert about what many nodes have in common.",
        given={**HELD, PORT_ACTIVE: 0.0},
        results={},
    ),
    Record(
        name="node:gpunode_event:fault",
        labels=(*OF_NODE, "fault"),
        interval=AT_ONCE,
        expression=(
            f"max by ({NODE}, fault) (node:gpunode_fault:level and on ({FAULT}) "
            "cluster:gpunode_fault:fleet "
            f"or (node:gpunode_lost:lately and on ({FAULT}) "
            f"({of_fleet('node:gpunode_lost:lately')})))"
        ),
        purpose="Faults of a node that many others have, or are about to have.",
        given=TWO_DOWN,
        results={(NODE_A, "exporter"): 2.0},
    ),
    Record(
        name="node:gpunode_event:cause",
        labels=(*OF_NODE, "fault", "filesystem"),
        interval=AT_ONCE,
        expression=(
            f" or on ({NODE}) ".join(
                f'node:gpunode_event:fault{{fault="{fault}"}}' for fault in FAULTS
            )
            + f" or on ({NODE}) 0 * (node:gpunode_storage_silent:active "
            f"and on ({NODE}) count by ({NODE}) (node:gpunode_storage_silent:active) == 1) "
            f"or on ({NODE}) 0 * count by ({NODE}) (node:gpunode_storage_silent:active)"
        ),
        purpose="The event that a node is part of: the first fault that it shares with many, or "
        "else a filesystem that does not answer, without a name if there are several.",
        given=ON_SCRATCH,
        results={(NODE_A, "", "scratch"): 0.0},
    ),
    Record(
        name="job:gpunode_event:gpus",
        labels=(*OF_JOB, "fault", "filesystem"),
        interval=AT_ONCE,
        expression=(
            f"count by ({JOB}, fault, filesystem) (gpu:gpunode_job:member_lately "
            f"* on ({NODE}) group_left (fault, filesystem) node:gpunode_event:cause) "
            f"and on ({JOB}) job:gpunode_workless:seconds > {BLOCKED_FROM} < {EXPLAINS_BEFORE} "
            f"or on ({JOB}) (last_over_time(job:gpunode_event:gpus[{REMEMBERED}]) "
            f"and on ({JOB}) {_STANDS} and on (cluster, fault, filesystem) "
            f"(last_over_time(cluster:gpunode_event:nodes[{REMEMBERED}]) or "
            f"last_over_time(filesystem:gpunode_event:nodes[{REMEMBERED}]))) "
            f"or on ({JOB}) label_replace(job:gpunode_job:gpus and on ({JOB}) "
            f'job:gpunode_stalled:together, "fault", "{TOGETHER}", "", "")'
        ),
        purpose="Jobs that an event holds up, with their GPUs on its nodes; a job that stood still "
        "long before stands for something else. The rule reads its own past until the job works "
        "again or ends: that the fault is repaired does not mend the job.",
        given={**ON_SCRATCH, WORKLESS: 600.0},
        results={(*TRAIN, "", "scratch"): 1.0},
    ),
    Record(
        name="cluster:gpunode_exporter:dark",
        labels=("cluster",),
        interval=AT_ONCE,
        expression=(
            "(count by (cluster) (last_over_time(node:gpunode_job:gpus[10m]) "
            f"unless on ({NODE}) last_over_time({CORDONED}[10m])) "
            f">= {FLEET_LEAST} and on () {SCRAPING} "
            f"or on (cluster) last_over_time(cluster:gpunode_exporter:dark[{REMEMBERED}])) "
            f"unless on (cluster) count by (cluster) ({TARGETS}) "
            f"unless on (cluster) count by (cluster) ({WITH_GPUS})"
        ),
        purpose="Nodes with jobs of a cluster of which nothing is left: no target, and no node "
        "that Kubernetes knows, while Prometheus scrapes something. The rule reads its own past "
        "until a target is back.",
        given={**UNSEEN, series("up", job="prometheus", instance="prometheus"): 1.0},
        results={(): 2.0},
    ),
    Record(
        name="cluster:gpunode_event:nodes",
        labels=("cluster", "fault"),
        interval=AT_ONCE,
        expression=(
            f"cluster:gpunode_fault:fleet or on ({FAULT}) "
            f"(last_over_time(cluster:gpunode_event:nodes[{REMEMBERED}]) "
            f"and on ({FAULT}) job:gpunode_event:gpus) or on ({FAULT}) "
            'label_replace(cluster:gpunode_exporter:dark, "fault", "exporter", "", "") '
            f"or on ({FAULT}) label_replace(count by (cluster) (count by ({NODE}) "
            f"(gpu:gpunode_job:member and on ({JOB}) job:gpunode_stalled:together)), "
            f'"fault", "{TOGETHER}", "", "")'
        ),
        purpose="Nodes that have, or had, a fault in common, until no job stands still for it; and "
        "the nodes of jobs that came to stand still together.",
        given=TWO_DOWN,
        results={("exporter",): 2.0},
    ),
    Record(
        name="filesystem:gpunode_event:nodes",
        labels=("cluster", "filesystem"),
        interval=AT_ONCE,
        expression=(
            f"count by ({FILESYSTEM}) (node:gpunode_storage_silent:active "
            f"and on ({NODE}) node:gpunode_job:gpus "
            f'unless on ({NODE}) node:gpunode_event:cause{{fault=~"network|exporter"}}) '
            f"or on ({FILESYSTEM}) (last_over_time(filesystem:gpunode_event:nodes[{REMEMBERED}]) "
            f"and on ({FILESYSTEM}) job:gpunode_event:gpus)"
        ),
        purpose="Nodes with jobs that wait, or waited, for a filesystem that does not answer, "
        "until no job stands still for it; without nodes that have lost their network.",
        given=ON_SCRATCH,
        results={("scratch",): 1.0},
    ),
    Record(
        name="job:gpunode_ranks:leaving",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"count by ({JOB}) (gpu:gpunode_job:member_lately and on ({GPU}) ({_ENDED})) "
            f"and on ({JOB}) job:gpunode_workless:seconds < {RANKS_LEAVE_WITHIN}"
        ),
        purpose="GPUs of a job that a process has just left: a job that ends rank by rank, "
        "restarts or goes on with fewer ranks stands still for a while.",
        given={**HELD, WORKLESS: 0.0},
        results={},
    ),
)
"""They are evaluated with the alerts that ask."""
