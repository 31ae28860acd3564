"""The runs of a job, each with the moment at which it began: what one compares a run with.

A Slurm job is one run. A job of Kubernetes comes back under its name; it is another run if nobody
held a GPU for it for a while. ``began`` tells the runs of a name apart.
"""

from __future__ import annotations

from alerts.examples import HELD, OF_JOB, ledger, owner, series
from alerts.model import FOR_DAYS, FOR_HOURS, Given, Record
from alerts.recording.capacity import OF_WORKLOAD, TESTED_AT
from alerts.recording.parts import MFU
from alerts.recording.review import OF_TRAIN, WORKLOAD

OF_RUN = (*OF_WORKLOAD, "began")
APART = "15m"
"""For how long nobody holds a GPU for a job between two of its runs."""

BEGAN = "job:gpunode_run:began"
_HELD = f"sum by ({WORKLOAD}) (job:gpunode_job:gpus)"
LEDGER = "job:gpunode_gpu_seconds:rate5m"

LAST_SEEN = 60.0 * TESTED_AT
"""The tests evaluate every rule each minute."""


def _recorded(name: str, figure: str, purpose: str, given: Given, result: float) -> Record:
    """A figure of jobs as one of their runs; that of the tests' job began at 0."""
    return Record(
        name=name,
        labels=OF_RUN,
        interval=FOR_DAYS,
        expression=(
            f'count_values by ({WORKLOAD}) ("began", {BEGAN}) '
            f"* on ({WORKLOAD}) group_left () ({figure})"
        ),
        purpose=purpose,
        given=given,
        results={(*OF_TRAIN, "0"): result},
    )


ENDS = "gpunode_slurm_job_end_timestamp_seconds"
_ENDS = f'label_replace({ENDS}, "workload", "slurm-$1", "slurm_job", "(.+)")'

OF_RUNS: tuple[Record, ...] = (
    Record(
        name=BEGAN,
        labels=OF_WORKLOAD,
        interval=FOR_HOURS,
        expression=(
            f"(last_over_time({BEGAN}[{APART}]) and on ({WORKLOAD}) {_HELD}) "
            f"or on ({WORKLOAD}) floor(time() + 0 * {_HELD})"
        ),
        purpose="When the present run of a job began to hold GPUs, as Unix time. It is another run "
        f"if nobody held a GPU for it for {APART}. The rule reads its own past.",
        given=HELD,
        results={OF_TRAIN: 0.0},
    ),
    _recorded("run:gpunode_run:began", BEGAN, "When a run began, as Unix time.", HELD, 0.0),
    _recorded(
        "run:gpunode_run:seen",
        f"time() + 0 * {BEGAN}",
        "When a run was last seen to hold GPUs, as Unix time.",
        HELD,
        LAST_SEEN,
    ),
    _recorded("run:gpunode_job:gpus", _HELD, "GPUs that a run has to itself.", HELD, 1.0),
    _recorded(
        "run:gpunode_gpu_useful:ratio",
        f'sum by ({WORKLOAD}) ({LEDGER}{{state="compute"}}) '
        f'/ on ({WORKLOAD}) (sum by ({WORKLOAD}) ({LEDGER}{{state!="free"}}) > 0)',
        "Share of the time of a run's GPUs that goes to arithmetic and memory.",
        {**HELD, **ledger(starved=0.25)},
        0.75,
    ),
    _recorded(
        "run:gpunode_training_step:median",
        f"max by ({WORKLOAD}) (job:gpunode_training_step:median)",
        "Time of a run's step.",
        {**HELD, series("gpunode_training_step_median_seconds"): 3.0},
        3.0,
    ),
    _recorded(
        "run:gpunode_training_mfu:ratio",
        f"max by ({WORKLOAD}) (job:gpunode_training_mfu_ratio:middle)",
        "Model FLOPs utilisation of a run's median rank.",
        {**HELD, series(MFU): 0.5},
        0.5,
    ),
    Record(
        name="job:gpunode_slurm_job:ends",
        labels=OF_JOB,
        expression=(
            f"0 * job:gpunode_job:gpus + on (cluster, workload) group_left () "
            f"max by (cluster, workload) ({_ENDS})"
        ),
        purpose="When Slurm ends a job that has GPUs to itself, by the time limit with which it "
        "began, as Unix time.",
        given={owner(slurm_job="42", user="kim"): 1.0, series(ENDS, slurm_job="42"): 0.0},
        results={("", "slurm-42", "", "kim"): 0.0},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
