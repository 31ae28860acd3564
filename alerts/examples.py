"""The node, the GPUs and the job of the rules' tests, and the series that they are given."""

from __future__ import annotations

from alerts.model import IDENTITY, Given, Series


def series(metric: str, **labels: str) -> Series:
    """A series of a test."""
    return Series(metric, tuple(labels.items()))


def ledger(**shares: float) -> dict[Series, float]:
    """The ledger of a GPU, by state; the rest of its time is ``compute``."""
    rest = {"compute": 1.0 - sum(shares.values())}
    return {
        series("gpunode_gpu_seconds_total", state=state): share
        for state, share in {**rest, **shares}.items()
    }


def owner(**known: str) -> Series:
    """Who holds a GPU; what is not known of the owner is empty, as the exporter has it."""
    labels = ("owner_namespace", "owner_pod", "owner_container", "slurm_job", "user")
    given = {**dict.fromkeys(labels, ""), "via": "process", **known}
    return series("gpunode_gpu_owner_info", **given)


OF_JOB = IDENTITY["job"]
OF_GPU = IDENTITY["gpu"]
OF_NODE = IDENTITY["node"]

NODE_A = "node-a"
GPU_A = ("0", "GPU-a")
"""The node and the GPU of the tests, which are added to the series they are given."""

A = (NODE_A, *GPU_A)
B = (NODE_A, "1", "GPU-b")
ON_B = {"gpu": "1", "uuid": "GPU-b"}

HALF = ledger(starved=0.25, blocked=0.25)
HELD: Given = {owner(owner_pod="train-0"): 1.0}
HELD_B: Given = {owner(owner_pod="train-1", **ON_B): 1.0}
"""A job on both GPUs of the tests."""

TRAIN = ("", "train", "", "")
"""The labels of that job after ``cluster``."""

TRAINS: Given = {**HELD, series("gpunode_gpu_workload", kind="training"): 1.0}
TRAINS_B: Given = {**HELD_B, series("gpunode_gpu_workload", kind="training", **ON_B): 1.0}
WORKLESS = series("gpunode_job_workless_seconds")
WORKLESS_B = series("gpunode_job_workless_seconds", **ON_B)
STREAK_B = series("gpunode_gpu_blocked_streak_seconds", **ON_B)
STREAK = series("gpunode_gpu_blocked_streak_seconds")
STARTED = series(
    "gpunode_gpu_process_info",
    **dict.fromkeys(
        ("owner_namespace", "owner_container", "slurm_job", "user", "slurm_step", "rank"), ""
    ),
    local_rank="",
    world_size="",
    owner_pod="train-0",
    pid="417",
)
"""A process of that job."""
