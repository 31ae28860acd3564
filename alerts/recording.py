"""Recording rules, named level:metric:operation: what alerts and capacity reviews often ask.

They keep ``cluster`` and ``instance``. Owners are joined by their share of the GPU, so that a GPU
with several owners counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from alerts.thresholds.row import (
    GPU,
    IDENTITY,
    NCCL_BANDWIDTH,
    NODE,
    PAUSE,
    PAUSED,
    Given,
    ledger,
    minutes,
    owner,
    series,
)
from gpunode.gpu.ledger import STATES

Interval = Literal["30s", "1m", "4m"]
"""Time between two evaluations. Prometheus drops a series from queries after five minutes:
https://prometheus.io/docs/prometheus/latest/querying/basics/#staleness"""

EVERY: Interval = "30s"
SAMPLES_AN_HOUR = 120
"""What a rule that is evaluated every 30 s records."""
FOR_HOURS: Interval = "1m"
"""For what looks back on an hour."""
FOR_DAYS: Interval = "4m"
"""For what looks back on days: a divisor of the hour, so that each hour has a first evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule and its test."""

    name: str
    labels: tuple[str, ...]
    """The labels that its series have."""

    interval: Interval = EVERY
    expression: str
    purpose: str
    given: Given
    """Series of the test: the value of a gauge, or what a counter gains a second."""

    results: Mapping[tuple[str, ...], float]
    """Some of the series that come out, by the values of their labels after ``cluster``."""


TESTED_AT = 122
"""The minute at which the tests look at the results: just after an hour begins."""

OF_GPU = IDENTITY["gpu"]
OF_NODE = IDENTITY["node"]
OF_JOB = ("cluster", "owner_namespace", "workload", "user")
OF_NAMESPACE = ("cluster", "owner_namespace")
OWNER = "owner_namespace, workload, user"

NODE_A = "node-a"
GPU_A = ("0", "GPU-a")
"""The node and the GPU of the tests, which are added to the series they are given."""
A = (NODE_A, *GPU_A)
B = (NODE_A, "1", "GPU-b")

HALF = ledger(starved=0.25, blocked=0.25)
OWNED = {
    owner(owner_namespace="research", owner_pod="a-worker-0", owner_container="main"): 1.0,
    owner(owner_namespace="team", owner_pod="b-7c9f5d6b4-x2lqz", owner_container="main"): 1.0,
}
SLURM = {owner(slurm_job="42", user="kim"): 1.0}
TRAINING_STEPS = series("gpunode_training_seconds_total", phase="step")
PORT_ACTIVE = series("gpunode_infiniband_active", device="mlx5_0", port="1")

ROLES = "-(?:master|workers?|launcher|chief|ps|head|leader|node)"
RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
POD = f"(.+?)(?:{ROLES})?(?:-[0-9]+)*(?:-{RANDOM}{{8,10}})?(?:-{RANDOM}{{5}})?"
"""The name of a pod: what it belongs to, its role and number, and what controllers append.
https://github.com/kubernetes/apimachinery/blob/master/pkg/util/rand/rand.go"""


def _over(
    level: str,
    labels: tuple[str, ...],
    example: tuple[str, ...],
    *,
    hour: str,
    rests_on: str,
    result: float,
) -> list[Record]:
    """A level's shares over an hour, as ``hour`` says, over a day and over 30 days.

    What looks back on days reads one sample an hour: over a fleet, reading all samples of 30 days
    would take longer than the time between two evaluations. An hour without data counts as none,
    so a GPU that was there for three hours has used three. The windows of sums are a little short,
    because Prometheus 2 counts the samples at both ends.

    The tests look at the series of the level whose labels are ``example``: ``rests_on`` is what the
    hour is computed from, and ``result`` what it comes to.
    """
    base = f"{level}:gpunode_gpu_seconds"
    hourly = f"{base}:rate1h_hourly"
    kept = (*labels, "state")
    starved = (*example, "starved")
    own = {
        name: value
        for name, value in zip(kept[1:], starved, strict=True)
        if value and name not in OF_GPU
    }
    return [
        Record(
            name=f"{base}:rate1h",
            labels=kept,
            interval=FOR_HOURS,
            expression=hour,
            purpose=f"`{base}:rate5m`, averaged over an hour.",
            given={series(rests_on, **own): 0.25},
            results={starved: result},
        ),
        Record(
            name=hourly,
            labels=kept,
            interval=FOR_DAYS,
            expression=f"{base}:rate1h and on () (minute() < {minutes(FOR_DAYS)})",
            purpose=f"`{base}:rate1h` once an hour, for what looks back on days.",
            given={series(f"{base}:rate1h", **own): 0.25},
            results={starved: 0.25},
        ),
        *(
            Record(
                name=f"{base}:rate{days}d",
                labels=kept,
                interval=FOR_DAYS,
                expression=f"sum_over_time({hourly}[{24 * days - 1}h59m]) / {24 * days}",
                purpose=f"`{base}:rate1h` averaged over {days}d.",
                given={series(hourly, **own): 0.25},
                results={starved: (TESTED_AT + 1) * 0.25 / (24 * days)},
            )
            for days in (1, 30)
        ),
    ]


def _by_owner(owner: str) -> str:
    """The seconds of GPUs by state, each weighted with an owner's share of the GPU.

    One side of a join may have only one series for each GPU, so each state is joined by itself.
    """
    states = (
        f"label_replace(sum by (cluster, {owner}) (gpu:gpunode_gpu_owner:share "
        f"* on ({GPU}) group_left () "
        f'gpu:gpunode_gpu_seconds:rate5m{{state="{state}"}}), "state", "{state}", "", "")'
        for state in STATES
    )
    return " or ".join(states)


OF_NODES: tuple[Record, ...] = (
    Record(
        name="gpu:gpunode_gpu_seconds:rate5m",
        labels=(*OF_GPU, "state"),
        expression=f"sum by ({GPU}, state) (rate(gpunode_gpu_seconds_total[5m]))",
        purpose="Share of a GPU's time by state of the ledger.",
        given=HALF,
        results={(*A, "blocked"): 0.25},
    ),
    Record(
        name="gpu:gpunode_gpu_running:rate5m",
        labels=OF_GPU,
        expression=(
            f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state!~"free|idle|unknown"}})'
        ),
        purpose="Share of a GPU's time with a job running; alerts on bottlenecks depend on it.",
        given=ledger(idle=0.5),
        results={A: 0.5},
    ),
    Record(
        name=PAUSE,
        labels=OF_GPU,
        expression=(
            f"sum by ({GPU}) (rate(gpunode_training_seconds_total"
            '{phase=~"checkpoint|evaluation|compile|other"}[5m])) '
            f"unless on ({GPU}) "
            f"sum by ({GPU}) (rate(gpunode_serving_request_seconds_count[5m])) > 0"
        ),
        purpose="Share of a training process's time in which no step is expected, set-up included; "
        "alerts on bottlenecks are silent meanwhile.",
        given={
            TRAINING_STEPS: 0.5,
            series("gpunode_training_seconds_total", phase="evaluation"): 0.5,
        },
        results={A: 0.5},
    ),
    Record(
        name="node:gpunode_gpu_running:max_1h",
        labels=OF_NODE,
        expression=(
            f"max by ({NODE}) (max_over_time(gpu:gpunode_gpu_running:rate5m[1h]) > 0.5 "
            f"unless on ({GPU}) {PAUSE} > {PAUSED:g})"
        ),
        purpose="Nodes on which a job ran within the hour, on a GPU whose training does not pause; "
        "alerts on storage depend on it.",
        given=ledger(idle=0.25),
        results={(NODE_A,): 0.75},
    ),
    Record(
        name="node:gpunode_infiniband_active:ever",
        labels=(*OF_NODE, "device", "port"),
        expression=(
            f"max by ({NODE}, device, port) (gpunode_infiniband_active) > 0 "
            f"or on ({NODE}, device, port) "
            f"last_over_time(node:gpunode_infiniband_active:ever[1d]) "
            f"and on ({NODE}, device, port) gpunode_infiniband_active"
        ),
        purpose="Ports that have been active; the rule reads its own past.",
        given={PORT_ACTIVE: 1.0},
        results={(NODE_A, "mlx5_0", "1"): 1.0},
    ),
    Record(
        name="node:gpunode_gpu_seconds:rate5m",
        labels=(*OF_NODE, "state"),
        expression=f"sum by ({NODE}, state) (gpu:gpunode_gpu_seconds:rate5m)",
        purpose="GPU seconds per second, by node and state.",
        given=HALF,
        results={(NODE_A, "starved"): 0.25},
    ),
    Record(
        name="gpu:gpunode_gpu_owner:workload",
        labels=(*OF_GPU, "owner_namespace", "owner_pod", "workload", "user"),
        expression=(
            f"max by ({GPU}, owner_namespace, owner_pod, workload, user) ("
            f'label_replace(gpunode_gpu_owner_info{{owner_pod!=""}}, '
            f'"workload", "$1", "owner_pod", "{POD}") '
            'or label_replace(gpunode_gpu_owner_info{owner_pod="",slurm_job!=""}, '
            '"workload", "slurm-$1", "slurm_job", "(.+)") '
            'or label_join(gpunode_gpu_owner_info{owner_pod="",slurm_job=""}, '
            '"workload", "@", "user", "instance"))'
        ),
        purpose="Who holds a GPU, and for which job: the name of the pod without role, number and "
        "suffix, the Slurm job, or else the user on the node.",
        given={**OWNED, **SLURM},
        results={
            (*A, "research", "a-worker-0", "a", ""): 1.0,
            (*A, "team", "b-7c9f5d6b4-x2lqz", "b", ""): 1.0,
            (*A, "", "", "slurm-42", "kim"): 1.0,
        },
    ),
    Record(
        name="gpu:gpunode_gpu_owner:share",
        labels=(*OF_GPU, "owner_namespace", "workload", "user"),
        expression=(
            f"sum by ({GPU}, {OWNER}) (gpu:gpunode_gpu_owner:workload) "
            f"/ on ({GPU}) group_left () count by ({GPU}) (gpu:gpunode_gpu_owner:workload)"
        ),
        purpose="Each job's share of a GPU; a GPU with several owners counts once.",
        given=OWNED,
        results={(*A, "research", "a", ""): 0.5, (*A, "team", "b", ""): 0.5},
    ),
    Record(
        name="node:kube_node_spec_unschedulable:max",
        labels=OF_NODE,
        expression=(
            f"max by ({NODE}) (label_replace(kube_node_spec_unschedulable, "
            '"instance", "$1", "node", "(.+)")) > 0'
        ),
        purpose="Nodes that are cordoned or drained (kube-state-metrics); they page nobody.",
        given={
            series("kube_node_spec_unschedulable", node="node-a", instance="10.0.0.9:8080"): 1.0
        },
        results={(NODE_A,): 1.0},
    ),
    *_over(
        "gpu",
        OF_GPU,
        A,
        hour=f"sum by ({GPU}, state) (rate(gpunode_gpu_seconds_total[1h]))",
        rests_on="gpunode_gpu_seconds_total",
        result=0.25,
    ),
    *_over(
        "node",
        OF_NODE,
        (NODE_A,),
        hour=f"sum by ({NODE}, state) (gpu:gpunode_gpu_seconds:rate1h)",
        rests_on="gpu:gpunode_gpu_seconds:rate1h",
        result=0.25,
    ),
    Record(
        name="gpu:gpunode_training_goodput:ratio_rate5m",
        labels=OF_GPU,
        expression=(
            f'sum by ({GPU}) (rate(gpunode_training_seconds_total{{phase="step"}}[5m])) '
            f"/ (sum by ({GPU}) (rate(gpunode_training_seconds_total[5m])) > 0)"
        ),
        purpose="Share of a training process's time that goes to steps.",
        given={
            TRAINING_STEPS: 0.75,
            series("gpunode_training_seconds_total", phase="data"): 0.25,
        },
        results={A: 0.75},
    ),
    Record(
        name="gpu:gpunode_gpu_energy_joules:per_useful_second",
        labels=OF_GPU,
        expression=(
            f"sum by ({GPU}) (rate(gpunode_gpu_energy_joules_total[5m])) / on ({GPU}) "
            f'(sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state=~"compute|memory"}}) > 0)'
        ),
        purpose="Joules for each second of arithmetic or memory traffic.",
        given={series("gpunode_gpu_energy_joules_total"): 400.0, **HALF},
        results={A: 800.0},
    ),
    Record(
        name="gpu:gpunode_training_step_median_seconds:ratio_to_baseline",
        labels=OF_GPU,
        expression=(
            f"max by ({GPU}) (gpunode_training_step_median_seconds) "
            f"/ on ({GPU}) (max by ({GPU}) (gpunode_training_step_baseline_seconds) > 0)"
        ),
        purpose="Time of a step over the best pace of the same process.",
        given={
            series("gpunode_training_step_median_seconds"): 3.0,
            series("gpunode_training_step_baseline_seconds"): 2.0,
        },
        results={A: 1.5},
    ),
    Record(
        name="node:gpunode_nccl_bus_bandwidth:ratio",
        labels=(*OF_NODE, "collective", "gpus"),
        expression=NCCL_BANDWIDTH,
        purpose="Measured over expected bus bandwidth.",
        given={
            series(
                "gpunode_nccl_bus_bandwidth_bytes_per_second", collective="all_reduce", gpus="8"
            ): 3e11,
            series(
                "gpunode_nccl_expected_bus_bandwidth_bytes_per_second",
                collective="all_reduce",
                gpus="8",
            ): 4e11,
        },
        results={(NODE_A, "all_reduce", "8"): 0.75},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="namespace:gpunode_gpu_seconds:rate5m",
        labels=(*OF_NAMESPACE, "state"),
        expression=_by_owner("owner_namespace"),
        purpose="GPU seconds per second, by Kubernetes namespace and state.",
        given={**HALF, **OWNED},
        results={("research", "starved"): 0.125},
    ),
    Record(
        name="job:gpunode_gpu_seconds:rate5m",
        labels=(*OF_JOB, "state"),
        expression=_by_owner(OWNER),
        purpose="GPU seconds per second, by job and state.",
        given={**HALF, **SLURM},
        results={("", "slurm-42", "kim", "starved"): 0.25},
    ),
    *(
        record
        for level, labels, example in (
            ("namespace", OF_NAMESPACE, ("research",)),
            ("job", OF_JOB, ("research", "a", "")),
        )
        for record in _over(
            level,
            labels,
            example,
            hour=f"sum_over_time({level}:gpunode_gpu_seconds:rate5m[59m59s]) / {SAMPLES_AN_HOUR}",
            rests_on=f"{level}:gpunode_gpu_seconds:rate5m",
            result=60 * 0.25 / SAMPLES_AN_HOUR,  # the tests have one sample a minute
        )
    ),
    Record(
        name="gpu:gpunode_gpu_blocked:by_job",
        labels=(*OF_GPU, "owner_namespace", "workload", "user"),
        expression=(
            f"(gpu:gpunode_gpu_owner:share > bool 0) * on ({GPU}) group_left () sum by ({GPU}) "
            '(gpu:gpunode_gpu_seconds:rate5m{state="blocked"})'
        ),
        purpose="Share of its time in which a GPU waits for peers, with the job it belongs to.",
        given={**HALF, **OWNED},
        results={(*A, "research", "a", ""): 0.25},
    ),
    Record(
        name="gpu:gpunode_gpu_blocked:gap_to_job",
        labels=(*OF_GPU, "owner_namespace", "workload", "user"),
        expression=(
            f"max by (cluster, {OWNER}) (gpu:gpunode_gpu_blocked:by_job) "
            f"- on (cluster, {OWNER}) group_right () "
            "gpu:gpunode_gpu_blocked:by_job"
        ),
        purpose="How much less a GPU waits for peers than the GPU of its job that waits most; the "
        "straggler has the largest gap.",
        given={
            **ledger(blocked=0.125),
            series("gpunode_gpu_seconds_total", gpu="1", uuid="GPU-b", state="blocked"): 0.625,
            owner(owner_pod="a-0"): 1.0,
            owner(owner_pod="a-1", gpu="1", uuid="GPU-b"): 1.0,
        },
        results={(*A, "", "a", ""): 0.5, (*B, "", "a", ""): 0.0},
    ),
    Record(
        name="cluster:gpunode_gpu_lost:rate1h",
        labels=("cluster", "state"),
        interval=FOR_HOURS,
        expression=(
            'sum by (cluster, state) (gpu:gpunode_gpu_seconds:rate1h{state!~"compute|memory|free"})'
        ),
        purpose="GPUs lost on average over the last hour, by state; multiply by hours for GPU "
        "hours.",
        given=HALF,
        results={("blocked",): 0.25, ("starved",): 0.25},
    ),
    Record(
        name="cluster:gpunode_gpu_bottleneck:count",
        labels=("cluster", "cause"),
        expression="sum by (cluster, cause) (gpunode_gpu_bottleneck)",
        purpose="GPUs by what holds them back.",
        given={series("gpunode_gpu_bottleneck", cause="shm"): 1.0},
        results={("shm",): 1.0},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""

RECORDS = OF_NODES + OF_CLUSTERS
