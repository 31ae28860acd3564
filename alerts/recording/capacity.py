"""The ledger by GPU, node, namespace and job, over minutes, an hour, a day and a month.

They keep ``cluster`` and ``instance``. Owners are joined by their share of the GPU, so that a GPU
with several owners counts once.
"""

from __future__ import annotations

from alerts.examples import HALF, HELD, NODE_A, OF_GPU, OF_NODE, TRAINS, A, ledger, series
from alerts.model import FOR_DAYS, FOR_HOURS, Record, minutes
from alerts.promql import GPU, NODE, of_gpus, rate
from alerts.recording.jobs import OWNED, SLURM
from alerts.recording.parts import ACTIVE, BY_MODEL, BY_OWNER, GAINS, HELD_BACK_OF_NODE, KINDS
from alerts.settings import BUSY_SHARE

SAMPLES_AN_HOUR = 120
"""What a rule that is evaluated every 30 s records."""

TESTED_AT = 122
"""The minute at which the tests look at the results: just after an hour begins."""

OF_WORKLOAD = ("cluster", "owner_namespace", "workload", "user")
OF_NAMESPACE = ("cluster", "owner_namespace")
WORKLOAD = "owner_namespace, workload, user"

TRAINING_STEPS = series("gpunode_training_seconds_total", phase="step")

MEASURED = "gpunode_nccl_bus_bandwidth_bytes_per_second"
EXPECTED = "gpunode_nccl_expected_bus_bandwidth_bytes_per_second"
ALL_REDUCE = {"collective": "all_reduce", "gpus": "8", "nodes": "1"}
COLLECTIVE = f"{NODE}, collective, gpus, nodes"


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
            interval=FOR_DAYS,
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


OF_NODES: tuple[Record, ...] = (
    Record(
        name="gpu:gpunode_gpu_seconds:rate5m",
        labels=(*OF_GPU, "state"),
        expression=rate("gpunode_gpu_seconds_total", f"{GPU}, state"),
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
        purpose="Share of a GPU's time with a job running.",
        given=ledger(idle=0.5),
        results={A: 0.5},
    ),
    Record(
        name="gpu:gpunode_training_seconds:rate5m",
        labels=(*OF_GPU, "phase"),
        expression=rate("gpunode_training_seconds_total", f"{GPU}, phase"),
        purpose="Share of a training process's time by what it says it does.",
        given={TRAINING_STEPS: 0.5},
        results={(*A, "step"): 0.5},
    ),
    Record(
        name="gpu:gpunode_training_pause:rate5m",
        labels=OF_GPU,
        expression=(
            f"sum by ({GPU}) (gpu:gpunode_training_seconds:rate5m"
            '{phase=~"checkpoint|evaluation|compile|other"})'
            f" unless on ({GPU}) {rate('gpunode_serving_request_seconds_count')} > 0"
        ),
        purpose="Share of a training process's time in which no step is expected, set-up included; "
        "JobStarved does not count it.",
        given={
            TRAINING_STEPS: 0.5,
            series("gpunode_training_seconds_total", phase="evaluation"): 0.5,
        },
        results={A: 0.5},
    ),
    Record(
        name="node:gpunode_gpu_running:max",
        labels=OF_NODE,
        expression=f"max by ({NODE}) (gpu:gpunode_gpu_running:rate5m)",
        purpose="Share of its time for which the GPU of a node that works most has a job running.",
        given=ledger(idle=0.25),
        results={(NODE_A,): 0.75},
    ),
    Record(
        name="node:gpunode_gpu_running:max_1h",
        labels=OF_NODE,
        expression=f"max_over_time(node:gpunode_gpu_running:max[1h]) > {BUSY_SHARE}",
        purpose="Nodes on which a GPU was at work within the hour; alerts on what can slow work "
        "down depend on it.",
        given=ledger(idle=0.25),
        results={(NODE_A,): 0.75},
    ),
    Record(
        name="node:gpunode_gpu_seconds:rate5m",
        labels=(*OF_NODE, "state"),
        expression=f"sum by ({NODE}, state) (gpu:gpunode_gpu_seconds:rate5m)",
        purpose="GPU seconds per second, by node and state.",
        given=HALF,
        results={(NODE_A, "starved"): 0.25},
    ),
    *_over(
        "gpu",
        OF_GPU,
        A,
        hour=rate("gpunode_gpu_seconds_total", f"{GPU}, state", "1h"),
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
            f'sum by ({GPU}) (gpu:gpunode_training_seconds:rate5m{{phase="step"}}) '
            f"/ on ({GPU}) (sum by ({GPU}) (gpu:gpunode_training_seconds:rate5m) > 0)"
        ),
        purpose="Share of a training process's time that goes to steps.",
        given={
            TRAINING_STEPS: 0.75,
            series("gpunode_training_seconds_total", phase="data"): 0.25,
        },
        results={A: 0.75},
    ),
    Record(
        name="node:gpunode_gpu_power:watts",
        labels=OF_NODE,
        expression=rate("gpunode_gpu_energy_joules_total", NODE),
        purpose="Mean power draw of all GPUs of a node.",
        given={series("gpunode_gpu_energy_joules_total", state="compute"): 400.0},
        results={(NODE_A,): 400.0},
    ),
    Record(
        name="node:gpunode_gpu_power:by_state",
        labels=(*OF_NODE, "state"),
        expression=rate("gpunode_gpu_energy_joules_total", f"{NODE}, state") + " > 0",
        purpose="What the GPUs of a node draw by state of the ledger; it sums to their power draw.",
        given={series("gpunode_gpu_energy_joules_total", state="blocked"): 100.0},
        results={(NODE_A, "blocked"): 100.0},
    ),
    Record(
        name="gpu:gpunode_gpu_energy_joules:per_useful_second",
        labels=OF_GPU,
        expression=(
            f"{rate('gpunode_gpu_energy_joules_total')} / on ({GPU}) "
            f'(sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate5m{{state="compute"}}) > 0)'
        ),
        purpose="Joules for each second of arithmetic or memory traffic.",
        given={series("gpunode_gpu_energy_joules_total", state="compute"): 400.0, **HALF},
        results={A: 800.0},
    ),
    Record(
        name="gpu:gpunode_training_step_median_seconds:ratio_to_baseline",
        labels=OF_GPU,
        expression=(
            of_gpus("gpunode_training_step_median_seconds")
            + f" / on ({GPU}) ({of_gpus('gpunode_training_step_baseline_seconds')} > 0)"
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
        labels=(*OF_NODE, "collective", "gpus", "nodes"),
        expression=(
            f"max by ({COLLECTIVE}) ({MEASURED}) / on ({COLLECTIVE}) "
            f"max by ({COLLECTIVE}) ({EXPECTED} > 0)"
        ),
        purpose="Measured over expected bus bandwidth.",
        given={
            series(MEASURED, **ALL_REDUCE): 3e11,
            series(EXPECTED, **ALL_REDUCE): 4e11,
        },
        results={(NODE_A, "all_reduce", "8", "1"): 0.75},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="namespace:gpunode_gpu_seconds:rate5m",
        labels=(*OF_NAMESPACE, "state"),
        expression=f"sum by (cluster, owner_namespace, state) ({BY_OWNER})",
        purpose="GPU seconds per second, by Kubernetes namespace and state.",
        given={**HALF, **OWNED},
        results={("research", "starved"): 0.125},
    ),
    Record(
        name="job:gpunode_gpu_seconds:rate5m",
        labels=(*OF_WORKLOAD, "state"),
        expression=f"sum by (cluster, {WORKLOAD}, state) ({BY_OWNER})",
        purpose="GPU seconds per second, by job and state.",
        given={**HALF, **SLURM},
        results={("", "slurm-42", "kim", "starved"): 0.25},
    ),
    *(
        record
        for level, labels, example in (
            ("namespace", OF_NAMESPACE, ("research",)),
            ("job", OF_WORKLOAD, ("research", "a", "")),
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
        name="cluster:gpunode_gpu_seconds:rate5m",
        labels=("cluster", "state"),
        expression="sum by (cluster, state) (node:gpunode_gpu_seconds:rate5m)",
        purpose="GPU seconds per second, by cluster and state.",
        given=HALF,
        results={("starved",): 0.25},
    ),
    *_over(
        "cluster",
        ("cluster",),
        (),
        hour=f"sum by (cluster, state) ({BY_MODEL})",
        rests_on=BY_MODEL,
        result=0.25,
    ),
    Record(
        name="cluster:gpunode_job_kind:gpus",
        labels=("cluster", "kind"),
        expression=f"sum by (cluster, kind) ({KINDS})",
        purpose="GPUs by the kind of work that the job on them does.",
        given=TRAINS,
        results={("training",): 1.0},
    ),
    Record(
        name="job:gpunode_gpu_active:ratio",
        labels=(*OF_WORKLOAD, "unit"),
        interval=FOR_HOURS,
        expression=ACTIVE.over_nodes(),
        purpose="The share of its peak that a part of the GPU reaches, in the mean over the GPUs "
        "that a job has to itself: tensor cores, FP32 pipes and HBM.",
        given={**HELD, series("gpunode_gpu_active_seconds_total", unit="dram"): 0.8},
        results={("", "train", "", "dram"): 0.8},
    ),
    Record(
        name="cluster:gpunode_gpu_power:watts",
        labels=("cluster",),
        expression="sum by (cluster) (node:gpunode_gpu_power:watts)",
        purpose="Mean power draw of all GPUs of a cluster.",
        given={series("gpunode_gpu_energy_joules_total", state="compute"): 400.0},
        results={(): 400.0},
    ),
    Record(
        name="cluster:gpunode_gpu_power:by_state",
        labels=("cluster", "state"),
        expression="sum by (cluster, state) (node:gpunode_gpu_power:by_state)",
        purpose="What the GPUs of a cluster draw by state of the ledger.",
        given={series("gpunode_gpu_energy_joules_total", state="blocked"): 100.0},
        results={("blocked",): 100.0},
    ),
    Record(
        name="cluster:gpunode_gpu_lost:rate1h",
        labels=("cluster", "state"),
        interval=FOR_DAYS,
        expression=(f'sum by (cluster, state) ({BY_MODEL}{{state!~"compute|free"}})'),
        purpose="GPUs lost on average over the last hour, by state; multiply by hours for GPU "
        "hours.",
        given=HALF,
        results={("blocked",): 0.25, ("starved",): 0.25},
    ),
    Record(
        name="cluster:gpunode_gpu_bottleneck:count",
        labels=("cluster", "cause"),
        expression=f"sum by (cluster, cause) ({HELD_BACK_OF_NODE})",
        purpose="GPUs by what holds them back.",
        given={series("gpunode_gpu_bottleneck", cause="shm"): 1.0},
        results={("shm",): 1.0},
    ),
    Record(
        name="cluster:gpunode_gpu_verdict_gain:gpus",
        labels=("cluster", "cause", "bound"),
        expression=(f"sum by (cluster, cause, bound) ({GAINS})"),
        purpose="GPUs whose work the others would do as well without what holds them back, as "
        "estimated and by its bounds.",
        given={
            series("gpunode_gpu_verdict_gain_ratio", cause="shm", bound="estimate"): 4.0,
        },
        results={("shm", "estimate"): 0.75},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
