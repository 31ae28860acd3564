"""Recording rules, named level:metric:operation: what on-call and capacity reviews ask often.

They keep ``cluster`` and ``instance``. Owners are joined by their share of the GPU, so that a GPU
that several hold counts once.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.gpu.ledger import STATES
from gpunode.thresholds import GPU, NODE, ledger


@dataclass(frozen=True, slots=True)
class Record:
    """A rule, and its test: series (a gauge's value, a counter's gain a second), and results."""

    name: str
    expression: str
    purpose: str
    given: dict[str, float]
    results: dict[str, float]


G = 'cluster="c", gpu="0", instance="node-a", uuid="GPU-a"'
N = 'cluster="c", instance="node-a"'
HALF = ledger(starved=0.25, blocked=0.25)
OWNED = {
    'gpunode_gpu_owner_info{owner_namespace="research",owner_pod="a",slurm_job="",user=""}': 1.0,
    'gpunode_gpu_owner_info{owner_namespace="team",owner_pod="b",slurm_job="",user=""}': 1.0,
}
SLURM = {
    'gpunode_gpu_owner_info{owner_namespace="",owner_pod="",slurm_job="42",user="kim"}': 1.0,
}


def _over(level: str, labels: str) -> list[Record]:
    """Means of a level's five-minute shares over longer times."""
    base = f"{level}:gpunode_gpu_seconds"
    return [
        Record(
            f"{base}:rate{longer}",
            f"avg_over_time({base}:rate{shorter}[{longer}])",
            f"The same over {longer}.",
            {f'{base}:rate{shorter}{{state="starved"}}': 0.25},
            {f'{{{labels}, state="starved"}}': 0.25},
        )
        for longer, shorter in (("1h", "5m"), ("1d", "1h"), ("30d", "1d"))
    ]


def _by_owner(owner: str, which: str) -> str:
    """The seconds of GPUs by state, each weighted with an owner's share of the GPU.

    A join has one side with a single series, so each state is joined by itself.
    """
    states = (
        f"label_replace(sum by (cluster, {owner}) (gpu:gpunode_gpu_owner:share{which} "
        f"* on ({GPU}) group_left () "
        f'gpu:gpunode_gpu_seconds:rate5m{{state="{state}"}}), "state", "{state}", "", "")'
        for state in STATES
    )
    return " or ".join(states)


RECORDS: tuple[Record, ...] = (
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
        '{phase=~"checkpoint|evaluation|compile"}[5m]))',
        "Share of a training process's time in which no step is to be expected: alerts on "
        "bottlenecks are silent meanwhile.",
        {
            'gpunode_training_seconds_total{phase="step"}': 0.5,
            'gpunode_training_seconds_total{phase="evaluation"}': 0.5,
        },
        {f"{{{G}}}": 0.5},
    ),
    Record(
        "node:gpunode_gpu_running:max_rate5m",
        f"max by ({NODE}) (gpu:gpunode_gpu_running:rate5m)",
        "Whether a job runs on any GPU of a node.",
        ledger(idle=0.5),
        {f"{{{N}}}": 0.5},
    ),
    Record(
        "node:gpunode_gpu_seconds:rate5m",
        f"sum by ({NODE}, state) (gpu:gpunode_gpu_seconds:rate5m)",
        "GPU seconds a second of a node by state.",
        HALF,
        {f'{{{N}, state="starved"}}': 0.25},
    ),
    Record(
        "gpu:gpunode_gpu_owner:share",
        f"max by ({GPU}, owner_namespace, owner_pod, slurm_job, user) (gpunode_gpu_owner_info) "
        f"/ on ({GPU}) group_left () count by ({GPU}) "
        f"(max by ({GPU}, owner_namespace, owner_pod, slurm_job, user) (gpunode_gpu_owner_info))",
        "Each owner's share of a GPU: 1 over the number of its owners.",
        OWNED,
        {
            f'{{{G}, owner_namespace="research", owner_pod="a"}}': 0.5,
            f'{{{G}, owner_namespace="team", owner_pod="b"}}': 0.5,
        },
    ),
    Record(
        "namespace:gpunode_gpu_seconds:rate5m",
        _by_owner("owner_namespace", '{owner_namespace!=""}'),
        "GPU seconds a second of a Kubernetes namespace by state.",
        {**HALF, **OWNED},
        {'{cluster="c", owner_namespace="research", state="starved"}': 0.125},
    ),
    Record(
        "job:gpunode_gpu_seconds:rate5m",
        _by_owner("slurm_job, user", '{slurm_job!=""}'),
        "GPU seconds a second of a Slurm job by state.",
        {**HALF, **SLURM},
        {'{cluster="c", slurm_job="42", state="starved", user="kim"}': 0.25},
    ),
    *_over("gpu", G),
    *_over("node", N),
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
        "gpu:gpunode_training_step_median_seconds:p50_1d",
        "quantile_over_time(0.5, gpunode_training_step_median_seconds[1d])",
        "What a step took over the last day: the baseline of StepTimeRegressed.",
        {"gpunode_training_step_median_seconds": 2.0},
        {f"{{{G}}}": 2.0},
    ),
    Record(
        "gpu:gpunode_gpu_blocked:gap_to_node",
        f'max by ({NODE}) (gpu:gpunode_gpu_seconds:rate5m{{state="blocked"}}) '
        f"- on ({NODE}) group_right () sum by ({GPU}) "
        '(gpu:gpunode_gpu_seconds:rate5m{state="blocked"})',
        "How much less a GPU waits for peers than the one of its node that waits most: in a "
        "synchronous job, the one that waits least is the straggler.",
        HALF,
        {f"{{{G}}}": 0.0},
    ),
    Record(
        "node:gpunode_nccl_bus_bandwidth:ratio",
        f"max by ({NODE}, collective, gpus) (gpunode_nccl_bus_bandwidth_bytes_per_second) "
        f"/ on ({NODE}, collective, gpus) max by ({NODE}, collective, gpus) "
        "(gpunode_nccl_expected_bus_bandwidth_bytes_per_second > 0)",
        "Measured over expected bus bandwidth.",
        {
            'gpunode_nccl_bus_bandwidth_bytes_per_second{collective="all_reduce",gpus="8"}': 3e11,
            "gpunode_nccl_expected_bus_bandwidth_bytes_per_second"
            '{collective="all_reduce",gpus="8"}': 4e11,
        },
        {'{cluster="c", collective="all_reduce", gpus="8", instance="node-a"}': 0.75},
    ),
)
