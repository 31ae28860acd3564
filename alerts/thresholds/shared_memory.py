"""Shared memory: the /dev/shm of the node, and of each job."""

from __future__ import annotations

from alerts.thresholds.references import TMPFS
from alerts.thresholds.row import GPU, NODE, Example, Threshold, Tier, series
from gpunode.verdict.limits import SHM_FULL

NCCL_SHM = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"
)
JOB_SHM_USED = series("gpunode_job_shm_used_bytes", tmpfs="0:301")
JOB_SHM_SIZE = series("gpunode_job_shm_size_bytes", tmpfs="0:301")
JOB_SHM_FULL = series("gpunode_job_shm_full_seconds", tmpfs="0:301")

SHARED_MEMORY = (
    Threshold(
        alert="ShmNearlyFull",
        group="shared_memory",
        summary="The node's /dev/shm is nearly full",
        summary_ko="노드의 /dev/shm이 거의 가득 찼습니다",
        says="{value} of /dev/shm is in use",
        meaning="DataLoader workers and NCCL exchange data through /dev/shm.",
        remedy="Remove what dead processes left there, or mount it larger.",
        source=TMPFS,
        signal=(
            f"max by ({NODE}) (gpunode_shm_used_bytes) / on ({NODE}) "
            f"max by ({NODE}) (gpunode_shm_size_bytes > 0)"
        ),
        window="0s",
        unit="percent",
        tiers=(
            Tier(severity="warning", threshold=0.8, after="1m"),
            Tier(severity="critical", threshold=SHM_FULL, after="0s"),
        ),
        scope="node",
        gate="always",
        example=Example(
            fires={series("gpunode_shm_used_bytes"): 98.0, series("gpunode_shm_size_bytes"): 100.0},
            quiet={series("gpunode_shm_used_bytes"): 70.0},
            value=0.98,
        ),
    ),
    Threshold(
        alert="JobShmNearlyFull",
        group="shared_memory",
        summary="A job's /dev/shm is nearly full",
        summary_ko="작업의 /dev/shm이 거의 가득 찼습니다",
        says="{value} of its job's /dev/shm is in use",
        meaning="A container has 64 MiB by default, which is too little for most DataLoaders.",
        remedy="Mount an emptyDir of medium Memory on /dev/shm, or use docker run --shm-size=16g.",
        source=NCCL_SHM,
        signal=(
            f"max by ({GPU}, tmpfs) (gpunode_job_shm_used_bytes) / on ({GPU}, tmpfs) "
            f"max by ({GPU}, tmpfs) (gpunode_job_shm_size_bytes > 0)"
        ),
        window="0s",
        unit="percent",
        tiers=(
            Tier(severity="warning", threshold=0.8, after="1m"),
            Tier(severity="critical", threshold=SHM_FULL, after="0s"),
        ),
        labels=("tmpfs",),
        gate="always",
        example=Example(
            fires={JOB_SHM_USED: 98.0, JOB_SHM_SIZE: 100.0},
            quiet={JOB_SHM_USED: 70.0},
            value=0.98,
        ),
    ),
    Threshold(
        alert="JobShmFillsUp",
        group="shared_memory",
        summary="A job's /dev/shm will soon be full",
        summary_ko="작업의 /dev/shm이 곧 가득 찹니다",
        says="its job's /dev/shm will be full in {value} at the rate of the last minute",
        meaning="Something writes to /dev/shm and removes nothing.",
        remedy="Fix the loader that keeps its batches, or mount a larger /dev/shm.",
        source=TMPFS,
        signal=f"min by ({GPU}, tmpfs) (gpunode_job_shm_full_seconds)",
        window="0s",
        unit="seconds",
        comparison="<",
        tiers=(Tier(severity="warning", threshold=300.0, after="3m"),),
        labels=("tmpfs",),
        gate="always",
        example=Example(fires={JOB_SHM_FULL: 90.0}, quiet={JOB_SHM_FULL: 4000.0}, value=90.0),
    ),
)
