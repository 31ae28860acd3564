"""How a job starts: for how long it has yet to work, and how often it has started again.

A job starts from when it holds a GPU until one of its GPUs works. So a start has in it what
Kubernetes does before the first process, and what a crash costs until its job works again.
"""

from __future__ import annotations

from alerts.examples import (
    HELD,
    OF_JOB,
    STARTED,
    STREAK,
    TRAIN,
    TRAINS,
    TRAINS_B,
    WORKLESS,
    ledger,
    series,
)
from alerts.model import FOR_HOURS, Record
from alerts.promql import GPU, JOB, NODE, of_jobs
from alerts.recording.jobs import (
    CRASHING,
    ENDED_SOON,
    FIRST_OF_A_GANG,
    SEVERAL,
    SIZE,
    STARTING,
    TRAINED_LATELY,
    USUAL_REQUESTS,
)
from alerts.recording.parts import AT_WORK, BY_SERVICE, SERVICE, STARTS, USEFUL_1H
from alerts.settings import (
    BLOCKED_FROM,
    ENGINE_RESTS,
    LOOPS_ABOVE,
    LOOPS_ANSWERED,
    LOOPS_GPUS,
    LOOPS_WORK,
    RANKS_LEAVE_WITHIN,
    RESTARTED_USEFUL,
    STARTS_LONGER,
)

PROCESSES = "gpunode_gpu_process_info"
OF_PROGRAMS = 'workload!~".+@.+"'
"""Without what a user runs on a node outside of any job, which need not be the same work twice."""

KNOWN_FOR = "1h"
"""For how long a node is known after it was last scraped: as long as Prometheus may be away."""

_OWN = f"{GPU}, pid"
_BEFORE = "offset 5m"
_THERE_BEFORE = f"last_over_time({PROCESSES}[5m] {_BEFORE})"
"""Processes that were there minutes ago. A scrape that failed just then says nothing against it."""

PROCESSES_STAY = "job:gpunode_processes:stay"


def _looped(ago: str) -> str:
    """Jobs that started again and again before, too."""
    return f"job:gpunode_starts:count_1h offset {ago} > {LOOPS_ABOVE}"


def _staying(which: str = "") -> str:
    """Processes that have been there for minutes: all, or those with these labels."""
    return f"({PROCESSES}{which} and on ({_OWN}) {_THERE_BEFORE})"


RANKS_STAY = (
    f"count by ({JOB}) (gpu:gpunode_job:member and on ({GPU}) {_staying(f'{{{SEVERAL}}}')})"
)
"""Jobs with a rank of several that was there minutes ago."""

_RANKS_BEFORE = (
    f"count by ({JOB}) (gpu:gpunode_job:member and on ({GPU}) gpunode_gpu_owner_info "
    f"and on ({GPU}) {PROCESSES}{{{SEVERAL}}} {_BEFORE})"
)
"""Jobs that had ranks minutes ago on GPUs that are held now, as the last scrape says: what is
recorded of a job that gives its GPUs away may be older."""

_STARTS = f"job:gpunode_job:gpus unless on ({JOB}) job:gpunode_workless:seconds"
_SETTLED = f"({_STARTS} and on ({JOB}) job:gpunode_job:gpus offset 30s)"
"""Jobs that hold GPUs since before the last evaluation of the rule that says for how long they have
not worked: another group has it, which may be evaluated later."""

ANSWERED = "node:gpunode_exporter:up"
_NEW_NODES = (
    f"({ANSWERED} == 1 unless on ({NODE}) last_over_time({ANSWERED}[{KNOWN_FOR}] offset 3m))"
)
"""Nodes that are scraped for the first time. A job that comes to such a node after that takes some
minutes until it waits in a collective."""

_WORKED = "last_over_time(job:gpunode_workless:seconds[3m])"

_POD = "cluster, owner_namespace, owner_pod"
_RESTARTS = (
    "max by (cluster, namespace, pod) (changes(kube_pod_container_status_restarts_total[1h]))"
)
_NOT_RESTARTED = (
    f"gpu:gpunode_gpu_owner:workload and on ({_POD}) label_replace(label_replace({_RESTARTS} == 0, "
    '"owner_namespace", "$1", "namespace", "(.+)"), "owner_pod", "$1", "pod", "(.+)")'
)
"""GPUs of pods none of whose containers ended, as far as kube-state-metrics tells: a server that
loads a model for each request, or somebody who tries out a server, starts processes as well."""

SINCE = series("job:gpunode_start:since", workload="train")
TOOK = series("job:gpunode_startup:seconds", workload="train")
_OF_A_GANG = f'gpu:gpunode_gpu_owner:workload{{owner_pod=~"{FIRST_OF_A_GANG}"}}'
NOTHING_BEGAN = (
    f"job:gpunode_start:since and on ({JOB}) job:gpunode_job:nodes > 1 "
    f"and on ({JOB}) count by ({JOB}) ({_OF_A_GANG}) "
    f"and on ({JOB}) {AT_WORK.over_nodes()} == 0 "
    f"unless on ({JOB}) {STARTS.over_nodes()} unless on ({JOB}) job:gpunode_restart:since"
)
"""When jobs of several pods on several nodes came that begin together, of which no process has had
a GPU within an hour: as when they wait for one that is missing."""

FRESH = "job:gpunode_start:fresh"
TO_PAGE = "job:gpunode_starts:to_page"
BEGINS_AGAIN = "15m"
"""A job that starts in a loop does so within as long: it loads what it needs, and Kubernetes waits
for up to five minutes before it starts a container again."""

_CRASHES = (
    f'max by ({JOB}) ({ENDED_SOON}{{owner_namespace!=""}} '
    f"unless on ({GPU}) {_staying()} unless on ({GPU}) ({_NOT_RESTARTED}))"
)
"""Processes of each server in a pod that had a GPU within an hour and not for long, if it has none
that stays."""

_USEFUL = f"({USEFUL_1H.over_nodes()})"
_WORKS_NOW = f"({AT_WORK.over_nodes()} > {LOOPS_WORK})"
_IN_VAIN = (
    f"({STARTS.over_nodes()} and on ({JOB}) last_over_time({FRESH}[{BEGINS_AGAIN}]) "
    f"and on ({JOB}) last_over_time({SIZE}[5m]) >= {LOOPS_GPUS} "
    f"and on ({JOB}) ({_USEFUL} unless on ({JOB}) {_USEFUL} < {RESTARTED_USEFUL} "
    f"or on ({JOB}) last_over_time({TO_PAGE}[5m])) unless on ({JOB}) {_WORKS_NOW} "
    f"unless on ({JOB}) count_over_time(job:gpunode_restart:seconds[{BEGINS_AGAIN}]) > 1)"
)
"""Processes of a job with many GPUs that has worked within the hour, and now starts and does not
work. An hour has to pass until its GPUs have done little in the last one. If its processes stay for
minutes, it is JobIdle's."""

USUAL = f"(max by ({JOB}) (quantile_over_time(0.5, job:gpunode_startup:seconds[7d])) > 0)"
"""What the starts of a job took within a week."""

STARTING_FOR = "job:gpunode_engine_start:seconds"

OF_STARTS: tuple[Record, ...] = (
    Record(
        name=PROCESSES_STAY,
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(f"count by ({JOB}) (gpu:gpunode_job:member and on ({GPU}) {_staying()})"),
        purpose="GPUs of a job with a process that was there minutes ago. An exporter that "
        "restarts has yet to see it work.",
        given={**HELD, STARTED: 1.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name=STARTING_FOR,
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            of_jobs(STARTING.metric)
            + f" unless on ({JOB}) job:gpunode_workless:seconds <= {ENGINE_RESTS}"
        ),
        purpose="Seconds since the process of an inference engine was first seen that has answered "
        "nobody yet and whose GPUs do nothing, or have never done anything.",
        given={**HELD, WORKLESS: 7200.0, STARTING: 7260.0},
        results={TRAIN: 7260.0},
    ),
    Record(
        name="job:gpunode_start:since",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"(job:gpunode_start:since and on ({JOB}) ({_STARTS})) "
            f"or on ({JOB}) (time() - 30 + 0 * ({_SETTLED} unless on ({JOB}) {PROCESSES_STAY}))"
        ),
        purpose="When a job that holds GPUs and has yet to work began to, as Unix time; the rule "
        "reads its own past.",
        given=HELD,
        results={TRAIN: 30.0},
    ),
    Record(
        name="job:gpunode_restart:since",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"job:gpunode_start:since and on ({JOB}) (job:gpunode_restart:since or on ({JOB}) "
            f"({_RANKS_BEFORE} unless on ({JOB}) {PROCESSES_STAY} and on ({JOB}) {_WORKED}))"
        ),
        purpose="When a job of several ranks that kept its GPUs lost all its processes, as Unix "
        "time, until it works again; the rule reads its own past. A job that is put back into a "
        "queue gives its GPUs away first.",
        given=HELD,
        results={},
    ),
    Record(
        name="job:gpunode_aborted:since",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"job:gpunode_restart:since and on ({JOB}) (job:gpunode_aborted:since or on ({JOB}) "
            f"last_over_time(job:gpunode_stalled:to_page[5m]) > {RANKS_LEAVE_WITHIN}) "
            f"unless on ({JOB}) (gpu:gpunode_job:member and on ({JOB}) job:gpunode_restart:since "
            f"and on ({GPU}) {PROCESSES})"
        ),
        purpose="When a job that stood still, and not only until its ranks had left, lost all its "
        "processes, as Unix time, while it keeps its GPUs without one; the rule reads its own "
        "past.",
        given=HELD,
        results={},
    ),
    Record(
        name="job:gpunode_waiting:found",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"(job:gpunode_waiting:found or on ({JOB}) "
            f"count by ({JOB}) (gpu:gpunode_job:member and on ({NODE}) {_NEW_NODES})) "
            f"and on ({JOB}) job:gpunode_waiting:seconds > {BLOCKED_FROM} "
            f"and on ({JOB}) job:gpunode_training:gpus"
        ),
        purpose="GPUs of a training job on nodes that were scraped for the first time when it "
        "already waited in a collective, until it waits no more: nobody knows since when. The rule "
        "reads its own past.",
        given={**TRAINS, **TRAINS_B, STREAK: 7000.0},
        results={},
    ),
    Record(
        name="job:gpunode_startup:seconds",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            "(time() - last_over_time(job:gpunode_start:since[2m])) "
            f"and on ({JOB}) job:gpunode_workless:seconds and on ({JOB}) job:gpunode_training:gpus"
        ),
        purpose="How long a training job took to start, once for each start.",
        given={**TRAINS, WORKLESS: 0.0, SINCE: 60.0},
        results={TRAIN: 7260.0},
    ),
    Record(
        name="job:gpunode_restart:seconds",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"time() - job:gpunode_restart:since and on ({JOB}) {PROCESSES_STAY} "
            f"unless on ({JOB}) (time() - job:gpunode_restart:since "
            f"< on ({JOB}) {STARTS_LONGER} * {USUAL}) "
            f'unless on ({JOB}) job:gpunode_gpu_bottleneck:count{{cause="compile"}}'
        ),
        purpose="For how long a job of several ranks that works no more since it lost its "
        "processes has tried to begin again with processes that stay, if that is longer than it "
        "usually takes and it does not compile.",
        given={**TRAINS, STARTED: 1.0},
        results={},
    ),
    Record(
        name="job:gpunode_starts:count_6h",
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"max by ({JOB}) ("
            'label_replace(job:gpunode_starts:count_1h, "within", "1h", "", "") '
            f"or label_replace((changes(job:gpunode_restart:since{{{OF_PROGRAMS}}}[6h]) + 2) "
            f"and on ({JOB}) job:gpunode_job:gpus "
            f"and on ({JOB}) {TRAINED_LATELY}, "
            '"within", "6h", "", "") '
            f"or label_replace(max by ({JOB}) ({STARTS.record('max')} "
            f"and on ({JOB}) job:gpunode_start:since "
            f"and on ({BY_SERVICE}) job:gpunode_serving_requests:rate5m), "
            '"within", "1h, in a service", "", "") '
            f'or label_replace({_CRASHES}, "within", "1h, of a server", "", ""))'
        ),
        purpose="Starts of a training job: those within six hours after which it worked, if it has "
        "several ranks and kept its GPUs, and the processes that the same GPU had within an hour, "
        "if it did little meanwhile; of a service's replica that has yet to work while others "
        "answer, the processes that a GPU had within an hour; of any server in a pod that has no "
        "process which stays, those that had a GPU within an hour and not for long, unless "
        "Kubernetes says that it restarted none of its containers.",
        given={**TRAINS, **ledger(idle=0.9), STARTED: 1.0},
        results={TRAIN: 1.0},
    ),
    Record(
        name=FRESH,
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=f"job:gpunode_training:gpus unless on ({JOB}) {PROCESSES_STAY}",
        purpose="GPUs of a training job all of whose processes began within minutes.",
        given={**TRAINS, STARTED: None},
        results={TRAIN: 1.0},
    ),
    Record(
        name=TO_PAGE,
        labels=OF_JOB,
        interval=FOR_HOURS,
        expression=(
            f"job:gpunode_starts:count_1h and on ({JOB}) {_looped('30m')} "
            f"and on ({JOB}) (last_over_time({SIZE}[5m]) >= {LOOPS_GPUS} "
            f"or on ({JOB}) {_looped('1h')} and on ({JOB}) {_looped('90m')}) "
            f"or on ({JOB}) {_IN_VAIN}"
        ),
        purpose="Processes of a job that had the same GPU within an hour, if the GPU did little "
        "meanwhile and half an hour before, too, of jobs with many GPUs, and of others that did so "
        f"for longer; and of jobs with many GPUs that have worked within the hour, started within "
        f"{BEGINS_AGAIN} and do not work. The rule reads its own past.",
        given={**TRAINS, **ledger(idle=0.9), STARTED: 1.0},
        results={},
    ),
    Record(
        name=CRASHING,
        labels=SERVICE,
        interval=FOR_HOURS,
        expression=(
            f"(count by ({BY_SERVICE}) ({_CRASHES} > {LOOPS_ABOVE} and on ({JOB}) "
            "job:gpunode_job:gpus) "
            f"== on ({BY_SERVICE}) count by ({BY_SERVICE}) (job:gpunode_job:gpus)) "
            f"unless on ({BY_SERVICE}) avg_over_time(job:gpunode_serving_requests:rate5m[15m]) "
            f"> on ({BY_SERVICE}) {LOOPS_ANSWERED} * {USUAL_REQUESTS}"
        ),
        purpose="Replicas of a service all of which end again and again, soon after they began, "
        "while it answers much fewer requests than usual.",
        given={STARTED: 1.0},
        results={},
    ),
)
"""How jobs start."""
