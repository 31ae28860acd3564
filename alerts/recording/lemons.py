"""GPUs that break or hold up one job after another, by what happened on each in 30 days."""

from __future__ import annotations

from alerts.examples import GPU_A, HELD, NODE_A, OF_GPU, OF_JOB, OF_NODE, TRAIN, A, owner, series
from alerts.model import FOR_DAYS, FOR_HOURS, Record
from alerts.promql import GPU, JOB, NODE, OWNER, gained
from alerts.recording.faults import CORDONED, INFO, PAGES, PORT, XIDS, times_of_xids
from alerts.recording.jobs import OWN_REASONS
from alerts.recording.latched import ENERGY, PLACE
from alerts.recording.repairs import BOOTED
from alerts.settings import INCIDENT_BEGINS, LEMON_BEYOND, RDMA_LINKS_LOST
from gpunode.verdict.reasons import AT_WORK

HOLDER = "gpu:gpunode_gpu_xid:holder"
RESET = "gpu:gpunode_gpu_reset:alone"
FLAPS = "node:gpunode_port_flaps:incident"
INCIDENT = "gpu:gpunode_lemon:incident"
SCORE = "uuid:gpunode_lemon:score"
PLACED = "gpu:gpunode_lemon:score"
SCORE_OF_NODE = "node:gpunode_lemon:score"
WITHIN = "30d"
FOLLOW = "43|45"
"""XIDs that say that a process was ended, for whatever reason.
https://docs.nvidia.com/deploy/xid-errors/"""

BY_UUID = "cluster, uuid"
OF_A_JOB = f"{BY_UUID}, {OWNER}"
OF_AN_INCIDENT = f"{OF_A_JOB}, day"

LINK_DOWNED = 'gpunode_infiniband_errors_total{kind="link_downed"}'
NVLINK_RECOVERS = "gpu:gpunode_nvlink_recovery:increase1h"

_JOBS = f"count by ({GPU}, {OWNER}) (last_over_time(gpu:gpunode_gpu_owner:workload[10m]))"
"""Jobs that have held a GPU within ten minutes."""

_XID = (
    f"max by ({GPU}) ({times_of_xids(f'xid!~{FOLLOW!r}')} > time() - {INCIDENT_BEGINS})"
).replace("'", '"')
_SINCE = "min_over_time(timestamp(gpu:gpunode_gpu_owner:workload)[10m:1m])"


def _share(jobs: str) -> str:
    """What each of the jobs on a GPU counts, so that one event counts once."""
    return (
        f"max by ({OF_A_JOB}) ((0 * ({jobs}) + 1) / on ({GPU}) group_left () "
        f"(count by ({GPU}) ({jobs}) > 0))"
    )


def _a_day(true: str, by: str) -> str:
    """What is nobody's counts once a day."""
    return f'count_values by ({by}) ("day", floor(0 * ({true}) + time() / 86400))'


_WAITED_FOR = (
    f"max by ({OF_A_JOB}) (job:gpunode_late_gpu:reason"
    f'{{reason!~"{OWN_REASONS}|{"|".join(AT_WORK)}|not seen from its node"}} '
    f"and on ({JOB}) job:gpunode_stalled:seconds < {INCIDENT_BEGINS})"
)
_BREAKS = (
    f"(gpu:gpunode_gpu_fault:level == {PAGES} "
    f"unless on ({GPU}) gpu:gpunode_gpu_fault:worst offset 10m == {PAGES})"
)
"""What is broken already breaks no second time, however many faults follow from the first."""

_BROKE = f"{_share(f'{_JOBS} and on ({GPU}) {_BREAKS}')} unless on ({BY_UUID}) {HOLDER}"
_BROKE_ALONE = f"{_BREAKS} unless on ({GPU}) last_over_time(gpu:gpunode_gpu_owner:workload[1h])"
_FLAPS = f"({NVLINK_RECOVERS} > 1 unless on ({GPU}) {NVLINK_RECOVERS} offset 10m > 1)"
_WAS_RESET = (
    f"{RESET} unless on ({BY_UUID}) last_over_time({INCIDENT}{{kind!='reset'}}[1d])"
).replace("'", '"')
"""A reset after an incident is its repair, and no incident of its own."""

_STANDS_OUT = (
    f"({SCORE} * on (cluster) group_left () clamp_min(count by (cluster) ({SCORE}) - 1, 1) "
    f"> {LEMON_BEYOND} * (sum by (cluster) ({SCORE}) - on (cluster) group_right () {SCORE}))"
)
"""GPUs with more than a multiple of what the others have on average."""

_RESETS = f"max by ({GPU}) (resets({ENERGY}[10m])) > 0"

XID_31 = {**HELD, INFO: 1.0, series(XIDS, xid="31"): 7300.0}
SHARED = {**XID_31, owner(owner_pod="eval-0"): 1.0}
LINK_LOST = series("gpunode_infiniband_errors_total", kind="link_downed", device="mlx5_0", port="1")

OF_NODES: tuple[Record, ...] = (
    Record(
        name=RESET,
        labels=OF_GPU,
        interval=FOR_HOURS,
        expression=(
            f"{_RESETS} and on ({NODE}) count by ({NODE}) ({_RESETS}) == 1 "
            f"and on ({NODE}) count by ({NODE}) (max by ({GPU}) ({ENERGY})) > 1 "
            f"unless on ({NODE}) max by ({NODE}) ({BOOTED}) > time() - {INCIDENT_BEGINS} "
            f"unless on ({NODE}) last_over_time({CORDONED}[10m])"
        ),
        purpose="GPUs that were reset within ten minutes, as their driver's energy counter shows, "
        "while no other GPU of the node was, and which is in service.",
        given={INFO: 1.0},
        results={},
    ),
    Record(
        name=FLAPS,
        labels=(*OF_NODE, "device", "port", "day"),
        interval=FOR_HOURS,
        expression=_a_day(f"{gained(LINK_DOWNED, PORT, '1h')} > {RDMA_LINKS_LOST}", PORT),
        purpose="RDMA ports that have lost their link again and again within an hour, and the day.",
        given={LINK_LOST: 0.01},
        results={(NODE_A, "mlx5_0", "1", "0"): 1.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_LEMONS: tuple[Record, ...] = (
    Record(
        name=HOLDER,
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_HOURS,
        expression=(f"max by ({GPU}, {OWNER}) ({_SINCE}) <= on ({GPU}) group_left () {_XID}"),
        purpose="Since when a job has held a GPU that had it when the driver reported an XID, "
        "within ten minutes. The next job did not meet it.",
        given=XID_31,
        results={},
    ),
    Record(
        name=INCIDENT,
        labels=("cluster", "uuid", *OF_JOB[1:], "kind", "reason", "day"),
        interval=FOR_HOURS,
        expression=(
            f'label_replace({_share(HOLDER)}, "kind", "xid", "", "") '
            f'or label_replace({_WAITED_FOR}, "kind", "waited_for", "", "") '
            f'or label_replace({_BROKE}, "kind", "fault", "", "") '
            f"or label_replace({_a_day(_BROKE_ALONE, f'{BY_UUID}, reason')}, "
            '"kind", "fault", "", "") '
            f'or label_replace({_a_day(_FLAPS, BY_UUID)}, "kind", "nvlink", "", "") '
            f'or label_replace({_a_day(_WAS_RESET, BY_UUID)}, "kind", "reset", "", "")'
        ),
        purpose="What has just happened on a GPU: an XID under a job, a job that stands still "
        "waiting for it for no reason of its own, a fault after which it cannot be used, an NVLink "
        "that recovers again and again, or a reset of it alone. What several jobs meet at once "
        "counts once, and each has a share; what nobody meets has the day.",
        given=SHARED,
        results={
            (GPU_A[1], *TRAIN, "xid", "", ""): 0.5,
            (GPU_A[1], "", "eval", "", "", "xid", "", ""): 0.5,
        },
    ),
    Record(
        name=SCORE,
        labels=("cluster", "uuid"),
        interval=FOR_DAYS,
        expression=(
            f"floor(0.01 + sum by ({BY_UUID}) (max by ({OF_AN_INCIDENT}) "
            f"(max_over_time({INCIDENT}[{WITHIN}])))) > 0"
        ),
        purpose="Different jobs that a GPU has broken or held up within 30 days, and one more for "
        "each day with a fault, a reset or recoveries of an NVLink that no job met, as far as "
        "Prometheus keeps.",
        given=SHARED,
        results={(GPU_A[1],): 1.0},
    ),
    Record(
        name=PLACED,
        labels=OF_GPU,
        interval=FOR_DAYS,
        expression=f"{SCORE} * on ({BY_UUID}) group_left (instance, gpu) {PLACE}",
        purpose="The same with the place of the GPU.",
        given=XID_31,
        results={A: 1.0},
    ),
    Record(
        name=SCORE_OF_NODE,
        labels=OF_NODE,
        interval=FOR_DAYS,
        expression=(
            f"floor(0.01 + sum by ({NODE}) (max by ({NODE}, {OWNER}, day) "
            f"(max_over_time({INCIDENT}[{WITHIN}]) "
            f"* on ({BY_UUID}) group_left (instance) {PLACE}) "
            f"or max by ({NODE}, day) (clamp_max(max_over_time({FLAPS}[{WITHIN}]), 1)))) > 0"
        ),
        purpose="The same of a node: different jobs that any of its GPUs broke or held up, and one "
        "more for each day with what no job met, or on which one of its RDMA ports lost its link "
        "again and again.",
        given={**XID_31, LINK_LOST: 0.01},
        results={(NODE_A,): 2.0},
    ),
    Record(
        name="gpu:gpunode_lemon:outlier",
        labels=OF_GPU,
        interval=FOR_DAYS,
        expression=(f"{PLACED} and on ({BY_UUID}) {_STANDS_OUT}"),
        purpose="The same for GPUs that stand out from the others of their cluster with any: a "
        "program or a driver with a fault breaks jobs on all of them.",
        given=XID_31,
        results={A: 1.0},
    ),
)
"""They are evaluated seldom: nobody is woken for what took weeks."""
