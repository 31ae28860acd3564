"""What a dashboard of a whole fleet draws: few series for each cluster, none for each GPU.

A graph of 500 points that asks for 10,000 GPUs at each takes many seconds, and one that asks for
1,250 nodes takes one. What is wrong with GPUs is recorded only where something is.
"""

from __future__ import annotations

from alerts.examples import NODE_A, OF_GPU, OF_NODE, A, ledger, series
from alerts.model import FOR_HOURS, Given, Record
from alerts.promql import GPU, NODE, rate
from alerts.recording.faults import MOST_THROTTLED, THERMAL_SLOWDOWN, UP
from alerts.settings import REMOTE_REQUESTS, SCRAPE_JOBS

READ = "node:gpunode_lustre_read:rate5m"
STORAGE_SECONDS = "node:gpunode_storage_seconds:rate5m"
STORAGE_REQUESTS = "node:gpunode_storage_requests:rate5m"
LUSTRE = ("gpunode_lustre_rpc_seconds_total", "gpunode_lustre_rpcs_total")
NFS = ("gpunode_nfs_rtt_seconds_total", "gpunode_nfs_requests_total")
EXPORTERS = "node:gpunode_exporter:up"
ANSWERING = "cluster:gpunode_exporter:up"
"""Exporters that answer, node by node and in a whole cluster."""

OF_EXPORTERS = f'job=~"{SCRAPE_JOBS}"'
"""Of series that every program has."""

FAILED_CHECKS = "node:gpunode_audit_check:failed"
HOTTEST = "node:gpunode_gpu_temperature:max"
LATELY = f"and on ({NODE}) node:gpunode_gpu_running:max_1h"


def _suffers(counter: str, seconds: str, place: str) -> str:
    """A counter of requests, where a node that is at work has enough of them to suffer."""
    by = f"{NODE}, {place}"
    suffers = f"{rate(counter, by)} and on ({by}) {rate(seconds, by)} > {REMOTE_REQUESTS} {LATELY}"
    named = f'label_replace({suffers}, "filesystem", "$1", "{place}", "(.+)")'
    return f"sum by ({NODE}, filesystem) ({named})"


SUFFERS: Given = {
    **ledger(idle=0.25),
    series(LUSTRE[0], filesystem="scratch", server="data"): 8.0,
    series(LUSTRE[1], filesystem="scratch", server="data"): 100.0,
}

OF_MEMORY: dict[str, tuple[str, str, Given, float]] = {
    "gpu:gpunode_gpu_ecc_uncorrected:max": (
        f'max by ({GPU}) (gpunode_gpu_ecc_errors_total{{kind="uncorrected"}} > 0)',
        "Errors that lost data in the memory of a GPU, ever",
        {series("gpunode_gpu_ecc_errors_total", kind="uncorrected"): 0.5},
        3660.0,
    ),
    "gpu:gpunode_gpu_row_remaps:sum": (
        f"sum by ({GPU}) (max by ({GPU}, kind) (gpunode_gpu_row_remaps_total > 0))",
        "Rows of memory that a GPU has replaced, ever",
        {series("gpunode_gpu_row_remaps_total", kind="corrected"): 0.5},
        3660.0,
    ),
    **{
        f"gpu:{record}:max": (f"max by ({GPU}) ({metric} > 0)", what, {tested: 1.0}, 1.0)
        for record, metric, what, tested in (
            (
                "gpunode_gpu_row_remap_pending",
                "gpunode_gpu_row_remap_pending",
                "Whether a row of memory waits for a reset of its GPU to be replaced",
                series("gpunode_gpu_row_remap_pending"),
            ),
            (
                "gpunode_gpu_row_remap_failed",
                "gpunode_gpu_row_remap_failed",
                "Whether a row of memory could not be replaced",
                series("gpunode_gpu_row_remap_failed"),
            ),
            (
                "gpunode_gpu_row_remap_banks_without_spare",
                'gpunode_gpu_row_remap_banks{spare="none"}',
                "Banks of memory without a spare row",
                series("gpunode_gpu_row_remap_banks", spare="none"),
            ),
        )
    },
}
"""What tables of the memory of GPUs show: the rule, what it says, and its test,
in which a counter has grown for 7320 s."""

OF_NODES: tuple[Record, ...] = (
    *(
        Record(
            name=name,
            labels=OF_GPU,
            interval=FOR_HOURS,
            expression=expression,
            purpose=f"{purpose}; only where there is one.",
            given=given,
            results={A: result},
        )
        for name, (expression, purpose, given, result) in OF_MEMORY.items()
    ),
    Record(
        name="node:gpunode_exporter_cpu:rate5m",
        labels=OF_NODE,
        expression=f"max by ({NODE}) (rate(process_cpu_seconds_total{{{OF_EXPORTERS}}}[5m]))",
        purpose="Seconds of a core that an exporter takes a second.",
        given={series("process_cpu_seconds_total", job="gpunode"): 0.25},
        results={(NODE_A,): 0.25},
    ),
    Record(
        name="node:gpunode_exporter_memory:bytes",
        labels=OF_NODE,
        expression=f"max by ({NODE}) (process_resident_memory_bytes{{{OF_EXPORTERS}}})",
        purpose="Memory of an exporter.",
        given={series("process_resident_memory_bytes", job="gpunode"): 9e7},
        results={(NODE_A,): 9e7},
    ),
    Record(
        name="node:gpunode_client_messages:rate5m",
        labels=(*OF_NODE, "result"),
        expression=rate("gpunode_client_messages_total", f"{NODE}, result") + " > 0",
        purpose="Messages a second from training clients, by what became of them, where any come.",
        given={series("gpunode_client_messages_total", result="accepted"): 2.0},
        results={(NODE_A, "accepted"): 2.0},
    ),
    Record(
        name=FAILED_CHECKS,
        labels=(*OF_NODE, "check"),
        expression=f"max by ({NODE}, check) (gpunode_audit_ok == 0)",
        purpose="Checks of the tuning audit that fail, at 0.",
        given={series("gpunode_audit_ok", check="swap_used"): 0.0},
        results={(NODE_A, "swap_used"): 0.0},
    ),
    Record(
        name=MOST_THROTTLED,
        labels=(*OF_NODE, "fault"),
        expression=f"max by ({NODE}, fault) (gpu:gpunode_gpu_throttled:ratio) > 0",
        purpose="Share of the time in which heat or the power supply lowers the clocks of the GPU "
        "of a node that is slowed most, where one is.",
        given={THERMAL_SLOWDOWN: 0.25},
        results={(NODE_A, "thermal"): 0.25},
    ),
    Record(
        name=HOTTEST,
        labels=OF_NODE,
        expression=f"max by ({NODE}) (gpunode_gpu_temperature_celsius)",
        purpose="Temperature of the hottest GPU of a node.",
        given={series("gpunode_gpu_temperature_celsius"): 71.0},
        results={(NODE_A,): 71.0},
    ),
    *(
        Record(
            name=f"node:gpunode_source_{what}_reads:rate5m",
            labels=(*OF_NODE, "source"),
            expression=rate(f"gpunode_source_{what}_reads_total", f"{NODE}, source") + " > 0",
            purpose=f"Reads a second that a source {did}, where it did.",
            given={series(f"gpunode_source_{what}_reads_total", source="disk"): 0.5},
            results={(NODE_A, "disk"): 0.5},
        )
        for what, did in (("late", "began late"), ("skipped", "left out"))
    ),
    Record(
        name=READ,
        labels=(*OF_NODE, "filesystem"),
        expression=rate('gpunode_lustre_bytes_total{direction="read"}', f"{NODE}, filesystem"),
        purpose="Bytes a second that a node reads from a Lustre filesystem.",
        given={series("gpunode_lustre_bytes_total", filesystem="scratch", direction="read"): 2e9},
        results={(NODE_A, "scratch"): 2e9},
    ),
    *(
        Record(
            name=name,
            labels=(*OF_NODE, "filesystem"),
            expression=(
                f"{_suffers(LUSTRE[which], LUSTRE[0], 'filesystem')} "
                f"or {_suffers(NFS[which], NFS[0], 'mountpoint')}"
            ),
            purpose=f"{what} a second of a node that is at work and has enough requests to a "
            "shared filesystem in flight to suffer.",
            given=SUFFERS,
            results={(NODE_A, "scratch"): result},
        )
        for which, (name, what, result) in enumerate(
            (
                (STORAGE_SECONDS, "Seconds that requests take", 8.0),
                (STORAGE_REQUESTS, "Requests", 100.0),
            )
        )
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""


def _of_cluster(
    name: str, expression: str, purpose: str, given: Given, result: float, /, **labels: str
) -> Record:
    """A figure of a whole cluster, with the labels that it keeps and their values in the test."""
    return Record(
        name=f"cluster:{name}",
        labels=("cluster", *labels),
        expression=expression,
        purpose=purpose,
        given=given,
        results={tuple(labels.values()): result},
    )


OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="filesystem:gpunode_lustre_read:rate5m",
        labels=("cluster", "filesystem"),
        expression=f"sum by (cluster, filesystem) ({READ})",
        purpose="Bytes a second that all nodes read from a Lustre filesystem.",
        given={series("gpunode_lustre_bytes_total", filesystem="scratch", direction="read"): 2e9},
        results={("scratch",): 2e9},
    ),
    _of_cluster(
        ANSWERING.removeprefix("cluster:"),
        f"count by (cluster) ({EXPORTERS} == 1)",
        "Nodes whose exporter answers.",
        {UP: 1.0},
        1.0,
    ),
    _of_cluster(
        "gpunode_exporter:down",
        f"count by (cluster) ({EXPORTERS} == 0)",
        "Nodes whose exporter does not answer; absent if all do.",
        {UP: 0.0},
        1.0,
    ),
    *(
        _of_cluster(
            f"gpunode_source_{what}_reads:rate5m",
            f"sum by (cluster, source) (node:gpunode_source_{what}_reads:rate5m)",
            f"Reads a second that a source {did}, over all nodes.",
            {series(f"gpunode_source_{what}_reads_total", source="disk"): 0.5},
            0.5,
            source="disk",
        )
        for what, did in (("late", "began late"), ("skipped", "left out"))
    ),
    _of_cluster(
        "gpunode_client_messages:rate5m",
        "sum by (cluster, result) (node:gpunode_client_messages:rate5m)",
        "Messages a second from training clients, by what became of them, over all nodes.",
        {series("gpunode_client_messages_total", result="accepted"): 2.0},
        2.0,
        result="accepted",
    ),
    *(
        _of_cluster(
            f"gpunode_{what}:{which}",
            f"{operation}{of})",
            f"{of_what} of the node {one}.",
            given,
            value,
        )
        for what, of, of_what, given, value in (
            (
                "exporter_cpu",
                "node:gpunode_exporter_cpu:rate5m",
                "Seconds of a core a second of the exporter",
                {series("process_cpu_seconds_total", job="gpunode"): 0.25},
                0.25,
            ),
            (
                "exporter_memory",
                "node:gpunode_exporter_memory:bytes",
                "Memory of the exporter",
                {series("process_resident_memory_bytes", job="gpunode"): 9e7},
                9e7,
            ),
        )
        for which, operation, one in (
            ("median", "quantile by (cluster) (0.5, ", "in the middle"),
            ("max", "max by (cluster) (", "where it is highest"),
        )
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
