"""Whose GPU is whose: the job is the unit of alerts about training and serving."""

from __future__ import annotations

from alerts.examples import (
    HELD,
    HELD_B,
    NODE_A,
    OF_GPU,
    OF_JOB,
    OF_NODE,
    ON_B,
    STARTED,
    STREAK,
    STREAK_B,
    TRAIN,
    TRAINS,
    TRAINS_B,
    WORKLESS,
    WORKLESS_B,
    A,
    B,
    ledger,
    owner,
    series,
)
from alerts.model import AT_ONCE, FOR_DAYS, FOR_HOURS, Given, Record, Series
from alerts.promql import GPU, JOB, NODE, OWNER, of_gpus, of_jobs
from alerts.recording import parts
from alerts.recording.faults import CORDONED, INFO, TARGETS
from alerts.recording.parts import BY_SERVICE, REQUESTS, SERVICE, causes
from alerts.settings import (
    BLOCKED_FROM,
    BLOCKED_SHARE,
    BUSY_SHARE,
    COMES_BACK_AGAIN,
    COMES_BACK_WITHIN,
    ENDS_SOON,
    FADED_BELOW,
    FLEET_JOBS,
    FOUND_WAITING_FROM,
    PAGED_FROM,
    PAGED_GPUS,
    PAUSED_AT_MOST,
    RESTARTED_USEFUL,
    STALLED_FROM,
    STARVED_FROM,
    STILL_FROM,
    STRAGGLER_FROM,
    TAKEN_OVER_SHARE,
    TICKETED_GPUS,
    TOGETHER_WITHIN,
    UNINTERRUPTIBLE_AT_MOST,
)
from gpunode.verdict.reasons import (
    AT_WORK,
    CPU_BOUND,
    DEBUGGER,
    EXITING,
    GARBAGE_COLLECTION,
    GONE,
    SLEEPING,
    STOPPED,
)

ROLES = "-(?:master|workers?|launcher|chief|ps|head|leader|node)"
RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
REPLICA = f"-({RANDOM}{{8,10}}-{RANDOM}{{5}})"
"""What a Deployment appends to the name of each of its pods, which have no work in common.
https://github.com/kubernetes/apimachinery/blob/master/pkg/util/rand/rand.go"""

KUBERAY = f"-(?:workers?|workergroup|[a-z]+-group)-worker-{RANDOM}{{5}}"
"""What KubeRay appends to the name of a cluster for its workers, with the names that charts and
samples give to a group. Without it, the head of the cluster would be a job of its own.
https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/raycluster-quick-start.html"""

POD = f"(.+?)(?:{KUBERAY}|(?:{ROLES})?(?:-[0-9]+)*(?:-{RANDOM}{{8,10}})?(?:-{RANDOM}{{5}})?)"
"""The name of a pod: what it belongs to, its role and number, and what controllers append."""

FIRST_OF_A_GANG = f".+-(?:(?:master|chief)-0|0-{RANDOM}{{5}})"
"""The first pod of a job whose pods begin together: Kubeflow's, JobSet's or an indexed Job's. Those
of a StatefulSet or of a Ray cluster may well wait for work.
https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode"""

OWNED: Given = {
    owner(owner_namespace="research", owner_pod="a-worker-0", owner_container="main"): 1.0,
    owner(owner_namespace="team", owner_pod="b-7c9f5d6b4-x2lqz", owner_container="main"): 1.0,
}
WORKER = "rlhf-workergroup-worker-x2lqz"
KUBERAYS: Given = {
    owner(owner_namespace="align", owner_pod=WORKER, owner_container="ray-worker"): 1.0
}
SLURM: Given = {owner(slurm_job="42", user="kim"): 1.0}
SLURM_IN_A_POD: Given = {
    owner(
        owner_namespace="slurm", owner_pod="slurm-worker-0", owner_container="slurmd", slurm_job="7"
    ): 1.0
}

ON_NODE = "node:gpunode_job:member"

STILL = f"job:gpunode_workless:seconds > {STILL_FROM}"

STOOD = "job:gpunode_workless:since"

STALLED_LATELY = f"(job:gpunode_stalled:seconds > {BLOCKED_FROM} < {TOGETHER_WITHIN})"
"""Jobs that have just come to stand still."""

TOGETHER = "jobs"
"""The fault of a fleet of which only the jobs tell that stand still."""

REMEMBERED = "15m"
"""What a rule remembers survives a restart of Prometheus that takes no longer."""

STREAKS_BREAK = "5m"
"""A tiny kernel, such as one that shows that the process lives, breaks a wait and ends none."""

EXCUSES = "|".join(AT_WORK)
"""What a rank visibly does while the others wait for it at a barrier."""

OF_SERVERS = "serving|interactive"


NO_STARVATION = causes(lambda cause: cause.ends_by_itself)
"""What a verdict says of a GPU that has nothing to run for a reason that ends by itself."""

OWN_REASONS = "|".join(
    reason.name
    for reason in (GONE, STOPPED, CPU_BOUND, GARBAGE_COLLECTION, DEBUGGER, EXITING, SLEEPING)
)
"""Why a process does not come, where that is the making of the job and not of the node."""

SIZE = "job:gpunode_job:size"
COSTS = (
    f"(job:gpunode_stalled:seconds unless on ({JOB}) "
    f"((job:gpunode_stalled:seconds * on ({JOB}) {SIZE} < {PAGED_FROM} "
    f"or on ({JOB}) {SIZE} < {PAGED_GPUS}) "
    f"unless on ({JOB}) job:gpunode_server_stuck:seconds))"
)
"""How long those jobs have stood still that have cost as much as somebody is woken for. Who waits
for a server's answer is harmed at once."""

LAST_STEP = of_gpus("gpunode_training_last_step_timestamp_seconds")
TELLS_STEPS = "gpu:gpunode_training_last_step:told"
PAUSES = f"{TELLS_STEPS} unless on ({GPU}) {LAST_STEP}"
"""GPUs whose training tells when its last step ended, and says that none is due now. A client that
never tells says nothing by that."""


STREAK_OF_GPU = of_gpus(STREAK.metric)
WORKLESS_OF_GPU = of_gpus(WORKLESS.metric, "min")
BLOCKED_GPU = "gpu:gpunode_gpu_blocked:seconds"


def _named(metric: str, over: str = "") -> str:
    """Series with the labels of an owner, with the job of a pod or of Slurm.

    A pod in which slurmd runs belongs to the job of Slurm that is in it.
    """
    of_pod, of_slurm = 'owner_pod!="",slurm_job=""', 'slurm_job!=""'
    pods, slurm = (
        f"{over}({metric}{{{of}}}[1h])" if over else f"{metric}{{{of}}}"
        for of in (of_pod, of_slurm)
    )
    return (
        f'label_replace(label_replace({pods}, "workload", "$1", "owner_pod", "{POD}"), '
        f'"replica", "$1", "owner_pod", ".+{REPLICA}") '
        f'or label_replace({slurm}, "workload", "slurm-$1", "slurm_job", "(.+)")'
    )


OF_A_SCRIPT = "cluster, owner_namespace, user, gpus"
"""What a Slurm job has in common with the next of the same script, as far as series tell."""

RETURNS_KNOWN = "7d"
"""For how long it is known that a Slurm job came back by itself."""


def _of_scripts(figure: str) -> str:
    """A figure of Slurm jobs, with the number of their GPUs as a label."""
    of_slurm = f'{figure}{{workload=~"slurm-.+"}}'
    return (
        f"{of_slurm} * on ({JOB}) group_left (gpus) "
        f'count_values by ({JOB}) ("gpus", job:gpunode_job:gpus and on ({JOB}) {of_slurm})'
    )


SLOW_ITSELF = "gpu:gpunode_straggler:own_cause"
STARVES = (
    f"max by ({JOB}) ({parts.STARVED} "
    f"or {parts.STARVED_ITSELF} unless on ({GPU}) min_over_time({SLOW_ITSELF}[5m]) == 1)"
)
"""What a GPU has nothing to run, but for one that is slow itself: its peers wait for it, and have
data. A verdict that changes every few minutes is no such word."""


def _held(expression: str) -> str:
    """The GPUs that a job has to itself and for which an expression has a value."""
    return f"gpu:gpunode_job:member and on ({GPU}) {expression}"


LATE_AT_WORK = "job:gpunode_late_gpu:at_work"

SEVERAL = 'world_size=~"[2-9]|[1-9][0-9]+"'
"""Ranks of several. One trial of a search after another is mostly a process on its own."""

RUN_HERE = "node:gpunode_run:gpus"
RUN = "job:gpunode_run:gpus"
OF_A_RUN = "cluster, user, world_size"
FIRST_HERE = "node:gpunode_run:first"
STANDS = "job:gpunode_run:stands"
SPEAKS = "job:gpunode_run:speaks"
_PART = f"{JOB}, world_size"
_STANDING = (
    f"20 + 0 * {RUN} and on ({JOB}) job:gpunode_late_gpu:reason "
    f"or (10 + 0 * {RUN} and on ({JOB}) job:gpunode_stalled:seconds > {STILL_FROM}) "
    f"or (0 * {RUN} and on ({JOB}) job:gpunode_idle:seconds > {STILL_FROM})"
)
"""Parts of runs that do nothing, by how much they tell: the GPU for which the others wait, that
GPUs wait, or only that none works. What is added to tell parts apart is below 10."""

TRAINED_LATELY = "last_over_time(last_over_time(job:gpunode_training:gpus[5m])[3h:5m])"
"""Jobs that trained within hours, for one may start in vain for as long before somebody is called.
Each look is at five minutes: a job that starts again as often may be without a process at each."""


def _outside(rank: int | None = None) -> str:
    """Ranks of several that a user started outside of any job: all, or one of each run."""
    which = "" if rank is None else f',rank="{rank}"'
    return f'gpunode_gpu_process_info{{owner_pod="",slurm_job="",user!="",{SEVERAL}{which}}}'


STALLED_RUNS = (
    f"count by (cluster) ({STALLED_LATELY} unless on ({JOB}) {RUN} "
    f"or max by ({OF_A_RUN}) ({STALLED_LATELY} * on ({JOB}) group_left (world_size) {RUN}))"
)
"""How many jobs of a cluster have just come to stand still. A run that a user started on several
nodes is one, though it is a job on each of them."""

BY_SSH = series(
    "gpunode_gpu_process_info",
    **dict.fromkeys(
        ("owner_namespace", "owner_pod", "owner_container", "slurm_job", "slurm_step"), ""
    ),
    user="kim",
    rank="0",
    local_rank="0",
    world_size="2",
    pid="417",
)

ONE_WAITS_LESS: Given = {
    **ledger(blocked=0.125),
    series("gpunode_gpu_seconds_total", state="blocked", **ON_B): 0.625,
    **HELD,
    **HELD_B,
}
"""A job on two GPUs, of which the first waits half of the time less than the other."""

RUN_OF_TWO: Given = {
    BY_SSH: 1.0,
    Series(BY_SSH.metric, (*BY_SSH.labels, ("instance", "node-b"))): 1.0,
}
STALLED_ON_B = series("job:gpunode_stalled:seconds", workload="kim@node-b", user="kim")
STARTING = series("gpunode_serving_starting_seconds")
ENDED_SOON = "gpu:gpunode_gpu_process:ended_soon_1h"
_SERVED = 'max_over_time(gpunode_gpu_workload{kind="serving"}[1h])'
OF_NODES: tuple[Record, ...] = (
    Record(
        name="gpu:gpunode_gpu_owner:workload",
        labels=(*OF_GPU, "owner_namespace", "owner_pod", "workload", "replica", "user"),
        expression=(
            f"max by ({GPU}, owner_namespace, owner_pod, workload, replica, user) "
            f"({_named('gpunode_gpu_owner_info')} or "
            'label_join(gpunode_gpu_owner_info{owner_pod="",slurm_job=""}, '
            '"workload", "@", "user", "instance"))'
        ),
        purpose="Who holds a GPU, and for which job: the Slurm job, the name of the pod without "
        "role, number and suffix, or else the user on the node. `replica` tells the pods of a "
        "Deployment apart.",
        given={**OWNED, **KUBERAYS, **SLURM, **SLURM_IN_A_POD},
        results={
            (*A, "research", "a-worker-0", "a", "", ""): 1.0,
            (*A, "team", "b-7c9f5d6b4-x2lqz", "b", "7c9f5d6b4-x2lqz", ""): 1.0,
            (*A, "align", WORKER, "rlhf", "", ""): 1.0,
            (*A, "", "", "slurm-42", "", "kim"): 1.0,
            (*A, "slurm", "slurm-worker-0", "slurm-7", "", ""): 1.0,
        },
    ),
    Record(
        name="gpu:gpunode_gpu_owner:share",
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression=(
            f"sum by ({GPU}, {OWNER}) (gpu:gpunode_gpu_owner:workload) "
            f"/ on ({GPU}) group_left () count by ({GPU}) (gpu:gpunode_gpu_owner:workload)"
        ),
        purpose="Each job's share of a GPU; a GPU with several owners counts once.",
        given=OWNED,
        results={
            (*A, "research", "a", "", ""): 0.5,
            (*A, "team", "b", "7c9f5d6b4-x2lqz", ""): 0.5,
        },
    ),
    Record(
        name="gpu:gpunode_job:member",
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression="gpu:gpunode_gpu_owner:share == 1",
        purpose="The job that has a GPU to itself. What a shared GPU does is nobody's in "
        "particular.",
        given=HELD,
        results={(*A, *TRAIN): 1.0},
    ),
    Record(
        name=ON_NODE,
        labels=(*OF_NODE, *OF_JOB[1:]),
        expression=f"max by ({NODE}, {OWNER}) (gpu:gpunode_job:member)",
        purpose="The jobs that have GPUs of a node to themselves.",
        given={**HELD, **HELD_B},
        results={(NODE_A, *TRAIN): 1.0},
    ),
    Record(
        name="gpu:gpunode_gpu_process:count_1h",
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=(
            f"count by ({GPU}, {OWNER}) (max by ({GPU}, pid, {OWNER}) "
            f"({_named('gpunode_gpu_process_info', 'count_over_time')}))"
        ),
        purpose="Processes of a job that had a GPU within an hour.",
        given={STARTED: 1.0},
        results={(*A, *TRAIN): 1.0},
    ),
    Record(
        name=ENDED_SOON,
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=(
            f"count by ({GPU}, {OWNER}) (max by ({GPU}, pid, {OWNER}) "
            f"({_named('gpunode_gpu_process_info', 'count_over_time')}) / on ({NODE}) "
            f"group_left () (max by ({NODE}) (count_over_time({TARGETS}[1h])) > 0) "
            f"< {ENDS_SOON} unless on ({GPU}, pid) gpunode_gpu_process_info "
            f"and on ({GPU}) "
            f"{of_gpus(_SERVED)} == 1)"
        ),
        purpose="Processes of a server that had a GPU within an hour, and not for long.",
        given={STARTED: 1.0},
        results={},
    ),
    Record(
        name=TELLS_STEPS,
        labels=OF_GPU,
        expression=(
            f"{LAST_STEP} or on ({GPU}) (last_over_time({TELLS_STEPS}[{REMEMBERED}]) "
            f"and on ({GPU}) {of_gpus('gpunode_training_step_median_seconds')})"
        ),
        purpose="When the last step of training on a GPU ended that tells it, also while no step "
        "is due. The rule reads its own past.",
        given={series("gpunode_training_last_step_timestamp_seconds"): 1.0},
        results={A: 7320.0},
    ),
    Record(
        name=RUN_HERE,
        labels=(*OF_NODE, "user", "world_size"),
        expression=(
            f"count by ({NODE}, user, world_size) (max by ({GPU}, user, world_size) ({_outside()}))"
        ),
        purpose="GPUs of a node with a rank of several that a user started outside of any job.",
        given={BY_SSH: 1.0},
        results={(NODE_A, "kim", "2"): 1.0},
    ),
    Record(
        name=FIRST_HERE,
        labels=(*OF_NODE, "user", "world_size"),
        expression=(
            f"2 * max by ({NODE}, user, world_size) ({_outside(0)}) "
            f"or max by ({NODE}, user, world_size) ({_outside(1)})"
        ),
        purpose="Nodes with the first rank, 2, or else with the second, 1, of several that a user "
        "started outside of any job.",
        given={BY_SSH: 1.0},
        results={(NODE_A, "kim", "2"): 2.0},
    ),
    Record(
        name="node:gpunode_job:gpus",
        labels=("cluster", "instance"),
        expression=f"count by ({NODE}) ({parts.OWNED_GPUS})",
        purpose="GPUs of a node that somebody holds.",
        given=OWNED,
        results={(NODE_A,): 1.0},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="job:gpunode_job:gpus",
        labels=OF_JOB,
        expression=f"count by ({JOB}) (gpu:gpunode_job:member)",
        purpose="GPUs that a job has to itself.",
        given={**HELD, **HELD_B},
        results={TRAIN: 2.0},
    ),
    Record(
        name="job:gpunode_job:nodes",
        labels=OF_JOB,
        expression=f"count by ({JOB}) ({ON_NODE})",
        purpose="Nodes on which a job has GPUs.",
        given={**HELD, **HELD_B},
        results={TRAIN: 1.0},
    ),
    Record(
        name=RUN,
        labels=(*OF_JOB, "world_size"),
        expression=(
            f"max by ({JOB}, world_size) (label_join(0 * {RUN_HERE} "
            f"+ on ({OF_A_RUN}) group_left () sum by ({OF_A_RUN}) ({RUN_HERE}) "
            f"and on ({OF_A_RUN}) count_values by (cluster, user) "
            f'("world_size", sum by ({OF_A_RUN}) ({RUN_HERE})) '
            f"and on ({OF_A_RUN}) count by ({OF_A_RUN}) ({RUN_HERE}) > 1, "
            '"workload", "@", "user", "instance"))'
        ),
        purpose="Jobs that are the part on one node of a run that a user started on several, as "
        "with ssh: the GPUs of all its parts, which are as many as its ranks.",
        given=RUN_OF_TWO,
        results={("", "kim@node-a", "", "kim", "2"): 2.0, ("", "kim@node-b", "", "kim", "2"): 2.0},
    ),
    Record(
        name=SIZE,
        labels=OF_JOB,
        expression=(
            f'max by ({JOB}) (label_replace(job:gpunode_job:gpus, "of", "job", "", "") '
            f'or label_replace({RUN}, "of", "run", "", ""))'
        ),
        purpose="GPUs that a job has to itself or, if they are more, those of the run on several "
        "nodes of which it is a part.",
        given={**HELD, **HELD_B},
        results={TRAIN: 2.0},
    ),
    Record(
        name="job:gpunode_training:gpus",
        labels=OF_JOB,
        expression=f'sum by ({JOB}) ({parts.KINDS}{{kind="training"}})',
        purpose="GPUs of a job that train; alerts on training depend on it.",
        given={**TRAINS, **TRAINS_B},
        results={TRAIN: 2.0},
    ),
    Record(
        name="job:gpunode_job:collective",
        labels=OF_JOB,
        expression=(
            f"({SIZE} > 1 or on ({JOB}) count by ({JOB}) ("
            + _held(f"max by ({GPU}) (gpunode_nccl_communicator_info)")
            + f")) unless on ({JOB}) (count by ({JOB}) "
            f'({parts.KINDS}{{kind=~"{OF_SERVERS}"}}) '
            f"unless on ({JOB}) job:gpunode_training:gpus > 1)"
        ),
        purpose="Jobs that can stand still in a collective: with several GPUs, here or in a run of "
        "which they are a part, or a communicator, and no servers or notebooks, whose GPUs may "
        "well wait for a request, unless several others train.",
        given={**TRAINS, **TRAINS_B},
        results={TRAIN: 2.0},
    ),
    Record(
        name="job:gpunode_gpu_bottleneck:count",
        labels=(*OF_JOB, "cause"),
        expression=parts.HELD_BACK.over_nodes(),
        purpose="GPUs of a job by what holds them back.",
        given={**HELD, series("gpunode_gpu_bottleneck", cause="shm"): 1.0},
        results={(*TRAIN, "shm"): 1.0},
    ),
    Record(
        name="job:gpunode_training_pause:rate5m",
        labels=OF_JOB,
        expression=parts.PAUSE.over_nodes(),
        purpose="Share of the time in which some rank of a job says that no step is due.",
        given={
            **HELD,
            series("gpunode_training_seconds_total", phase="step"): 0.5,
            series("gpunode_training_seconds_total", phase="evaluation"): 0.5,
        },
        results={TRAIN: 0.5},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""

ASKED = "job:gpunode_serving_requests:asked_1d"
SILENT = "job:gpunode_serving:silent"
CRASHING = "job:gpunode_serving:crashing"
PROCESSES = series("gpunode_gpu_processes", engine="compute")
NOT_FINITE = "job:gpunode_training_loss:not_finite"
RATIO_TO_BEST = "job:gpunode_training_loss:ratio_to_best"
DIVERGED_FOR = "25m"
"""A loss that is finite may come back within as long."""
FADED = "job:gpunode_serving_requests:faded"
_NOW, _YESTERDAY = (
    f"quantile_over_time(0.5, job:gpunode_serving_requests:rate5m[30m]{then})"
    for then in ("", " offset 1d")
)
USUAL_REQUESTS = "avg_over_time(job:gpunode_serving_requests:rate5m[1d:15m])"

ANSWERED_BEFORE = "avg_over_time(job:gpunode_serving_requests:rate5m[1h] offset 15m)"
TAKEN_OVER = "job:gpunode_serving_requests:taken_over"
_ITS_OWNER = "cluster, owner_namespace, user"
_GAINED = (
    f"(job:gpunode_serving_requests:rate5m - on ({BY_SERVICE}) {ANSWERED_BEFORE} "
    f"or on ({BY_SERVICE}) job:gpunode_serving_requests:rate5m) "
    f"> {TAKEN_OVER_SHARE} * job:gpunode_serving_requests:rate5m"
)
"""What services gained since the hour before, of which it is most of what they answer now."""

_ANSWERS_NOBODY = (
    f"{parts.PROCESSES_HELD.over_nodes()} == 0 or on ({JOB}) {of_jobs(STARTING.metric)}"
)
"""Replicas without a process, or with one that has yet to answer."""


OF_SERVICES: tuple[Record, ...] = (
    Record(
        name="job:gpunode_serving_requests:rate5m",
        labels=SERVICE,
        expression=parts.ANSWERED.over_nodes(),
        purpose="Requests a second that all replicas of a service answer, by the client in the "
        "server or else by its engine.",
        given={**HELD, series(f"{REQUESTS}_count"): 5.0},
        results={("", "train", ""): 5.0},
    ),
    Record(
        name=SILENT,
        labels=SERVICE,
        expression=(
            f"job:gpunode_serving_requests:rate5m == 0 or on ({BY_SERVICE}) "
            f"(count by ({BY_SERVICE}) ({_ANSWERS_NOBODY}) "
            f"== on ({BY_SERVICE}) count by ({BY_SERVICE}) (job:gpunode_job:gpus) "
            f"unless on ({BY_SERVICE}) job:gpunode_serving_requests:rate5m) "
            f"or on ({BY_SERVICE}) {CRASHING}"
        ),
        purpose="Services that answer nobody: no request comes, or none of their replicas has more "
        "than an engine that has yet to answer; and those all of whose replicas end again and "
        "again, so that they answer next to nobody.",
        given={**HELD, PROCESSES: 0.0},
        results={("", "train", ""): 1.0},
    ),
    Record(
        name=ASKED,
        labels=SERVICE,
        interval=FOR_DAYS,
        expression=(
            f"(last_over_time({ASKED}[{REMEMBERED}]) "
            f"and on ({BY_SERVICE}) {SILENT}) "
            f"or on ({BY_SERVICE}) "
            "sum_over_time((job:gpunode_serving_requests:rate5m > bool 0)[1d:5m] offset 20m) "
            "/ on (cluster) group_left () (max by (cluster) "
            "(count_over_time(cluster:gpunode_gpu_seconds:rate5m[1d:5m] offset 20m)) > 0)"
        ),
        purpose="Share of a day, as far as its cluster was seen, for which a service had requests: "
        "what was not there had none. The minutes before an end do not count. While no request "
        "comes, the rule reads its own past.",
        given={**HELD, **ledger(), series(f"{REQUESTS}_count"): 5.0},
        results={("", "train", ""): 1.0},
    ),
    Record(
        name=FADED,
        labels=SERVICE,
        interval=FOR_DAYS,
        expression=(
            f"last_over_time({FADED}[{REMEMBERED}]) and on ({BY_SERVICE}) {SILENT} "
            f"or on ({BY_SERVICE}) ({_NOW} < {FADED_BELOW} * {USUAL_REQUESTS} "
            f"unless on ({BY_SERVICE}) {_YESTERDAY} < {FADED_BELOW} * {USUAL_REQUESTS} "
            f"unless on ({BY_SERVICE}) {SILENT})"
        ),
        purpose="Requests a second to a service that has had next to none of its usual ones for "
        "half an hour, and had more at this time yesterday: its users have gone elsewhere. While "
        "no request comes at all, the rule reads its own past.",
        given={**HELD, series(f"{REQUESTS}_count"): 5.0},
        results={},
    ),
    Record(
        name=TAKEN_OVER,
        labels=SERVICE,
        expression=(
            f"{SILENT} and on ({BY_SERVICE}) (last_over_time({TAKEN_OVER}[{REMEMBERED}]) "
            f"or on ({BY_SERVICE}) {TAKEN_OVER_SHARE} * {ANSWERED_BEFORE} "
            f"<= on ({_ITS_OWNER}) group_left () max by ({_ITS_OWNER}) ({_GAINED}))"
        ),
        purpose="Services that answer nobody, whose requests another service of the same "
        "namespace and user has had since: its users were moved to a successor. While no request "
        "comes, the rule reads its own past.",
        given={**HELD, series(f"{REQUESTS}_count"): 5.0},
        results={},
    ),
    Record(
        name="job:gpunode_serving_request:p99",
        labels=SERVICE,
        expression=(f"histogram_quantile(0.99, {parts.REQUEST_TIMES.over_nodes()}) > 0"),
        purpose="How long the slowest 1% of the requests to a service take; absent while there are "
        "none.",
        given={
            **HELD,
            series(f"{REQUESTS}_bucket", le="1.0"): 0.0,
            series(f"{REQUESTS}_bucket", le="2.0"): 5.0,
            series(f"{REQUESTS}_bucket", le="+Inf"): 5.0,
        },
        results={("", "train", ""): 1.99},
    ),
    Record(
        name=NOT_FINITE,
        labels=OF_JOB,
        expression=parts.NOT_FINITE.over_nodes(),
        purpose="Ranks of a job whose last reported loss is NaN or infinite.",
        given={**HELD, series("gpunode_training_loss_finite"): 0.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_training_loss:to_page",
        labels=OF_JOB,
        expression=f"{NOT_FINITE} and on ({JOB}) {SIZE} >= {PAGED_GPUS}",
        purpose="The same, of a job with as many GPUs as somebody is woken for.",
        given={**HELD, **HELD_B, series("gpunode_training_loss_finite"): 0.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_training_loss:diverged",
        labels=OF_JOB,
        expression=(
            f"max by ({JOB}) (label_replace(min_over_time({RATIO_TO_BEST}[{DIVERGED_FOR}]) "
            f'and on ({JOB}) {RATIO_TO_BEST} offset {DIVERGED_FOR}, "loss", "finite", "", "") '
            f'or label_replace(({NOT_FINITE} > 0) * Inf, "loss", "not finite", "", ""))'
        ),
        purpose=f"Loss of a job over its best, the least of {DIVERGED_FOR}; infinite where the "
        "last reported loss of a rank is NaN or infinite.",
        given={**HELD, series("gpunode_training_loss_finite"): 0.0},
        results={},
    ),
    Record(
        name="job:gpunode_starts:count_1h",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"{parts.STARTS.over_nodes()} "
            f"and on ({JOB}) {TRAINED_LATELY} "
            f"and on ({JOB}) {parts.USEFUL_1H.over_nodes()} < {RESTARTED_USEFUL}"
        ),
        purpose="Processes of a job that had the same GPU within an hour, if the GPU did little "
        "meanwhile.",
        given={**TRAINS, **ledger(idle=0.9), STARTED: 1.0},
        results={TRAIN: 1.0},
    ),
)
"""What a job's clients and processes tell."""

OF_STILL: tuple[Record, ...] = (
    Record(
        name="job:gpunode_workless:seconds",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            of_jobs(WORKLESS.metric, "min")
            + f" or on ({JOB}) ((time() - last_over_time({STOOD}[{REMEMBERED}]) and on ({JOB}) "
            f"last_over_time(job:gpunode_workless:seconds[{REMEMBERED}]) > {STILL_FROM} "
            f"or on ({JOB}) last_over_time(job:gpunode_workless:seconds[5m])) "
            f"and on ({JOB}) job:gpunode_gpu_blocked:count)"
        ),
        purpose="Seconds since any GPU of a job last worked; absent for a job that has yet to "
        "begin. An exporter that restarts forgets; so, while the job waits, the rule reads its own "
        f"past, and since when the job stood still up to {REMEMBERED} before.",
        given={**HELD, **HELD_B, WORKLESS: 7320.0, WORKLESS_B: 7320.0},
        results={TRAIN: 7320.0},
    ),
    Record(
        name=STOOD,
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=f"time() - ({STILL})",
        purpose="When a job that does nothing last worked, as Unix time.",
        given={**HELD, WORKLESS: 7320.0},
        results={TRAIN: 0.0},
    ),
    Record(
        name="gpu:gpunode_job:member_lately",
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=AT_ONCE,
        expression=(
            "last_over_time(gpu:gpunode_job:member[5m]) "
            f"or on ({GPU}, {OWNER}) (gpu:gpunode_job:member_lately and on ({JOB}) {STILL})"
        ),
        purpose="The jobs that had a GPU in the last minutes, or when they came to stand still: a "
        "GPU that breaks, or whose node does, is no longer seen to be anybody's. The rule reads "
        "its own past, until the job works again.",
        given=HELD,
        results={(*A, *TRAIN): 1.0},
    ),
)
"""Which jobs do nothing, and which GPUs they have. What holds them up is asked of these."""

OF_STALLS: tuple[Record, ...] = (
    Record(
        name=BLOCKED_GPU,
        labels=OF_GPU,
        interval=AT_ONCE,
        expression=(
            f"{STREAK_OF_GPU} > {BLOCKED_FROM} or on ({GPU}) max by ({GPU}) ("
            f"{WORKLESS.metric} > {STILL_FROM} and on ({GPU}) {parts.BLOCKED} > {BLOCKED_SHARE})"
        ),
        purpose="For how long a GPU does nothing but wait in a collective: for long on end or, "
        "where tiny kernels break each wait, by the ledger. A scrape may come just after such a "
        "kernel each time.",
        given={STREAK: 60.0},
        results={A: 60.0},
    ),
    Record(
        name="job:gpunode_gpu_blocked:count",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=f"count by ({JOB}) ({_held(BLOCKED_GPU)})",
        purpose="GPUs of a job that do nothing but wait in a collective, also where tiny kernels "
        "break each wait.",
        given={**HELD, STREAK: 60.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name=LATE_AT_WORK,
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=f"count by ({JOB}) ("
        + _held(f'gpunode_gpu_waited_for{{reason=~"{EXCUSES}"}} == 1')
        + ")",
        purpose="GPUs of a job for which others wait and whose process is seen to be at work.",
        given={**HELD, series("gpunode_gpu_waited_for", reason="evaluating"): 1.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_pause:excused",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"job:gpunode_workless:seconds < {PAUSED_AT_MOST} "
            f"and on ({JOB}) (count by ({JOB}) ({_held(f'({PAUSES})')}) "
            f'or on ({JOB}) count by ({JOB}) ({parts.SAID}{{cause="compile"}}) '
            f"or on ({JOB}) {LATE_AT_WORK}) "
            f"or on ({JOB}) (job:gpunode_workless:seconds < {UNINTERRUPTIBLE_AT_MOST} "
            f"and on ({JOB}) count by ({JOB}) ("
            + _held("gpunode_job_blocked_processes > 0")
            + f")) or on ({JOB}) job:gpunode_ranks:leaving"
        ),
        purpose="Jobs that stand still for a reason that ends by itself: a rank says that it "
        "evaluates, saves or compiles, or is seen to; a process waits for a disk or file server, "
        "or has just left a GPU, and has not done so for long.",
        given={
            **HELD,
            WORKLESS: 0.0,
            series("gpunode_gpu_waited_for", reason="evaluating"): 1.0,
        },
        results={TRAIN: 0.0},
    ),
    Record(
        name="job:gpunode_waiting:seconds",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            of_jobs(STREAK.metric)
            + f" and on ({JOB}) (job:gpunode_job:collective or on ({JOB}) "
            + of_jobs(STARTING.metric)
            + f") unless on ({JOB}) job:gpunode_pause:excused "
            f"unless on ({JOB}) {SIZE} < {TICKETED_GPUS}"
        ),
        purpose="For how long a GPU of a job has done nothing but wait in a collective, whether or "
        "not the job has begun to work. An engine that has yet to answer waits for no request.",
        given={**HELD, **HELD_B, STREAK: 60.0},
        results={TRAIN: 60.0},
    ),
    Record(
        name="job:gpunode_stalled:seconds",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            "job:gpunode_workless:seconds "
            f"and on ({JOB}) (job:gpunode_gpu_blocked:count "
            f"and on ({JOB}) job:gpunode_job:collective) "
            f"unless on ({JOB}) job:gpunode_pause:excused "
            f"or on ({JOB}) (job:gpunode_waiting:seconds > {FOUND_WAITING_FROM} "
            f"and on ({JOB}) (job:gpunode_waiting:found or on ({JOB}) "
            f"(job:gpunode_restart:seconds unless on ({JOB}) ({LATE_AT_WORK} and on ({JOB}) "
            f"job:gpunode_restart:seconds < {PAUSED_AT_MOST})))) "
            f"or on ({JOB}) job:gpunode_server_stuck:seconds "
            f"or on ({JOB}) job:gpunode_server_stalled:seconds"
        ),
        purpose="Seconds since any GPU of a job, or of a server's group on a node, last worked, "
        "while some of them wait in a collective and nothing excuses it; of a job that was found "
        "so, or that has not worked since it was started again, for which it is known to wait; of "
        "a server with running requests, whether or not they wait.",
        given={**TRAINS, **TRAINS_B, WORKLESS: 7320.0, STREAK: 7000.0},
        results={TRAIN: 7320.0},
    ),
    Record(
        name="job:gpunode_idle:seconds",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"((job:gpunode_workless:seconds or on ({JOB}) job:gpunode_restart:seconds) "
            f"and on ({JOB}) (job:gpunode_training:gpus and on ({JOB}) {SIZE} > 1) "
            f"unless on ({JOB}) (last_over_time(job:gpunode_gpu_blocked:count[{STREAKS_BREAK}]) "
            f"or on ({JOB}) job:gpunode_pause:excused) "
            f"or on ({JOB}) time() - job:gpunode_aborted:since) "
            f"unless on ({JOB}) {SIZE} < {PAGED_GPUS}"
        ),
        purpose="Seconds since any GPU of a training job with several of them last worked, or for "
        "which it has tried to begin again, though none waits for another and nothing excuses it; "
        "or since a job that stood still lost its processes.",
        given={**TRAINS, **HELD_B, WORKLESS: 7320.0},
        results={TRAIN: 7320.0},
    ),
    Record(
        name="job:gpunode_late_gpu:reason",
        labels=(*OF_GPU, *OF_JOB[1:], "reason"),
        interval=AT_ONCE,
        expression=(
            f"(max by ({GPU}, reason) (gpunode_gpu_waited_for == 1) "
            f"* on ({GPU}) group_left ({OWNER}) gpu:gpunode_job:member "
            f"or on ({GPU}) label_replace(gpu:gpunode_job:member unless on ({GPU}) "
            f"({BLOCKED_GPU} or on ({GPU}) {WORKLESS_OF_GPU} < {BLOCKED_FROM}), "
            '"reason", "not seen from its node", "", "")) '
            f"and on ({JOB}) job:gpunode_stalled:seconds > {STALLED_FROM}"
        ),
        purpose="The GPUs of a job that stands still for which its others wait, and why.",
        given={
            **TRAINS,
            **TRAINS_B,
            WORKLESS: 7320.0,
            WORKLESS_B: 7320.0,
            STREAK: 7000.0,
            STREAK_B: 0.0,
        },
        results={(*B, *TRAIN, "not seen from its node"): 1.0},
    ),
    Record(
        name="job:gpunode_incident:kept",
        labels=(*OF_JOB, "instance", "incident", "where"),
        interval=AT_ONCE,
        expression=(
            f"max by ({JOB}, instance, incident, where) "
            f"(max by ({GPU}, incident, where) (gpunode_incident_info) "
            f"* on ({GPU}) group_left ({OWNER}) gpu:gpunode_job:member)"
        ),
        purpose="The incidents on the GPUs of a job of which its nodes keep what is known; with "
        "`incident.where` where in the code the process stands for which the others wait.",
        given={
            **TRAINS,
            series("gpunode_incident_info", incident="i-1", kind="stall", where="train.py:7"): 1.0,
        },
        results={(*TRAIN, "node-a", "i-1", "train.py:7"): 1.0},
    ),
    Record(
        name="job:gpunode_stalled:without_counters",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"count by ({JOB}) (" + _held(parts.UNCOUNTED) + f" and on ({GPU}) {BLOCKED_GPU}) "
            f"and on ({JOB}) job:gpunode_stalled:seconds > {STALLED_FROM}"
        ),
        purpose="GPUs of a job that stands still of which no counter shows whether something is "
        "launched, so that it is less certain.",
        given={
            **TRAINS,
            **TRAINS_B,
            WORKLESS: 7320.0,
            STREAK: 7000.0,
            series("gpunode_gpu_ledger_sensor", sensor="gpm"): 0.0,
        },
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_awaited_rank:reason",
        labels=("cluster", "instance", *OF_JOB[1:], "rank", "host", "pid", "reason"),
        interval=AT_ONCE,
        expression=(
            "max by (cluster, instance, rank, host, pid, reason) (gpunode_nccl_awaited_rank_info) "
            f"* on ({NODE}) group_left ({OWNER}) "
            f"({ON_NODE} and on ({NODE}) count by ({NODE}) ({ON_NODE}) == 1) "
            f"and on ({JOB}) job:gpunode_stalled:seconds > {STALLED_FROM}"
        ),
        purpose="The ranks for which NCCL's RAS service says that others wait, of a job that "
        "stands still and has its nodes to itself.",
        given={
            **TRAINS,
            **TRAINS_B,
            WORKLESS: 7320.0,
            STREAK: 7000.0,
            series(
                "gpunode_nccl_awaited_rank_info",
                communicator="1",
                rank="3",
                host="10.0.0.3",
                pid="42",
                nvml_device="3",
                reason="behind",
            ): 1.0,
        },
        results={(NODE_A, *TRAIN, "3", "10.0.0.3", "42", "behind"): 1.0},
    ),
    Record(
        name="job:gpunode_stalled:survived",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"(max_over_time(job:gpunode_stalled:seconds[6h]) > {BLOCKED_FROM} "
            f"< {COMES_BACK_WITHIN}) "
            f"and on ({JOB}) job:gpunode_workless:seconds < {BLOCKED_FROM} "
            f"unless on ({JOB}) job:gpunode_server_stalled:seconds "
            f"or on ({JOB}) (last_over_time(job:gpunode_stalled:survived[5m]) "
            f"and on ({JOB}) job:gpunode_stalled:seconds)"
        ),
        purpose="The longest time for which a job has stood still within six hours, if it has come "
        "back by itself each time; while it stands still again, the rule reads its own past.",
        given={
            **TRAINS,
            WORKLESS: 0.0,
            series("job:gpunode_stalled:seconds", workload="train"): 120.0,
        },
        results={TRAIN: 120.0},
    ),
    Record(
        name="user:gpunode_stalled:survived",
        labels=tuple(OF_A_SCRIPT.split(", ")),
        interval=FOR_DAYS,
        expression=(f"max by ({OF_A_SCRIPT}) ({_of_scripts('job:gpunode_stalled:survived')})"),
        purpose="The longest pause from which Slurm jobs of a user with so many GPUs have come "
        "back by themselves. The same script has another number each time.",
        given={
            owner(slurm_job="42", user="kim"): 1.0,
            WORKLESS: 0.0,
            series("job:gpunode_stalled:seconds", workload="slurm-42", user="kim"): 120.0,
        },
        results={("", "kim", "1"): 120.0},
    ),
    Record(
        name="job:gpunode_broken_gpu:count",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"count by ({JOB}) (gpu:gpunode_job:member_lately and on ({GPU}) "
            f"(gpu:gpunode_gpu_fault:worst == 2 unless on ({NODE}) {CORDONED})) "
            f"or on ({JOB}) (job:gpunode_broken_gpu:count and on ({JOB}) {STILL})"
        ),
        purpose="GPUs of a job of which GpuUnhealthy has notified somebody. The rule reads its own "
        "past, until the job works again: the driver tells of an XID once.",
        given={**HELD, series("gpunode_gpu_recovery_action", action="reset"): 1.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_stalled:together",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"({STALLED_LATELY} and on (cluster) {STALLED_RUNS} "
            f">= {FLEET_JOBS} or on ({JOB}) "
            f"(last_over_time(job:gpunode_stalled:together[{REMEMBERED}]) and on ({JOB}) {STILL})) "
            f'unless on ({JOB}) job:gpunode_event:gpus{{fault!="{TOGETHER}"}} '
            f"unless on ({JOB}) job:gpunode_broken_gpu:count"
        ),
        purpose="Jobs that came to stand still within minutes of each other, while no node shows "
        "what they have in common. The rule reads its own past until the job works again or ends.",
        given={
            series("job:gpunode_stalled:seconds", workload=name): 60.0
            for name in ("a", "b", "c", "d")
        },
        results={("", name, "", ""): 60.0 for name in ("a", "b", "c", "d")},
    ),
    Record(
        name=STANDS,
        labels=(*OF_JOB, "world_size"),
        interval=AT_ONCE,
        expression=(
            f"({_STANDING}) + on ({_PART}) (max by ({_PART}) "
            f'(label_join({FIRST_HERE}, "workload", "@", "user", "instance")) or 0 * {RUN}) '
            f"+ on ({_PART}) (3 + 0 * {SPEAKS} or 0 * {RUN})"
        ),
        purpose="How well a part of a run on several nodes that does nothing can speak for all: "
        "best if it has a GPU for which the others wait, less if some wait, least if none works; "
        "of those that tell the same, the one that speaks already, else the one with rank 0.",
        given={**RUN_OF_TWO, STALLED_ON_B: 120.0},
        results={("", "kim@node-b", "", "kim", "2"): 15.0},
    ),
    Record(
        name=SPEAKS,
        labels=(*OF_JOB, "world_size"),
        interval=AT_ONCE,
        expression=(f"{STANDS} == on ({OF_A_RUN}) group_left () max by ({OF_A_RUN}) ({STANDS})"),
        purpose="The part of a run on several nodes that speaks for all of them while they do "
        "nothing. A page does not move from node to node.",
        given={**RUN_OF_TWO, STALLED_ON_B: 120.0},
        results={("", "kim@node-b", "", "kim", "2"): 15.0},
    ),
    Record(
        name="job:gpunode_stalled:explained",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"job:gpunode_broken_gpu:count or on ({JOB}) "
            f"count by ({JOB}) (job:gpunode_event:gpus) or on ({JOB}) job:gpunode_stalled:together "
            f"or on ({JOB}) job:gpunode_stalled:seconds "
            f"< on ({JOB}) {COMES_BACK_AGAIN} * job:gpunode_stalled:survived "
            f"or on ({JOB}) max by ({JOB}) ({_of_scripts('job:gpunode_stalled:seconds')} "
            f"< on ({OF_A_SCRIPT}) group_left () {COMES_BACK_AGAIN} "
            f"* max_over_time(user:gpunode_stalled:survived[{RETURNS_KNOWN}])) "
            f"or on ({JOB}) ({RUN} unless on ({JOB}) {SPEAKS})"
        ),
        purpose="Jobs that a fault holds up which has an alert of its own: a GPU, a filesystem, or "
        "what many nodes have in common; jobs that have come back from such a pause before, "
        f"or that are like a Slurm job of the same user that has within {RETURNS_KNOWN}; and parts "
        "of a run on several nodes, but for the one that speaks for all.",
        given={**HELD, series("gpunode_gpu_recovery_action", action="reset"): 1.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_stalled:own",
        labels=OF_JOB,
        interval=AT_ONCE,
        expression=(
            f"count by ({JOB}) (job:gpunode_late_gpu:reason) "
            f'unless on ({JOB}) job:gpunode_late_gpu:reason{{reason!~"{OWN_REASONS}"}} '
            f"unless on ({JOB}) job:gpunode_stalled:seconds offset 15s > {STALLED_FROM} "
            f"or on ({JOB}) (job:gpunode_stalled:own and on ({JOB}) job:gpunode_stalled:seconds) "
            f"or on ({JOB}) job:gpunode_server_stuck:seconds"
        ),
        purpose="Jobs that stand still by their own making: when they came to, each process that "
        "the others wait for had ended or was about to, was stopped, stood in a debugger, slept, "
        "or kept a CPU busy. So do servers whose engine has running requests and gives no token. "
        "The rule reads its own past, so that a page does not move to somebody else.",
        given={
            **TRAINS,
            **TRAINS_B,
            WORKLESS: 7320.0,
            WORKLESS_B: 7320.0,
            STREAK: 7000.0,
            STREAK_B: 0.0,
            series("gpunode_gpu_waited_for", reason="gone", **ON_B): 1.0,
        },
        results={TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_stalled:to_page",
        labels=(*OF_JOB, "route"),
        interval=AT_ONCE,
        expression=(
            f'label_replace({COSTS} and on ({JOB}) job:gpunode_stalled:own, "route", "job_owner", '
            f'"", "") or on ({JOB}) {COSTS}'
        ),
        purpose="The same, once it has cost enough to wake somebody, with the label of what the "
        "owner of a job can mend where that is so.",
        given={**TRAINS, **TRAINS_B, WORKLESS: 7320.0, STREAK: 7000.0},
        results={(*TRAIN, ""): 7320.0},
    ),
    Record(
        name="node:gpunode_down:unexplained",
        labels=OF_NODE,
        interval=AT_ONCE,
        expression=(
            f"node:gpunode_exporter:up == 0 and on ({NODE}) node:gpunode_down:harmed "
            f"unless on ({NODE}) (gpu:gpunode_job:member_lately "
            f"and on ({JOB}) job:gpunode_stalled:seconds)"
        ),
        purpose="Nodes that are down with GPUs in use, but for those of a job that stands still, "
        "which has an alert of its own.",
        given={series("up", job="gpunode"): 0.0, **HELD},
        results={(NODE_A,): 0.0},
    ),
)
"""How long a job has stood still. They are evaluated with the alert that asks."""

OF_PACE: tuple[Record, ...] = (
    Record(
        name="gpu:gpunode_gpu_blocked:gap_to_job",
        labels=(*OF_GPU, *OF_JOB[1:]),
        expression=(
            f"max by ({JOB}) (gpu:gpunode_gpu_blocked:by_job) "
            f"- on ({JOB}) group_right () gpu:gpunode_gpu_blocked:by_job"
        ),
        purpose="How much less a GPU waits for peers than the GPU of its job that waits most; the "
        "straggler has the largest gap.",
        given=ONE_WAITS_LESS,
        results={(*A, *TRAIN): 0.5, (*B, *TRAIN): 0.0},
    ),
    Record(
        name=SLOW_ITSELF,
        labels=OF_GPU,
        expression=(
            f"(1 + 0 * max by ({GPU}) ({parts.SAID_OWN_CAUSE}) "
            f"or on ({GPU}) 0 * max by ({GPU}) ({parts.SAID_CAUSE})) "
            f"and on ({GPU}) gpu:gpunode_gpu_blocked:gap_to_job > {STRAGGLER_FROM}"
        ),
        purpose="Whether the verdict of a GPU for which others of its job wait names a cause of "
        "its own.",
        given={
            **ONE_WAITS_LESS,
            INFO: 1.0,
            series("gpunode_gpu_bottleneck", cause="host_compute"): 1.0,
        },
        results={A: 1.0},
    ),
    Record(
        name="job:gpunode_gpu_blocked:gap",
        labels=OF_JOB,
        expression=f"max by ({JOB}) (gpu:gpunode_gpu_blocked:gap_to_job)",
        purpose="How much less the GPU of a job that waits least waits than the one that waits "
        "most.",
        given=ONE_WAITS_LESS,
        results={TRAIN: 0.5},
    ),
    Record(
        name="job:gpunode_gpu_blocked:gap_at_work",
        labels=OF_JOB,
        expression=(
            "job:gpunode_gpu_blocked:gap "
            f"and on ({JOB}) {parts.AT_WORK.over_nodes()} > {BUSY_SHARE}"
        ),
        purpose="The same while a GPU of the job computes: before, while it loads, no GPU waits, "
        "and what comes then is no change.",
        given=ONE_WAITS_LESS,
        results={TRAIN: 0.5},
    ),
    Record(
        name="job:gpunode_starved:ratio",
        labels=OF_JOB,
        expression=(
            f"clamp_min({STARVES} - on ({JOB}) "
            f"(job:gpunode_training_pause:rate5m or on ({JOB}) 0 * job:gpunode_job:gpus), 0) "
            f"and on ({JOB}) job:gpunode_training:gpus "
            f'unless on ({JOB}) job:gpunode_gpu_bottleneck:count{{cause=~"{NO_STARVATION}"}} '
            f"unless on ({JOB}) ({STILL} and on ({JOB}) job:gpunode_gpu_blocked:count)"
        ),
        purpose="Share of its time in which the GPU of a training job that starves most has "
        "nothing "
        "to run, without the pauses that the job reports, without compilation, and while the job "
        "does not stand still in a collective; but for a straggler that is slow by a cause of its "
        "own, for which the others wait.",
        given={
            **TRAINS,
            **ledger(starved=0.5),
            series("gpunode_training_seconds_total", phase="step"): 0.875,
            series("gpunode_training_seconds_total", phase="evaluation"): 0.125,
        },
        results={TRAIN: 0.375},
    ),
    Record(
        name="job:gpunode_training_step:slowdown",
        labels=OF_JOB,
        expression=parts.SLOWDOWN.over_nodes(),
        purpose="Time of a job's step over the best pace of the same run.",
        given={
            **HELD,
            series("gpunode_training_step_median_seconds"): 3.0,
            series("gpunode_training_step_baseline_seconds"): 2.0,
        },
        results={TRAIN: 1.5},
    ),
    Record(
        name="job:gpunode_training_step:median",
        labels=OF_JOB,
        expression=parts.STEP_MOST.over_nodes(),
        purpose="Time of a job's step, to compare runs by.",
        given={**HELD, series("gpunode_training_step_median_seconds"): 3.0},
        results={TRAIN: 3.0},
    ),
    Record(
        name="job:gpunode_starved:slowdown",
        labels=OF_JOB,
        expression=(
            f"job:gpunode_training_step:slowdown and on ({JOB}) job:gpunode_starved:ratio > "
            f"{STARVED_FROM}"
        ),
        purpose="Time of a starved job's step over the best pace of the same run.",
        given={
            **TRAINS,
            **ledger(starved=0.5),
            series("gpunode_training_step_median_seconds"): 3.0,
            series("gpunode_training_step_baseline_seconds"): 2.0,
        },
        results={TRAIN: 1.5},
    ),
)
"""Who waits for whom within a job, and for what."""
