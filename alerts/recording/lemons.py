"""GPUs that break or hold up one job after another, by what happened on each in 30 days."""

from __future__ import annotations

from alerts.examples import GPU_A, HELD, NODE_A, OF_GPU, OF_JOB, OF_NODE, TRAIN, A, series
from alerts.model import FOR_DAYS, FOR_HOURS, Record
from alerts.promql import GPU, JOB, NODE, OWNER
from alerts.recording.faults import INFO, PAGES, XIDS, times_of_xids
from alerts.recording.jobs import OWN_REASONS
from alerts.recording.latched import PLACE
from alerts.settings import INCIDENT_BEGINS, LEMON_BEYOND
from gpunode.verdict.reasons import AT_WORK

INCIDENT = "gpu:gpunode_lemon:incident"
SCORE = "uuid:gpunode_lemon:score"
PLACED = "gpu:gpunode_lemon:score"
WITHIN = "30d"
FOLLOW = "43|45"
"""XIDs that say that a process was ended, for whatever reason.
https://docs.nvidia.com/deploy/xid-errors/"""

BY_UUID = "cluster, uuid"
OF_A_JOB = f"{BY_UUID}, {OWNER}"


def _holders(within: str) -> str:
    """Who held a GPU within a time."""
    return f"last_over_time(gpu:gpunode_gpu_owner:workload[{within}])"


_ITS_XID = (
    f"max by ({OF_A_JOB}) ({_holders('10m')} and on ({GPU}) "
    f"{times_of_xids(f'xid!~{FOLLOW!r}')} > time() - {INCIDENT_BEGINS})"
).replace("'", '"')
_WAITED_FOR = (
    f"max by ({OF_A_JOB}) (job:gpunode_late_gpu:reason"
    f'{{reason!~"{OWN_REASONS}|{"|".join(AT_WORK)}|not seen from its node"}} '
    f"and on ({JOB}) job:gpunode_stalled:seconds < {INCIDENT_BEGINS})"
)
_BREAKS = (
    f"(gpu:gpunode_gpu_fault:level == {PAGES} "
    f"unless on ({GPU}) gpu:gpunode_gpu_fault:worst offset 10m == {PAGES})"
)
_BROKE = (
    f"max by ({OF_A_JOB}) ({_holders('10m')} and on ({GPU}) {_BREAKS}) "
    f"or max by ({BY_UUID}, reason) ({_BREAKS} unless on ({GPU}) {_holders('1h')})"
)
"""What is broken already breaks no second time, however many faults follow from the first."""

_STANDS_OUT = (
    f"({SCORE} * on (cluster) group_left () clamp_min(count by (cluster) ({SCORE}) - 1, 1) "
    f"> {LEMON_BEYOND} * (sum by (cluster) ({SCORE}) - on (cluster) group_right () {SCORE}))"
)
"""GPUs with more than a multiple of what the others have on average."""

OF_LEMONS: tuple[Record, ...] = (
    Record(
        name=INCIDENT,
        labels=("cluster", "uuid", *OF_JOB[1:], "kind", "reason"),
        interval=FOR_HOURS,
        expression=(
            f'label_replace({_ITS_XID}, "kind", "xid", "", "") '
            f'or label_replace({_WAITED_FOR}, "kind", "waited_for", "", "") '
            f'or label_replace({_BROKE}, "kind", "fault", "", "")'
        ),
        purpose="What has just happened on a GPU: an XID under a job, a job that stands still "
        "waiting for it for no reason of its own, or a fault after which it cannot be used.",
        given={**HELD, INFO: 1.0, series(XIDS, xid="31"): 7300.0},
        results={(GPU_A[1], *TRAIN, "xid", ""): 1.0},
    ),
    Record(
        name=SCORE,
        labels=("cluster", "uuid"),
        interval=FOR_DAYS,
        expression=(
            f"count by ({BY_UUID}) (count by ({OF_A_JOB}) "
            f"(present_over_time({INCIDENT}[{WITHIN}])))"
        ),
        purpose="Different jobs that a GPU has broken or held up within 30 days, and one more for "
        "faults that it had while nobody held it, as far as Prometheus keeps.",
        given={**HELD, INFO: 1.0, series(XIDS, xid="31"): 7300.0},
        results={(GPU_A[1],): 1.0},
    ),
    Record(
        name=PLACED,
        labels=OF_GPU,
        interval=FOR_DAYS,
        expression=f"{SCORE} * on ({BY_UUID}) group_left (instance, gpu) {PLACE}",
        purpose="The same with the place of the GPU.",
        given={**HELD, INFO: 1.0, series(XIDS, xid="31"): 7300.0},
        results={A: 1.0},
    ),
    Record(
        name="node:gpunode_lemon:score",
        labels=OF_NODE,
        interval=FOR_DAYS,
        expression=f"sum by ({NODE}) ({PLACED})",
        purpose="The same, summed up over the GPUs that a node has.",
        given={**HELD, INFO: 1.0, series(XIDS, xid="31"): 7300.0},
        results={(NODE_A,): 1.0},
    ),
    Record(
        name="gpu:gpunode_lemon:outlier",
        labels=OF_GPU,
        interval=FOR_DAYS,
        expression=(f"{PLACED} and on ({BY_UUID}) {_STANDS_OUT}"),
        purpose="The same for GPUs that stand out from the others of their cluster with any: a "
        "program or a driver with a fault breaks jobs on all of them.",
        given={**HELD, INFO: 1.0, series(XIDS, xid="31"): 7300.0},
        results={A: 1.0},
    ),
)
"""They are evaluated seldom: nobody is woken for what took weeks."""
