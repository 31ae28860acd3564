"""Shared memory: the /dev/shm of the node, and of each job."""

from __future__ import annotations

from alerts.examples import series
from alerts.model import Example, Threshold, Tier
from alerts.promql import NODE, gained
from alerts.settings import SHM_FULL_WITHIN, SHM_HARMS_FROM
from alerts.thresholds.references import TMPFS

JOB_SHM_USED = series("gpunode_job_shm_used_bytes", tmpfs="0:301")
JOB_SHM_SIZE = series("gpunode_job_shm_size_bytes", tmpfs="0:301")
STARVED_BY_SHM = series("gpunode_gpu_bottleneck", cause="shm")
TMPFS_OF = f"{NODE}, tmpfs"

FILLS = (
    f"min by ({TMPFS_OF}) (gpunode_job_shm_full_seconds) "
    f"or label_replace(min by (cluster, instance) (gpunode_shm_full_seconds), "
    '"tmpfs", "node", "", "")'
)
HARMS = (
    f'max by ({NODE}) (gpunode_gpu_bottleneck{{cause="shm"}}) == 1 '
    f"""or on ({NODE}) {gained('gpunode_kernel_log_events_total{kind="bus_error"}', NODE)} > 0"""
)

SHARED_MEMORY = (
    Threshold(
        alert="ShmNearlyFull",
        group="shared_memory",
        summary="A /dev/shm is nearly full",
        summary_ko="공유 메모리(/dev/shm)가 거의 가득 찼습니다",
        says="{value} of the /dev/shm with the device {tmpfs} is in use, and it fills or does harm",
        when="{value} of the /dev/shm with the device {tmpfs} is in use, and it is full in "
        "{shm_full_within}, or {shm_harms_from} of it is in use and harms a job",
        meaning="DataLoader workers and NCCL exchange data there; a write beyond its size is "
        "fatal.",
        remedy="Mount a larger one (an emptyDir of medium Memory), or remove what dead "
        "processes left.",
        source=TMPFS,
        record="node:gpunode_shm_endangered:ratio",
        signal=(
            f"node:gpunode_shm_used:ratio and on ({TMPFS_OF}) ({FILLS}) < {SHM_FULL_WITHIN} "
            f"or node:gpunode_shm_used:ratio > {SHM_HARMS_FROM} and on ({NODE}) ({HARMS})"
        ),
        window="0s",
        unit="percent",
        tiers=(
            Tier(severity="ticket", threshold=0.8, after="3m"),
            Tier(
                severity="info",
                threshold=0.8,
                after="15m",
                record="node:gpunode_shm_used:ratio",
                says="{value} of the /dev/shm with the device {tmpfs} is in use",
            ),
        ),
        scope="node",
        labels=("tmpfs",),
        example=Example(
            fires={JOB_SHM_USED: 98.0, JOB_SHM_SIZE: 100.0, STARVED_BY_SHM: 1.0},
            quiet={JOB_SHM_USED: 70.0, STARVED_BY_SHM: 0.0},
            value=0.98,
            labels={"tmpfs": "0:301"},
        ),
    ),
)
