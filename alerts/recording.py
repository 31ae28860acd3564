"""Recording rules, named level:metric:operation: what on-call and capacity reviews ask often.

They keep ``cluster`` and ``instance``. Owners are joined by their share of the GPU, so that a GPU
that several hold counts once.
"""

from __future__ import annotations

from dataclasses import dataclass

from alerts.thresholds.table import GPU, NCCL_BANDWIDTH, NODE, PAUSE, ledger
from gpunode.gpu.ledger import STATES


@dataclass(frozen=True, slots=True)
class Record:
    """A rule, and its test: series (a gauge's value, a counter's gain a second), and results."""

    name: str
    expression: str
    purpose: str
    given: dict[str, float]
    results: dict[str, float]


EVERY = 30
"""Seconds between evaluations of what is not said otherwise."""
HOURLY = 4
"""Minutes between evaluations of what looks back on days; it divides the hour."""

TESTED_AT = 122
"""The minute of a test at which a rule's results are looked at: just after an hour."""

G = 'cluster="c", gpu="0", instance="node-a", uuid="GPU-a"'
N = 'cluster="c", instance="node-a"'
J = 'cluster="c", owner_namespace="research", workload="a"'
S = 'cluster="c", owner_namespace="research"'
HALF = ledger(starved=0.25, blocked=0.25)
OWNED = {
    'gpunode_gpu_owner_info{owner_namespace="research",owner_pod="a-worker-0"}': 1.0,
    'gpunode_gpu_owner_info{owner_namespace="team",owner_pod="b-7c9f5d6b4-x2lqz"}': 1.0,
}
SLURM = {'gpunode_gpu_owner_info{slurm_job="42",user="kim"}': 1.0}
ROLES = "-(?:master|workers?|launcher|chief|ps|head|leader|node)"
RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
POD = f"(.+?)(?:{ROLES})?(?:-[0-9]+)*(?:-{RANDOM}{{8,10}})?(?:-{RANDOM}{{5}})?"
"""The name of a pod: what it belongs to, its role and number, and what controllers append.
https://github.com/kubernetes/apimachinery/blob/master/pkg/util/rand/rand.go"""


def _over(level: str, labels: str, hour: str, rests_on: str, result: float) -> list[Record]:
    """A level's shares over an hour, as ``hour`` says, a day and 30 days.

    What looks back on days reads one sample an hour: over a fleet, reading all samples of 30 days
    would take longer than there is time between two evaluations. An hour of which nothing is known
    counts as none, so that what was there for three hours has used three. The windows of sums are a
    little short, because Prometheus 2 counts the samples at both ends.
    """
    base = f"{level}:gpunode_gpu_seconds"
    hourly = f"{base}:rate1h_hourly"
    starved = f'{{{labels}, state="starved"}}'
    return [
        Record(
            f"{base}:rate1h",
            hour,
            "The same over 1h.",
            {f"{rests_on}{starved}": 0.25},
            {starved: result},
        ),
        Record(
            hourly,
            f"{base}:rate1h and on () (minute() < {HOURLY})",
            "The same once an hour, for what looks back on days.",
            {f"{base}:rate1h{starved}": 0.25},
            {starved: 0.25},
        ),
        *(
            Record(
                f"{base}:rate{days}d",
                f"sum_over_time({hourly}[{24 * days - 1}h59m]) / {24 * days}",
                f"The same over {days}d.",
                {f"{hourly}{starved}": 0.25},
                {starved: (TESTED_AT + 1) * 0.25 / (24 * days)},
            )
            for days in (1, 30)
        ),
    ]


def _by_owner(owner: str) -> str:
    """The seconds of GPUs by state, each weighted with an owner's share of the GPU.

    A join has one side with a single series, so each state is joined by itself.
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
        "gpu:gpunode_gpu_seconds:rate5m",
        f"sum by ({GPU}, state) (rate(gpunode_gpu_seconds_total[5m]))",
        "Share of a GPU's time by state of the ledger.",
        HALF,
        {f'{{{G}, state="blocked"}}': 0.25},
    ),
    Record(
        "gpu:gpunode_gpu_running:rate5m",
        f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state!~"free|idle|unknown"}})',
        "Share of a GPU's time with a job running: what alerts on bottlenecks wait for.",
        ledger(idle=0.5),
        {f"{{{G}}}": 0.5},
    ),
    Record(
        "gpu:gpunode_training_pause:rate5m",
        f"sum by ({GPU}) (rate(gpunode_training_seconds_total"
        '{phase=~"checkpoint|evaluation|compile|other"}[5m])) '
        f"unless on ({GPU}) "
        f"sum by ({GPU}) (rate(gpunode_serving_request_seconds_count[5m])) > 0",
        "Share of a training process's time in which no step is to be expected, set-up included: "
        "alerts on bottlenecks are silent meanwhile.",
        {
            'gpunode_training_seconds_total{phase="step"}': 0.5,
            'gpunode_training_seconds_total{phase="evaluation"}': 0.5,
        },
        {f"{{{G}}}": 0.5},
    ),
    Record(
        "node:gpunode_gpu_running:max_1h",
        f"max by ({NODE}) (max_over_time(gpu:gpunode_gpu_running:rate5m[1h]) > 0.5 "
        f"unless on ({GPU}) {PAUSE} > 0.1)",
        "Nodes on which a job ran within the hour on some GPU whose training does not pause: what "
        "alerts on storage wait for.",
        ledger(idle=0.25),
        {f"{{{N}}}": 0.75},
    ),
    Record(
        "node:gpunode_infiniband_active:ever",
        f"max by ({NODE}, device, port) (gpunode_infiniband_active) > 0 "
        f"or on ({NODE}, device, port) "
        f"last_over_time(node:gpunode_infiniband_active:ever[1d]) "
        f"and on ({NODE}, device, port) gpunode_infiniband_active",
        "Ports that have been active: this record continues itself.",
        {'gpunode_infiniband_active{device="mlx5_0",port="1"}': 1.0},
        {f'{{{N}, device="mlx5_0", port="1"}}': 1.0},
    ),
    Record(
        "node:gpunode_gpu_seconds:rate5m",
        f"sum by ({NODE}, state) (gpu:gpunode_gpu_seconds:rate5m)",
        "GPU seconds a second of a node by state.",
        HALF,
        {f'{{{N}, state="starved"}}': 0.25},
    ),
    Record(
        "gpu:gpunode_gpu_owner:workload",
        f"max by ({GPU}, owner_namespace, owner_pod, workload, user) ("
        f'label_replace(gpunode_gpu_owner_info{{owner_pod!=""}}, '
        f'"workload", "$1", "owner_pod", "{POD}") '
        'or label_replace(gpunode_gpu_owner_info{owner_pod="",slurm_job!=""}, '
        '"workload", "slurm-$1", "slurm_job", "(.+)") '
        'or label_join(gpunode_gpu_owner_info{owner_pod="",slurm_job=""}, '
        '"workload", "@", "user", "instance"))',
        "Who holds a GPU, and the job that it belongs to: the name of the pod without role, number "
        "and suffix, the Slurm job, or else the user on the node.",
        {**OWNED, **SLURM},
        {
            f'{{{G}, owner_namespace="research", owner_pod="a-worker-0", workload="a"}}': 1.0,
            f'{{{G}, owner_namespace="team", owner_pod="b-7c9f5d6b4-x2lqz", workload="b"}}': 1.0,
            f'{{{G}, user="kim", workload="slurm-42"}}': 1.0,
        },
    ),
    Record(
        "gpu:gpunode_gpu_owner:share",
        f"sum by ({GPU}, owner_namespace, workload, user) (gpu:gpunode_gpu_owner:workload) "
        f"/ on ({GPU}) group_left () count by ({GPU}) (gpu:gpunode_gpu_owner:workload)",
        "Each job's share of a GPU: a GPU that several hold counts once.",
        OWNED,
        {
            f'{{{G}, owner_namespace="research", workload="a"}}': 0.5,
            f'{{{G}, owner_namespace="team", workload="b"}}': 0.5,
        },
    ),
    Record(
        "node:kube_node_spec_unschedulable:max",
        f"max by ({NODE}) (label_replace(kube_node_spec_unschedulable, "
        '"instance", "$1", "node", "(.+)")) > 0',
        "Nodes that are cordoned or drained (kube-state-metrics): they page nobody.",
        {'kube_node_spec_unschedulable{node="node-a",instance="10.0.0.9:8080"}': 1.0},
        {f"{{{N}}}": 1.0},
    ),
    *_over(
        "gpu",
        G,
        f"sum by ({GPU}, state) (rate(gpunode_gpu_seconds_total[1h]))",
        "gpunode_gpu_seconds_total",
        0.25,
    ),
    *_over(
        "node",
        N,
        f"sum by ({NODE}, state) (gpu:gpunode_gpu_seconds:rate1h)",
        "gpu:gpunode_gpu_seconds:rate1h",
        0.25,
    ),
    Record(
        "gpu:gpunode_training_goodput:ratio_rate5m",
        f'sum by ({GPU}) (rate(gpunode_training_seconds_total{{phase="step"}}[5m])) '
        f"/ (sum by ({GPU}) (rate(gpunode_training_seconds_total[5m])) > 0)",
        "Share of a training process's time that goes to steps.",
        {
            'gpunode_training_seconds_total{phase="step"}': 0.75,
            'gpunode_training_seconds_total{phase="data"}': 0.25,
        },
        {f"{{{G}}}": 0.75},
    ),
    Record(
        "gpu:gpunode_gpu_energy_joules:per_useful_second",
        f"sum by ({GPU}) (rate(gpunode_gpu_energy_joules_total[5m])) / on ({GPU}) "
        f'(sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state=~"compute|memory"}}) > 0)',
        "Joules for a second of arithmetic or memory traffic.",
        {"gpunode_gpu_energy_joules_total": 400.0, **HALF},
        {f"{{{G}}}": 800.0},
    ),
    Record(
        "gpu:gpunode_training_step_median_seconds:ratio_to_baseline",
        f"max by ({GPU}) (gpunode_training_step_median_seconds) "
        f"/ on ({GPU}) (max by ({GPU}) (gpunode_training_step_baseline_seconds) > 0)",
        "What a step takes over the best pace that the process has kept.",
        {
            "gpunode_training_step_median_seconds": 3.0,
            "gpunode_training_step_baseline_seconds": 2.0,
        },
        {f"{{{G}}}": 1.5},
    ),
    Record(
        "node:gpunode_nccl_bus_bandwidth:ratio",
        NCCL_BANDWIDTH,
        "Measured over expected bus bandwidth.",
        {
            'gpunode_nccl_bus_bandwidth_bytes_per_second{collective="all_reduce",gpus="8"}': 3e11,
            "gpunode_nccl_expected_bus_bandwidth_bytes_per_second"
            '{collective="all_reduce",gpus="8"}': 4e11,
        },
        {'{cluster="c", collective="all_reduce", gpus="8", instance="node-a"}': 0.75},
    ),
)
"""What rests on the series of one node alone; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        "namespace:gpunode_gpu_seconds:rate5m",
        _by_owner("owner_namespace"),
        "GPU seconds a second of a Kubernetes namespace by state.",
        {**HALF, **OWNED},
        {f'{{{S}, state="starved"}}': 0.125},
    ),
    Record(
        "job:gpunode_gpu_seconds:rate5m",
        _by_owner("owner_namespace, workload, user"),
        "GPU seconds a second of a job by state.",
        {**HALF, **SLURM},
        {'{cluster="c", state="starved", user="kim", workload="slurm-42"}': 0.25},
    ),
    *(
        record
        for level, labels in (("namespace", S), ("job", J))
        for record in _over(
            level,
            labels,
            f"sum_over_time({level}:gpunode_gpu_seconds:rate5m[59m59s]) / {3600 // EVERY}",
            f"{level}:gpunode_gpu_seconds:rate5m",
            60 * 0.25 / (3600 // EVERY),  # tests have a sample a minute
        )
    ),
    Record(
        "gpu:gpunode_gpu_blocked:by_job",
        f"(gpu:gpunode_gpu_owner:share > bool 0) * on ({GPU}) group_left () sum by ({GPU}) "
        '(gpu:gpunode_gpu_seconds:rate5m{state="blocked"})',
        "Share of a GPU's time in which it waits for peers, with the job that it belongs to.",
        {**HALF, **OWNED},
        {f'{{{G}, owner_namespace="research", workload="a"}}': 0.25},
    ),
    Record(
        "gpu:gpunode_gpu_blocked:gap_to_job",
        "max by (cluster, owner_namespace, workload, user) (gpu:gpunode_gpu_blocked:by_job) "
        "- on (cluster, owner_namespace, workload, user) group_right () "
        "gpu:gpunode_gpu_blocked:by_job",
        "How much less a GPU waits for peers than the one of its job that waits most: the one "
        "with the largest gap is the straggler.",
        {
            **ledger(blocked=0.125),
            'gpunode_gpu_seconds_total{state="blocked",gpu="1",uuid="GPU-b"}': 0.625,
            'gpunode_gpu_owner_info{owner_pod="a-0"}': 1.0,
            'gpunode_gpu_owner_info{owner_pod="a-1",gpu="1",uuid="GPU-b"}': 1.0,
        },
        {
            f'{{{G}, workload="a"}}': 0.5,
            '{cluster="c", gpu="1", instance="node-a", uuid="GPU-b", workload="a"}': 0.0,
        },
    ),
    Record(
        "cluster:gpunode_gpu_lost:rate1h",
        'sum by (cluster, state) (gpu:gpunode_gpu_seconds:rate1h{state!~"compute|memory|free"})',
        "GPUs lost at any time over the last hour, by what they were lost to; times hours it is "
        "GPU hours.",
        HALF,
        {'{cluster="c", state="blocked"}': 0.25, '{cluster="c", state="starved"}': 0.25},
    ),
    Record(
        "cluster:gpunode_gpu_bottleneck:count",
        "sum by (cluster, cause) (gpunode_gpu_bottleneck)",
        "GPUs by what holds them up.",
        {'gpunode_gpu_bottleneck{cause="shm"}': 1.0},
        {'{cause="shm", cluster="c"}': 1.0},
    ),
)
"""What adds up or compares nodes; for the engine that sees them all."""

RECORDS = OF_NODES + OF_CLUSTERS
