"""Host memory that runs out, before the kernel kills somebody for it."""

from __future__ import annotations

from alerts.examples import HELD, NODE_A, OF_JOB, OF_NODE, TRAIN, series
from alerts.model import Record
from alerts.promql import NODE
from alerts.recording.parts import HOST_MEMORY
from alerts.settings import MEMORY_FULL_WITHIN

SHARE = "job:gpunode_memory_limit:share"
LEFT = "node:gpunode_memory_available:ratio"


def _in_time(series: str, before: str = "") -> str:
    return f"predict_linear({series}[5m]{before}, {MEMORY_FULL_WITHIN})"


def runs_out(series: str, by: str, condition: str) -> str:
    """Where a series is about to meet a condition at the pace of five minutes and of those before.

    What has taken much at once and stays so has a pace in one of the two.
    """
    return (
        f"{_in_time(series)} {condition} and on ({by}) {_in_time(series, ' offset 5m')} {condition}"
    )


OF_NODES: tuple[Record, ...] = (
    Record(
        name=LEFT,
        labels=OF_NODE,
        expression=(
            f"max by ({NODE}) (gpunode_memory_available_bytes) "
            f"/ on ({NODE}) max by ({NODE}) (gpunode_memory_size_bytes > 0)"
        ),
        purpose="Share of a node's memory that programs can have without swapping.",
        given={
            series("gpunode_memory_available_bytes"): 25.0,
            series("gpunode_memory_size_bytes"): 100.0,
        },
        results={(NODE_A,): 0.25},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name=SHARE,
        labels=OF_JOB,
        expression=HOST_MEMORY.over_nodes(),
        purpose="Share of its memory limit that a job uses, without caches, where it uses most.",
        given={
            **HELD,
            series("gpunode_job_memory_anonymous_bytes"): 60.0,
            series("gpunode_job_memory_shmem_bytes"): 15.0,
            series("gpunode_job_memory_limit_bytes"): 100.0,
        },
        results={TRAIN: 0.75},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
