"""What a dashboard of a whole fleet draws over time: a series for each node, none for each GPU.

A graph of 500 points that asks for 10,000 GPUs at each takes many seconds.
"""

from __future__ import annotations

from alerts.examples import NODE_A, OF_NODE, ledger, series
from alerts.model import Given, Record
from alerts.promql import NODE, rate
from alerts.recording.faults import MOST_THROTTLED, THERMAL_SLOWDOWN
from alerts.settings import REMOTE_REQUESTS

READ = "node:gpunode_lustre_read:rate5m"
STORAGE_SECONDS = "node:gpunode_storage_seconds:rate5m"
STORAGE_REQUESTS = "node:gpunode_storage_requests:rate5m"
LUSTRE = ("gpunode_lustre_rpc_seconds_total", "gpunode_lustre_rpcs_total")
NFS = ("gpunode_nfs_rtt_seconds_total", "gpunode_nfs_requests_total")
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

OF_NODES: tuple[Record, ...] = (
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
        name="node:gpunode_gpu_temperature:max",
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

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="filesystem:gpunode_lustre_read:rate5m",
        labels=("cluster", "filesystem"),
        expression=f"sum by (cluster, filesystem) ({READ})",
        purpose="Bytes a second that all nodes read from a Lustre filesystem.",
        given={series("gpunode_lustre_bytes_total", filesystem="scratch", direction="read"): 2e9},
        results={("scratch",): 2e9},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
