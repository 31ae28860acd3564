"""How fast a GPU is beside others that are busy in the same way: what was slow from the start.

A GPU that is compared with its own past is never slow if it always was. Its share of the time at
work says nothing either: with experts and with pipeline stages it differs by design. So what is
compared here does not depend on how much a rank has to do.

The SM clock under load is that of the model unless the power limit or heat lowers it, so it is
compared with the GPUs of the same model in the cluster. The rate of HBM differs from program to
program, so it is compared only within a job, or with the other replicas of a service.
"""

from __future__ import annotations

from alerts.examples import OF_GPU, OF_JOB, TRAIN, A, owner, series
from alerts.model import FOR_HOURS, Given, Record, Series
from alerts.promql import GPU, of_gpus, rate, state
from alerts.recording.faults import INFO
from alerts.settings import COMPARED_BUSY, COMPARED_HBM, COMPARED_LEAST, NEAR_POWER_LIMIT, THROTTLED

MODEL = "cluster, name"
SERVICE = "cluster, owner_namespace, workload, user"
LEAST = round(COMPARED_LEAST.figure)

CLOCK, CLOCK_MAX = "gpunode_gpu_sm_clock_hertz", "gpunode_gpu_sm_clock_max_hertz"
HBM_CLOCK, HBM_CLOCK_MAX = "gpunode_gpu_memory_clock_hertz", "gpunode_gpu_memory_clock_max_hertz"
CAPPED = 'gpunode_gpu_throttled_seconds_total{reason="sw_power_cap"}'
HBM = 'gpunode_gpu_active_seconds_total{unit="dram"}'


def _on(gpu: int) -> dict[str, str]:
    """The labels of one of many GPUs of the tests; the first is the one that they look at."""
    return {} if not gpu else {"gpu": str(gpu), "uuid": f"GPU-{gpu}"}


def gpus_at(hertz: float, first: float, share: float = 0.0, own: float = 0.0) -> Given:
    """As many GPUs as a comparison takes, at a clock and an HBM share, and one at its ``first``."""
    given: dict[Series, float | None] = {}
    for gpu in range(LEAST):
        on = _on(gpu)
        given |= {
            Series(INFO.metric, (*INFO.labels, *on.items())): 1.0,
            series(CLOCK, **on): hertz if gpu else first,
            series(CLOCK_MAX, **on): 2e9,
            series(HBM_CLOCK, **on): 2e9,
            series(HBM_CLOCK_MAX, **on): 2e9,
            series("gpunode_gpu_power_watts", **on): 350.0,
            series("gpunode_gpu_power_limit_watts", **on): 700.0,
            series("gpunode_gpu_active_seconds_total", unit="dram", **on): share if gpu else own,
            owner(owner_pod=f"train-{gpu}", **on): 1.0,
        }
        given[series("gpunode_gpu_seconds_total", state="compute", **on)] = 1.0
    return given


OF_NODES: tuple[Record, ...] = (
    Record(
        name="gpu:gpunode_gpu_sm_clock:ratio_loaded",
        labels=(*OF_GPU, "name"),
        interval=FOR_HOURS,
        expression=(
            f"(max by ({GPU}) (avg_over_time({CLOCK}[15m])) "
            f"/ on ({GPU}) ({of_gpus(CLOCK_MAX)} > 0) "
            f"and on ({GPU}) {state('compute')} > {COMPARED_BUSY} "
            f"and on ({GPU}) max by ({GPU}) (avg_over_time(gpunode_gpu_power_watts[15m])) "
            f"< on ({GPU}) {NEAR_POWER_LIMIT} * {of_gpus('gpunode_gpu_power_limit_watts')} "
            f"unless on ({GPU}) (gpu:gpunode_gpu_throttled:ratio > {THROTTLED} "
            f"or on ({GPU}) {rate(CAPPED)} > {THROTTLED})) "
            f"* on ({GPU}) group_left (name) max by ({GPU}, name) (gpunode_gpu_info)"
        ),
        purpose="SM clock as a share of its maximum, of a GPU that computes, is not near its power "
        "limit and is not throttled.",
        given=gpus_at(2e9, 1e9),
        results={(*A, dict(INFO.labels)["name"]): 0.5},
    ),
    Record(
        name="gpu:gpunode_gpu_memory_rate:ratio_loaded",
        labels=OF_GPU,
        interval=FOR_HOURS,
        expression=(
            f"({rate(HBM)} > {COMPARED_HBM}) / on ({GPU}) "
            f"(max by ({GPU}) ({state('compute')}) > {COMPARED_BUSY}) "
            f"* on ({GPU}) ({of_gpus(HBM_CLOCK)} / on ({GPU}) ({of_gpus(HBM_CLOCK_MAX)} > 0))"
        ),
        purpose="Share of its HBM's rate that a GPU reaches while its kernels run, if they use "
        "it most of the time.",
        given=gpus_at(2e9, 2e9, share=0.75, own=0.5),
        results={A: 0.5},
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

RATE_OF_JOB = "gpu:gpunode_gpu_memory_rate:by_job"

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name=RATE_OF_JOB,
        labels=(*OF_GPU, *OF_JOB[1:]),
        interval=FOR_HOURS,
        expression=(
            f"gpu:gpunode_job:member * on ({GPU}) group_left () "
            "gpu:gpunode_gpu_memory_rate:ratio_loaded"
        ),
        purpose="`gpu:gpunode_gpu_memory_rate:ratio_loaded` with the job that has the GPU.",
        given=gpus_at(2e9, 2e9, share=0.75, own=0.5),
        results={(*A, *TRAIN): 0.5},
    ),
    Record(
        name="gpu:gpunode_gpu_pace:ratio_to_others",
        labels=(*OF_GPU, "what"),
        interval=FOR_HOURS,
        expression=(
            f"label_replace(max by ({GPU}) (gpu:gpunode_gpu_sm_clock:ratio_loaded "
            f"/ on ({MODEL}) group_left () (quantile by ({MODEL}) (0.75, "
            "gpu:gpunode_gpu_sm_clock:ratio_loaded) > 0 "
            f"and on ({MODEL}) count by ({MODEL}) (gpu:gpunode_gpu_sm_clock:ratio_loaded) "
            f'>= {COMPARED_LEAST})), "what", "SM clock", "", "") '
            f"or label_replace(max by ({GPU}) ({RATE_OF_JOB} "
            f"/ on ({SERVICE}) group_left () (quantile by ({SERVICE}) (0.25, {RATE_OF_JOB}) > 0 "
            f"and on ({SERVICE}) count by ({SERVICE}) ({RATE_OF_JOB}) >= {COMPARED_LEAST})), "
            '"what", "rate of HBM", "", "")'
        ),
        purpose="What a GPU reaches over what others do: its SM clock under load over the upper "
        "quartile of its model in the cluster, the rate of its HBM over the lower quartile of its "
        "job or service; absent where too few can be compared.",
        given=gpus_at(2e9, 1e9),
        results={(*A, "SM clock"): 0.5},
    ),
)
"""Rules that compare nodes, for the Prometheus that sees them all."""
