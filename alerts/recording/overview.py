"""What a dashboard of a whole fleet draws over time: a series for each node, none for each GPU.

A graph of 500 points that asks for 10,000 GPUs at each takes many seconds.
"""

from __future__ import annotations

from alerts.examples import NODE_A, OF_NODE, series
from alerts.model import Record
from alerts.promql import NODE, rate
from alerts.recording.faults import THERMAL_SLOWDOWN

READ = (
    "sum by (cluster, filesystem) ("
    + rate('gpunode_lustre_bytes_total{direction="read"}', f"{NODE}, filesystem")
    + ")"
)
"""Bytes a second that the nodes of a cluster read from each Lustre filesystem."""

OF_NODES: tuple[Record, ...] = (
    Record(
        name="node:gpunode_gpu_throttled:max",
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
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="filesystem:gpunode_lustre_read:rate5m",
        labels=("cluster", "filesystem"),
        expression=READ,
        purpose="Bytes a second that all nodes read from a Lustre filesystem.",
        given={series("gpunode_lustre_bytes_total", filesystem="scratch", direction="read"): 2e9},
        results={("scratch",): 2e9},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
