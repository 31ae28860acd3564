"""The node itself: its memory, kernel, filesystems and settings, and GPUs that nobody uses."""

from __future__ import annotations

from alerts.thresholds.references import CGROUP, LEDGER, STATVFS
from alerts.thresholds.row import (
    GPU,
    NODE,
    Example,
    Threshold,
    Tier,
    gained,
    ledger,
    rate,
    series,
)
from gpunode.host.filesystem import LOCAL

FAULTS = "bus_error|hung_task|lockup|machine_check|disk_error|read_only|lustre_eviction|sxid"
"""The kinds of kernel log lines that no other alert covers."""

MOUNT = f"{NODE}, mountpoint"
SHARED_MOUNT = f"{NODE}, mountpoint, fstype"
SWAPPED_IN = series("gpunode_memory_swapped_bytes_total", direction="in")
HUNG_TASKS = series("gpunode_kernel_log_events_total", kind="hung_task")
SWAP_CHECK = series("gpunode_audit_ok", check="swap_used")

NEARLY_FULL = (
    Tier(severity="warning", threshold=0.1, after="15m"),
    Tier(severity="critical", threshold=0.02, after="5m"),
)
"""The free share of a filesystem, on one node or on many."""


def _filling(**mount: str) -> Example:
    """A filesystem with 1 % left, and then with 20 %."""
    available = series("gpunode_filesystem_available_bytes", **mount)
    size = series("gpunode_filesystem_size_bytes", **mount)
    return Example(fires={available: 1.0, size: 100.0}, quiet={available: 20.0}, value=0.01)


SYSTEM = (
    Threshold(
        alert="NodeSwapping",
        group="system",
        summary="A GPU node is swapping",
        summary_ko="GPU 노드가 스왑을 사용하고 있습니다",
        says="{value} per second read back from swap",
        meaning="The node is short of memory and reads from disk what its processes need.",
        remedy="Use fewer loader workers, limit the process that grows, or disable swap.",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html",
        signal=rate('gpunode_memory_swapped_bytes_total{direction="in"}', NODE),
        unit="bytes",
        tiers=(Tier(severity="warning", threshold=1e6, after="10m"),),
        scope="node",
        gate="always",
        example=Example(fires={SWAPPED_IN: 5e6}, quiet={SWAPPED_IN: 1e4}, value=5e6),
    ),
    Threshold(
        alert="OomKill",
        group="system",
        summary="The kernel killed a process to free memory",
        summary_ko="메모리 부족으로 프로세스가 강제 종료되었습니다",
        says="processes OOM-killed in 15 minutes: {value}",
        meaning="The node or a cgroup ran out of memory.",
        remedy="Raise the memory limit, or find the leak with JobMemoryGrows.",
        source=CGROUP,
        signal=gained("gpunode_memory_oom_kills_total", NODE),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.5, after="0s"),),
        scope="node",
        gate="always",
        example=Example(
            fires={series("gpunode_memory_oom_kills_total"): 0.005},
            quiet={series("gpunode_memory_oom_kills_total"): 0.0},
            value=4.5,
        ),
    ),
    Threshold(
        alert="JobMemoryNearLimit",
        group="system",
        summary="A job is near its memory limit",
        summary_ko="작업이 메모리 한도에 근접했습니다",
        says="its job uses {value} of its memory limit, without caches",
        meaning="The job is OOM-killed at the limit.",
        remedy="Raise the memory limit, or find the leak with JobMemoryGrows.",
        source=CGROUP,
        signal=(
            f"(max by ({GPU}) (gpunode_job_memory_bytes) "
            f"+ on ({GPU}) max by ({GPU}) (gpunode_job_memory_shmem_bytes)) "
            f"/ on ({GPU}) max by ({GPU}) (gpunode_job_memory_limit_bytes > 0)"
        ),
        window="0s",
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.95, after="10m"),),
        gate="always",
        example=Example(
            fires={
                series("gpunode_job_memory_bytes"): 60.0,
                series("gpunode_job_memory_shmem_bytes"): 39.0,
                series("gpunode_job_memory_limit_bytes"): 100.0,
            },
            quiet={series("gpunode_job_memory_bytes"): 41.0},
            value=0.99,
        ),
    ),
    Threshold(
        alert="JobMemoryGrows",
        group="system",
        summary="A job's memory keeps growing",
        summary_ko="작업의 메모리 사용량이 계속 증가합니다",
        says="its job's memory grows by {value} an hour",
        meaning="The job leaks memory or fills an unbounded queue; caches are not counted.",
        remedy="Use arrays instead of Python lists in the data set, or restart workers regularly.",
        source="https://github.com/pytorch/pytorch/issues/13246",
        signal=f"sum by ({GPU}) (deriv(gpunode_job_memory_bytes[1h])) * 3600",
        window="1h",
        unit="bytes",
        tiers=(Tier(severity="info", threshold=10e9, after="1h"),),
        example=Example(
            fires={series("gpunode_job_memory_bytes"): 10e6},
            quiet={series("gpunode_job_memory_bytes"): 1e5},
            value=36e9,
            ramps=True,
        ),
    ),
    Threshold(
        alert="KernelComplains",
        group="system",
        summary="The kernel of a GPU node logs faults",
        summary_ko="커널 오류 메시지가 발생했습니다",
        says="kernel log lines of kind {kind} in 15 minutes: {value}",
        meaning="The kernel logged bus errors, hung tasks, lock-ups, disk errors or evictions.",
        remedy="Follow the kind of fault: repair the memory, the disk or the file server.",
        source="https://docs.kernel.org/admin-guide/tainted-kernels.html",
        signal=gained(f'gpunode_kernel_log_events_total{{kind=~"{FAULTS}"}}', f"{NODE}, kind"),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.5, after="0s"),),
        scope="node",
        labels=("kind",),
        gate="always",
        example=Example(fires={HUNG_TASKS: 0.01}, quiet={HUNG_TASKS: 0.0}, value=9.0),
    ),
    Threshold(
        alert="FilesystemNearlyFull",
        group="system",
        summary="A filesystem of a node is nearly full",
        summary_ko="파일 시스템이 거의 가득 찼습니다",
        says="{value} of {mountpoint} is free",
        meaning="Checkpoints and caches need the space.",
        remedy="Remove old checkpoints, or enlarge the filesystem.",
        source=STATVFS,
        signal=(
            f'max by ({MOUNT}) (gpunode_filesystem_available_bytes{{fstype=~"{LOCAL}"}}) '
            f"/ on ({MOUNT}) max by ({MOUNT}) (gpunode_filesystem_size_bytes > 0)"
        ),
        window="0s",
        unit="percent",
        comparison="<",
        tiers=NEARLY_FULL,
        scope="node",
        labels=("mountpoint",),
        gate="always",
        example=_filling(mountpoint="/", fstype="ext4"),
    ),
    Threshold(
        alert="SharedFilesystemNearlyFull",
        group="system",
        summary="A shared filesystem is nearly full",
        summary_ko="공유 파일 시스템이 거의 가득 찼습니다",
        says="{value} of {mountpoint} ({fstype}) is free",
        meaning="Checkpoints and caches of many nodes need the space.",
        remedy="Remove old checkpoints, or enlarge the filesystem.",
        source=STATVFS,
        signal=(
            "min by (cluster, mountpoint, fstype) ("
            f'max by ({SHARED_MOUNT}) (gpunode_filesystem_available_bytes{{fstype!~"{LOCAL}"}}) '
            f"/ on ({SHARED_MOUNT}) max by ({SHARED_MOUNT}) (gpunode_filesystem_size_bytes > 0))"
        ),
        window="0s",
        unit="percent",
        comparison="<",
        tiers=NEARLY_FULL,
        scope="cluster",
        labels=("mountpoint", "fstype"),
        gate="always",
        over_nodes=True,
        example=_filling(mountpoint="/data", fstype="nfs"),
    ),
    Threshold(
        alert="NodeAuditFailed",
        group="system",
        summary="A node is not configured for training",
        summary_ko="노드 설정 점검에 실패한 항목이 있습니다",
        says="failed checks of the tuning audit: {value}",
        meaning="Settings of the node differ from what training needs.",
        remedy="Run `gpunode audit` on the node and apply the remedy of each failed check.",
        source="https://github.com/gpunode/gpunode/blob/main/docs/audit.md",
        signal=f"count by ({NODE}) (gpunode_audit_ok == 0)",
        window="0s",
        unit="count",
        tiers=(Tier(severity="info", threshold=0.0, after="1h"),),
        scope="node",
        gate="always",
        example=Example(fires={SWAP_CHECK: 0.0}, quiet={SWAP_CHECK: 1.0}, value=1.0),
    ),
    Threshold(
        alert="GpuAllocatedIdle",
        group="system",
        summary="A GPU is allocated but not used",
        summary_ko="할당된 GPU가 사용되지 않고 있습니다",
        says="allocated, but ran nothing for {value} of the last hour",
        meaning="A pod or job holds the GPU: a notebook, a finished run, or a pod that waits.",
        remedy="End the job, or set an idle time-out for notebooks.",
        source=LEDGER,
        signal=f'sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate1h{{state=~"free|idle"}})',
        where=f"and on ({GPU}) max by ({GPU}) (gpunode_gpu_allocated) > 0",
        window="1h",
        unit="percent",
        tiers=(Tier(severity="info", threshold=0.95, after="1h"),),
        gate="always",
        example=Example(
            fires={series("gpunode_gpu_allocated"): 1.0, **ledger(idle=1.0)},
            quiet={series("gpunode_gpu_allocated"): 0.0},
            value=1.0,
        ),
    ),
)
