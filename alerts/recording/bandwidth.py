"""How fast the links of a job are while its collectives run, beside what they were at best.

What a GPU sends in five minutes says how much a job exchanges, not how fast: a job that waits for
data sends less. So it is divided by the time that its collectives took, which is the ledger's
``communication`` and ``blocked``. In that time a rank also waits for those that come later. The
last one waits for nobody, and the fastest GPU or node of a job is the one that came last: what it
reached is what the links gave.

Only what is sent counts, as a data set that comes over RDMA is received. Adapters count for a job
that has all GPUs of the node that anybody has.
"""

from __future__ import annotations

from alerts.examples import HELD, NODE_A, OF_JOB, OF_NODE, TRAIN, ledger, series
from alerts.model import FOR_DAYS, Given, Record
from alerts.promql import GPU, JOB, NODE, OWNER, rate
from alerts.settings import COLLECTIVES_FROM

OF_A_NODE = "node:gpunode_collectives:bandwidth"
SPEED = "job:gpunode_collectives:bandwidth"
RATIO = "job:gpunode_collectives:ratio_to_best"
WITHIN = "7d"

NVLINK = 'gpunode_gpu_nvlink_bytes_total{direction="transmit"}'
ADAPTERS = 'gpunode_infiniband_bytes_total{direction="transmit"}'

IN_COLLECTIVES = (
    f"(sum by ({GPU}) "
    f'(gpu:gpunode_gpu_seconds:rate5m{{state=~"communication|blocked"}}) > {COLLECTIVES_FROM})'
)
ALONE = (
    f"(count by ({NODE}, {OWNER}) (gpu:gpunode_job:member) "
    f"== on ({NODE}) group_left () node:gpunode_job:gpus) ^ 0"
)
"""The job of a node that shares it with no other: 1."""

OF_NVLINK = (
    f"max by ({NODE}, {OWNER}) (gpu:gpunode_job:member * on ({GPU}) group_left () "
    f"({rate(NVLINK)} / on ({GPU}) {IN_COLLECTIVES}))"
)
OF_ADAPTERS = (
    f"{ALONE} * on ({NODE}) group_left () ({rate(ADAPTERS, NODE)} "
    f"/ on ({NODE}) min by ({NODE}) ({IN_COLLECTIVES} and on ({GPU}) gpu:gpunode_job:member))"
)

SENDS: Given = {
    **HELD,
    **ledger(communication=0.125, blocked=0.125),
    series("gpunode_gpu_nvlink_bytes_total", direction="transmit"): 50e9,
    series("gpunode_infiniband_bytes_total", device="mlx5_0", port="1", direction="transmit"): 10e9,
}

OF_NODES: tuple[Record, ...] = (
    Record(
        name=OF_A_NODE,
        labels=(*OF_NODE, *OF_JOB[1:], "over"),
        interval=FOR_DAYS,
        expression=(
            f'label_replace({OF_NVLINK}, "over", "NVLink", "", "") '
            f'or label_replace({OF_ADAPTERS}, "over", "adapters", "", "")'
        ),
        purpose="What the fastest GPU of a job on a node sends over NVLink, and the node through "
        "its RDMA adapters, for each second in collectives; absent where those take hardly any "
        "time.",
        given=SENDS,
        results={(NODE_A, *TRAIN, "NVLink"): 200e9, (NODE_A, *TRAIN, "adapters"): 40e9},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_JOBS: tuple[Record, ...] = (
    Record(
        name=SPEED,
        labels=(*OF_JOB, "over"),
        interval=FOR_DAYS,
        expression=(
            f'max by ({JOB}, over) ({OF_A_NODE}{{over="NVLink"}} or '
            f'{OF_A_NODE}{{over="adapters"}} and on ({JOB}) job:gpunode_job:nodes > 1)'
        ),
        purpose="The same of the fastest GPU or node of a job; of adapters only if it has several "
        "nodes.",
        given=SENDS,
        results={(*TRAIN, "NVLink"): 200e9},
    ),
    Record(
        name=RATIO,
        labels=(*OF_JOB, "over"),
        interval=FOR_DAYS,
        expression=(
            f"{SPEED} / on ({JOB}, over) (quantile_over_time(0.9, {SPEED}[{WITHIN}:1h]) > 0)"
        ),
        purpose="The same over what the job reached in a tenth of the hours of a week. A job may "
        "change what it exchanges, so no alert looks at it.",
        given=SENDS,
        results={(*TRAIN, "NVLink"): 1.0},
    ),
)
"""Rules that compare nodes, for the Prometheus that sees them all."""
