"""What a report on weeks and months reads of jobs, models and nodes: one sample an hour.

The samples of a fleet's jobs that are recorded every 30 s are too many to read back over months.
"""

from __future__ import annotations

from alerts.examples import HALF, HELD, NODE_A, OF_JOB, OF_NODE, TRAINS, ledger, series
from alerts.model import FOR_DAYS, Record, minutes
from alerts.promql import GPU, JOB, NODE, OWNER
from alerts.recording import parts
from alerts.recording.behind import BLOCKED
from alerts.recording.capacity import OF_WORKLOAD, SAMPLES_AN_HOUR, TRAINING_STEPS
from alerts.recording.engines import REQUESTS
from alerts.recording.faults import INFO
from alerts.recording.parts import ENDED, LLAMA, MFU, TOKENS

HOUR = "[59m59s]"
"""Prometheus 2 counts the samples at both ends of a window."""

WORKLOAD = ", ".join(OF_WORKLOAD)
OF_TRAIN = ("", "train", "")
"""The labels of the tests' job after ``cluster``, without a replica."""

TESTED = 60 / SAMPLES_AN_HOUR
"""The share of an hour's samples that the tests have, which is one a minute."""

CACHE_ASKED_FOR = 0.8
"""The share of its KV cache that a replica may have in use before another is needed, as in the
example of an autoscaler in docs/serving.md."""

REPLICAS = f"gpu:gpunode_job:member and on ({GPU}) max_over_time({REQUESTS}[1h])"
BUSY = (
    f"gpu:gpunode_job:member and on ({GPU}) "
    f"(max_over_time({REQUESTS}[1h]) > 0 or rate({ENDED}[1h]) > 0)"
)


def _hourly(hour: str) -> str:
    return f"{hour} and on () (minute() < {minutes(FOR_DAYS)})"


REVIEWED: tuple[Record, ...] = (
    Record(
        name="model:gpunode_gpu_seconds:rate1h_hourly",
        labels=("cluster", "name", "state"),
        interval=FOR_DAYS,
        expression=_hourly(f'sum by (cluster, name, state) ({parts.BY_MODEL}{{name!=""}})'),
        purpose="GPU seconds per second, by model of GPU and state, once an hour.",
        given={**HALF, INFO: 1.0},
        results={("NVIDIA H200", "starved"): 0.25},
    ),
    Record(
        name="job:gpunode_gpu_bottleneck:gpus_hourly",
        labels=(*OF_WORKLOAD, "cause"),
        interval=FOR_DAYS,
        expression=_hourly(
            f"sum by ({WORKLOAD}, cause) (sum_over_time(job:gpunode_gpu_bottleneck:count{HOUR})) "
            f"/ {SAMPLES_AN_HOUR}"
        ),
        purpose="GPUs of a job by what held them back, averaged over an hour, once an hour.",
        given={**HELD, series("gpunode_gpu_bottleneck", cause="shm"): 1.0},
        results={(*OF_TRAIN, "shm"): TESTED},
    ),
    Record(
        name="job:gpunode_gpu_owner:by_model_hourly",
        labels=(*OF_WORKLOAD, "name"),
        interval=FOR_DAYS,
        expression=_hourly(f"sum by ({WORKLOAD}, name) ({parts.OWNERS_MODELS})"),
        purpose="GPUs of a job by their model, once an hour.",
        given={**HELD, INFO: 1.0},
        results={(*OF_TRAIN, "NVIDIA H200"): 1.0},
    ),
    Record(
        name="job:gpunode_job_kind:gpus_hourly",
        labels=(*OF_WORKLOAD, "kind"),
        interval=FOR_DAYS,
        expression=_hourly(f"sum by ({WORKLOAD}, kind) ({parts.KINDS})"),
        purpose="GPUs of a job by the kind of work that it does on them, once an hour.",
        given=TRAINS,
        results={(*OF_TRAIN, "training"): 1.0},
    ),
    Record(
        name="job:gpunode_training_seconds:rate5m",
        labels=(*OF_WORKLOAD, "phase"),
        expression=parts.TRAINING_PHASES.over_nodes(),
        purpose="GPUs of a job by what its training says it does.",
        given={**HELD, TRAINING_STEPS: 0.5},
        results={(*OF_TRAIN, "step"): 0.5},
    ),
    Record(
        name="job:gpunode_training_seconds:rate1h_hourly",
        labels=(*OF_WORKLOAD, "phase"),
        interval=FOR_DAYS,
        expression=_hourly(
            f"sum_over_time(job:gpunode_training_seconds:rate5m{HOUR}) / {SAMPLES_AN_HOUR}"
        ),
        purpose="`job:gpunode_training_seconds:rate5m`, averaged over an hour, once an hour.",
        given={**HELD, TRAINING_STEPS: 0.5},
        results={(*OF_TRAIN, "step"): 0.5 * TESTED},
    ),
    Record(
        name="job:gpunode_training_mfu:ratio_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(
            f"avg by ({WORKLOAD}) (sum by ({JOB}) (sum_over_time({parts.MFU_MEAN.record('sum')}"
            f"{HOUR})) / (sum by ({JOB}) (sum_over_time({parts.MFU_MEAN.record('count')}{HOUR})) "
            "> 0))"
        ),
        purpose="Model FLOPs utilisation of a job over an hour, once an hour.",
        given={**HELD, series(MFU): 0.5},
        results={OF_TRAIN: 0.5},
    ),
    Record(
        name="job:gpunode_training_step:median_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(
            f"max by ({WORKLOAD}) (avg_over_time(job:gpunode_training_step:median{HOUR}))"
        ),
        purpose="Time of a job's step over an hour, once an hour.",
        given={**HELD, series("gpunode_training_step_median_seconds"): 3.0},
        results={OF_TRAIN: 3.0},
    ),
    Record(
        name="job:gpunode_serving_tokens:rate1h_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(
            f"sum by ({WORKLOAD}) (sum_over_time("
            f'{parts.SERVED_TOKENS.record("sum")}{{kind="generated"}}{HOUR})) / {SAMPLES_AN_HOUR}'
        ),
        purpose="Tokens a second that a service generates, averaged over an hour, once an hour.",
        given={**HELD, series(TOKENS, **LLAMA, kind="generated"): 200.0},
        results={OF_TRAIN: 200.0 * TESTED},
    ),
    Record(
        name="job:gpunode_serving_power:watts_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(
            f"sum by ({WORKLOAD}) (sum_over_time({parts.POWER.record('sum')}{HOUR})) "
            f"/ {SAMPLES_AN_HOUR} and on ({WORKLOAD}) (count by ({WORKLOAD}) ({REPLICAS}))"
        ),
        purpose="What the GPUs of a service draw whose engine is known, averaged over an hour, "
        "once an hour.",
        given={
            **HELD,
            series(REQUESTS, **LLAMA, phase="running"): 0.0,
            series("gpunode_gpu_energy_joules_total", state="compute"): 500.0,
        },
        results={OF_TRAIN: 500.0 * TESTED},
    ),
    Record(
        name="job:gpunode_serving_replicas:count_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(f"count by ({WORKLOAD}) ({REPLICAS})"),
        purpose="Replicas of a service whose engine is known, once an hour.",
        given={**HELD, series(REQUESTS, **LLAMA, phase="running"): 0.0},
        results={OF_TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_serving_replicas:busy_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(f"count by ({WORKLOAD}) ({BUSY})"),
        purpose="Replicas of a service that had a request within an hour, once an hour.",
        given={**HELD, series(REQUESTS, **LLAMA, phase="running"): 2.0},
        results={OF_TRAIN: 1.0},
    ),
    Record(
        name="job:gpunode_serving_replicas:needed_hourly",
        labels=OF_WORKLOAD,
        interval=FOR_DAYS,
        expression=_hourly(
            f"(count by ({WORKLOAD}) ({REPLICAS}) and on ({WORKLOAD}) "
            "avg_over_time(job:gpunode_serving_queue:per_replica[1h]) > 1 "
            f"or count by ({WORKLOAD}) ({BUSY}) * on ({WORKLOAD}) "
            f"max_over_time(job:gpunode_serving_kv_cache:max[1h]) / {CACHE_ASKED_FOR})"
        ),
        purpose="Replicas that an hour of a service would have taken, by the fullest KV cache of "
        "those that were busy; all, where requests waited. Once an hour.",
        given={
            **HELD,
            series(REQUESTS, **LLAMA, phase="running"): 2.0,
            series("gpunode_serving_kv_cache_used_ratio", **LLAMA): 0.4,
        },
        results={OF_TRAIN: 0.5},
    ),
    Record(
        name="node:gpunode_gpu_blocked:by_job_hourly",
        labels=(*OF_NODE, *OF_JOB[1:]),
        interval=FOR_DAYS,
        expression=_hourly(f"avg by ({NODE}, {OWNER}) ({BLOCKED})"),
        purpose="Share of an hour in which a node's GPUs wait for the peers of a job, once an "
        "hour. The node of a job that waits least is the one for which the others wait.",
        given={**HELD, **ledger(blocked=0.25)},
        results={(NODE_A, "", "train", "", ""): 0.25},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
