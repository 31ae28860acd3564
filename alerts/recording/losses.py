"""What each namespace is held up by, and since when: the present step up of each cause and job.

On a busy fleet something is always lost, so "since when" is not asked of zero. It is asked of the
last time at which clearly less was lost than now, which finds the step that a reader sees in a
graph, whatever was lost before.
"""

from __future__ import annotations

from alerts.examples import HELD, TRAINS, ledger, series
from alerts.model import FOR_DAYS, FOR_HOURS, Record, minutes
from alerts.recording import parts
from alerts.recording.capacity import (
    OF_NAMESPACE,
    OF_WORKLOAD,
    SAMPLES_AN_HOUR,
    TESTED_AT,
)
from alerts.recording.parts import KINDS, LEDGERS
from alerts.recording.review import HOUR, TESTED
from alerts.settings import STEP_UP

LOOKS_BACK = "6h"
"""A loss that grows more slowly than this is no step."""

COUNT = "namespace:gpunode_gpu_bottleneck:count"
OF_CLUSTER = 'cluster:gpunode_gpu_bottleneck:count{cause!="none"}'
OF_JOBS = 'job:gpunode_gpu_bottleneck:count{cause!="none"}'
NAMESPACE = ", ".join(OF_NAMESPACE)
LOST = "job:gpunode_gpu_lost:rate5m"
SEEN = "cluster:gpunode_gpu_seconds:rate5m"
MEMBERS = "job:gpunode_job:gpus"
OCCUPIED = f"sum by (cluster) ({parts.OCCUPIED})"
"""GPUs that somebody holds."""

SHM = series("gpunode_gpu_bottleneck", cause="shm")


def _since(gpus: str) -> str:
    """When the present step up of a number of GPUs began, in seconds since the epoch.

    What is absent while its cluster is seen counts as none. A dip of less than five minutes ends no
    step. A step that began before all that the rule looks back on began when the rule said before.
    """
    before = f"(max_over_time({gpus}[5m]) or 0 * {gpus} @ end() and on (cluster) {SEEN})"
    first = f"min_over_time(timestamp({gpus})[{LOOKS_BACK}:1m])"
    return (
        f"(max_over_time(timestamp({before} < {STEP_UP} * {gpus} @ end())[{LOOKS_BACK}:1m]) "
        f"or last_over_time({_named(gpus, 'since')}[{LOOKS_BACK}]) < {first} or {first}) "
        f"and {gpus}"
    )


def _hours(gpus: str) -> str:
    """GPU hours since the present step up.

    The mean of what the rule looks back on, times its duration, and before that what it said of the
    same step.
    """
    since, hours = _named(gpus, "since"), _named(gpus, "hours_since")
    longest = minutes(LOOKS_BACK) * 60
    return (
        f"avg_over_time(({gpus} and {since} @ end() < time())[{LOOKS_BACK}:1m]) "
        f"* clamp_max(time() - {since}, {longest}) / 3600 "
        f"+ ({hours} offset {LOOKS_BACK} and {since} offset {LOOKS_BACK} == {since} "
        f"or 0 * {since})"
    )


def _named(gpus: str, operation: str) -> str:
    """Another series of the same level and metric."""
    level, metric, _ = gpus.split(":")
    return f"{level}:{metric}:{operation}"


OF_NAMESPACES: tuple[Record, ...] = (
    Record(
        name=COUNT,
        labels=(*OF_NAMESPACE, "cause"),
        expression=(
            f"sum by ({NAMESPACE}, cause) ({OF_JOBS} or ({OF_CLUSTER} - on (cluster, cause) "
            f"sum by (cluster, cause) ({OF_JOBS}) or {OF_CLUSTER}) > 0)"
        ),
        purpose="GPUs by what holds them back, for each Kubernetes namespace. GPUs that are shared "
        "or nobody's have none, so that the sum is that of the cluster.",
        given={**HELD, SHM: 1.0, series("gpunode_gpu_bottleneck", cause="shm", gpu="7"): 1.0},
        results={("", "shm"): 2.0},
    ),
    Record(
        name="cluster:gpunode_gpu:count",
        labels=("cluster",),
        expression=f"sum by (cluster) ({LEDGERS})",
        purpose="GPUs that have a ledger.",
        given=ledger(free=0.25),
        results={(): 1.0},
    ),
    Record(
        name="namespace:gpunode_gpu:held",
        labels=OF_NAMESPACE,
        expression=(
            f"sum by ({NAMESPACE}) ({MEMBERS} or ({OCCUPIED} - on (cluster) "
            f"sum by (cluster) ({MEMBERS}) or {OCCUPIED}) > 0)"
        ),
        purpose="GPUs that somebody holds now, for each Kubernetes namespace, counted as "
        f"`{COUNT}` counts: of these, none is held up that is not held.",
        given={**HELD, SHM: 1.0, series("gpunode_gpu_bottleneck", cause="shm", gpu="7"): 1.0},
        results={("",): 2.0},
    ),
    Record(
        name=_named(COUNT, "gpus_hourly"),
        labels=(*OF_NAMESPACE, "cause"),
        interval=FOR_DAYS,
        expression=(
            f"sum_over_time({COUNT}{HOUR}) / {SAMPLES_AN_HOUR} "
            f"and on () (minute() < {minutes(FOR_DAYS)})"
        ),
        purpose="The same averaged over an hour, once an hour.",
        given={**HELD, SHM: 1.0},
        results={("", "shm"): TESTED},
    ),
    Record(
        name="namespace:gpunode_job_kind:gpus",
        labels=(*OF_NAMESPACE, "kind"),
        expression=f"sum by ({NAMESPACE}, kind) ({KINDS})",
        purpose="GPUs by the kind of work that the job on them does, for each namespace.",
        given=TRAINS,
        results={("", "training"): 1.0},
    ),
    Record(
        name="namespace:gpunode_job_kind:gpus_hourly",
        labels=(*OF_NAMESPACE, "kind"),
        interval=FOR_DAYS,
        expression=f"sum by ({NAMESPACE}, kind) (job:gpunode_job_kind:gpus_hourly)",
        purpose="The same once an hour.",
        given=TRAINS,
        results={("", "training"): 1.0},
    ),
    Record(
        name=LOST,
        labels=OF_WORKLOAD,
        expression=(
            f"sum by ({', '.join(OF_WORKLOAD)}) "
            '(job:gpunode_gpu_seconds:rate5m{state!~"compute|free"})'
        ),
        purpose="GPUs that a job holds and whose time is lost.",
        given={**HELD, **ledger(starved=0.25, blocked=0.25)},
        results={("", "train", ""): 0.5},
    ),
)
"""Rules that add up nodes, for the Prometheus that sees them all."""

SINCE: tuple[Record, ...] = tuple(
    record
    for gpus, labels, what, given, example in (
        (
            COUNT,
            (*OF_NAMESPACE, "cause"),
            "a cause holds up of a namespace",
            {**HELD, SHM: 1.0},
            ("", "shm"),
        ),
        (
            LOST,
            OF_WORKLOAD,
            "a job loses",
            {series(LOST, workload="train"): 1.0},
            ("", "train", ""),
        ),
    )
    for record in (
        Record(
            name=_named(gpus, "since"),
            labels=labels,
            interval=FOR_HOURS,
            expression=_since(gpus),
            purpose=f"When the present step up of the GPUs that {what} began, in seconds since "
            "the epoch: after it was last clearly less.",
            given=given,
            results={example: 0.0},
        ),
        Record(
            name=_named(gpus, "hours_since"),
            labels=labels,
            interval=FOR_HOURS,
            expression=_hours(gpus),
            purpose=f"GPU hours that {what} since then.",
            given=given,
            results={example: TESTED_AT / 60},
        ),
    )
)
"""Rules with long looks back at every job, in a file of their own: no alert rests upon them."""
