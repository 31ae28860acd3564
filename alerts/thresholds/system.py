"""The node itself: its memory, kernel, filesystems and settings; jobs that crash or do nothing."""

from __future__ import annotations

from alerts.examples import HELD, HELD_B, TRAINS, WORKLESS, ledger, owner, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import FILESYSTEM, JOB, NODE, gained, happened, rate
from alerts.recording.memory import LEFT, SHARE, runs_out
from alerts.recording.overview import FAILED_CHECKS
from alerts.recording.parts import IDLE_1H
from alerts.settings import (
    FILLS_WITHIN,
    LOOPS_ABOVE,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_STALLED,
    SWAP_READ,
)
from alerts.thresholds.references import CGROUP, LEDGER, STATVFS
from gpunode.host.filesystem import LOCAL
from gpunode.verdict.shortages import FILESYSTEM_FREE

STALLED = 'gpunode_pressure_stalled_seconds_total{resource="memory"}'
FAULTS = (
    "bus_error|hung_task|lockup|kernel_bug|machine_check|iommu_fault|disk_error|read_only|"
    "lustre_eviction|sxid|peermem|network_adapter|file_limit"
)
"""The kinds of kernel log lines that no other alert covers."""

HUNG_TASKS = series("gpunode_kernel_log_events_total", kind="hung_task")
SWAP_CHECK = series("gpunode_audit_ok", check="swap_used")


def _free(types: str, by: str) -> str:
    """The free share of filesystems that fill up soon at the pace of the last hour."""
    share = f"node:gpunode_filesystem:available_ratio{{{types}}}"
    return f"min by ({by}) ({share} and predict_linear({share}[1h:5m], {FILLS_WITHIN}) < 0)"


def _filling(mountpoint: str, fstype: str) -> Example:
    """A filesystem that fills, and one that is as full but stays so."""
    available = series("gpunode_filesystem_available_bytes", mountpoint=mountpoint, fstype=fstype)
    size = series("gpunode_filesystem_size_bytes", mountpoint=mountpoint, fstype=fstype)
    return Example(
        fires={available: 5.0, size: 100.0},
        quiet={available: 40.0},
        value=0.05,
        labels={"filesystem": mountpoint},
    )


SYSTEM = (
    Threshold(
        alert="JobIdle",
        group="system",
        summary="A job holds GPUs and does not use them",
        summary_ko="작업이 GPU를 점유한 채 사용하지 않습니다",
        says="its GPUs ran nothing for {value} of the last hour",
        meaning="A notebook, a finished run, a pod that waits, or training that waits for itself.",
        remedy="End the job, or set an idle time-out for notebooks; save the stack of one "
        "that hangs.",
        source=LEDGER,
        record="job:gpunode_idle:ratio",
        signal=IDLE_1H.over_nodes(),
        window="1h",
        unit="percent",
        tiers=(
            Tier(severity="info", threshold=0.95, after="1h"),
            Tier(
                severity="page",
                threshold=1800.0,
                after="1m",
                record="job:gpunode_idle:seconds",
                unless="job:gpunode_stalled:explained",
                says="it trained on several GPUs, of which none has worked for {value}, or it "
                "stood still and lost its processes as long ago; jobs with {paged_gpus} GPUs are "
                "left out",
                unit="seconds",
            ),
        ),
        scope="job",
        of_owner=True,
        keep_firing_for="5m",
        example=Example(
            fires={**TRAINS, **HELD_B, **ledger(idle=1.0), WORKLESS: 4000.0},
            quiet={**ledger(idle=0.0), WORKLESS: 0.0},
            value=1.0,
            silenced_by={},
        ),
    ),
    Threshold(
        alert="JobCrashLoops",
        group="system",
        summary="A training job or a server starts again and again",
        summary_ko="학습 작업 또는 추론 서버가 반복해서 다시 시작되고 있습니다",
        says="processes started on one of its GPUs in an hour: {value}; it computed for "
        "{restarted_useful} of it",
        meaning="The job's processes end and are started again before they have done much.",
        remedy="Read the log of the last attempt; suspend the job until its fault is mended.",
        source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy",
        record="job:gpunode_starts:count_1h",
        window="1h",
        unit="count",
        tiers=(
            Tier(
                severity="ticket",
                threshold=3.0,
                after="30m",
                record="job:gpunode_starts:count_6h",
                says="starts within six hours, all on the GPUs that it kept, or processes on one "
                "of its GPUs in an hour of which it computed for {restarted_useful}, or in which a "
                "replica of a service has yet to work while others answer, or processes of a "
                "server that had it for {ends_soon} of an hour, and none that stays: {value}",
            ),
            Tier(
                severity="page",
                threshold=LOOPS_ABOVE.figure,
                after="30m",
                record="job:gpunode_starts:to_page",
                says="processes started on one of its GPUs in an hour of which it computed for "
                "{restarted_useful}, if it has {loops_gpus} GPUs and half an hour before they were "
                "{loops_above}, too, or if they were for 90 minutes; or, if it has "
                "{loops_gpus} GPUs and computed for longer, while it starts every 15 minutes or "
                "sooner and none of them computes for {loops_work} of five minutes: {value}",
            ),
        ),
        scope="job",
        of_owner=True,
        keep_firing_for="30m",
        example=Example(
            fires={
                **TRAINS,
                **{
                    owner(owner_pod="train-0", gpu=str(gpu), uuid=f"GPU-{gpu}"): 1.0
                    for gpu in range(2, 9)
                },
                **ledger(idle=0.9),
                **{
                    series(
                        "gpunode_gpu_process_info",
                        pid=str(pid),
                        owner_namespace="",
                        owner_pod="train-0",
                        owner_container="",
                        slurm_job="",
                        user="",
                        slurm_step="",
                        rank="",
                        local_rank="",
                        world_size="",
                    ): 1.0
                    for pid in range(5)
                },
            },
            quiet={
                series(
                    "gpunode_gpu_process_info",
                    pid=str(pid),
                    owner_namespace="",
                    owner_pod="train-0",
                    owner_container="",
                    slurm_job="",
                    user="",
                    slurm_step="",
                    rank="",
                    local_rank="",
                    world_size="",
                ): None
                for pid in range(5)
            },
            value=5.0,
        ),
    ),
    Threshold(
        alert="JobMemoryNearLimit",
        group="system",
        summary="A job is near its memory limit",
        summary_ko="작업이 메모리 한도에 근접했습니다",
        says="uses {value} of its memory limit, without caches, or will at this pace within "
        "{memory_full_within}",
        when="a job uses {value} of its memory limit, without caches, or will use all of it within "
        "{memory_full_within} at the pace of the last minutes, and uses {memory_high}",
        meaning="The job is OOM-killed at the limit.",
        remedy="Raise the memory limit, or find what grows on the job's dashboard.",
        source=CGROUP,
        record="job:gpunode_memory_limit:ratio",
        signal=(
            f'max by ({JOB}) (label_replace({SHARE}, "when", "now", "", "") or label_replace('
            f"{runs_out(SHARE, JOB, '> 1')} and on ({JOB}) {SHARE} > {MEMORY_HIGH}, "
            '"when", "soon", "", ""))'
        ),
        window="10m",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.95, after="10m"),),
        scope="job",
        of_owner=True,
        example=Example(
            fires={
                **HELD,
                series("gpunode_job_memory_anonymous_bytes"): 60.0,
                series("gpunode_job_memory_shmem_bytes"): 39.0,
                series("gpunode_job_memory_limit_bytes"): 100.0,
            },
            quiet={series("gpunode_job_memory_anonymous_bytes"): 41.0},
            value=0.99,
        ),
    ),
    Threshold(
        alert="NodeMemoryShort",
        group="system",
        summary="A GPU node is short of memory",
        summary_ko="GPU 노드의 메모리가 부족합니다",
        says="{kind}: {value}",
        when="the kernel killed a process in 15 minutes, {swap_read} a second are read back "
        "from swap, {memory_low} of the memory is left and at the pace of the last minutes none "
        "within {memory_full_within}, or all programs wait for memory {memory_stalled} of the time",
        meaning="The kernel killed a process to free memory or soon will, reads back what it had "
        "swapped out, or keeps programs waiting while it looks for memory.",
        remedy="Raise the job's memory limit, use fewer loader workers, or disable swap.",
        source=CGROUP,
        record="node:gpunode_memory_short:count",
        signal=(
            f"label_replace({happened('gpunode_memory_oom_kills_total', NODE)}, "
            '"kind", "processes killed in 15 minutes", "", "") or label_replace('
            + rate('gpunode_memory_swapped_bytes_total{direction="in"}', NODE, "15m")
            + f' > {SWAP_READ}, "kind", "bytes a second read back from swap", "", "") '
            f"or label_replace({LEFT} < {MEMORY_LOW} "
            f"and on ({NODE}) ({runs_out(LEFT, NODE, '< 0')}), "
            '"kind", "share of its memory left, and at this pace none soon", "", "") '
            + f"or label_replace({rate(STALLED, NODE)} > {MEMORY_STALLED}, "
            '"kind", "share of the time in which all programs wait for memory", "", "")'
        ),
        window="15m",
        unit="number",
        tiers=(Tier(severity="ticket", threshold=0.0, after="1m"),),
        scope="node",
        dashboard="host",
        labels=("kind",),
        example=Example(
            fires={series("gpunode_memory_oom_kills_total"): 0.005},
            quiet={series("gpunode_memory_oom_kills_total"): 0.0},
            value=4.5,
            labels={"kind": "processes killed in 15 minutes"},
        ),
    ),
    Threshold(
        alert="KernelComplains",
        group="system",
        summary="The kernel of a GPU node logs faults",
        summary_ko="GPU 노드의 커널 로그에 오류가 기록되고 있습니다",
        says="kernel log lines of kind {kind} in 15 minutes: {value}",
        meaning="The kernel logged bus errors, hung tasks, lock-ups, bugs of its own, disk or "
        "adapter errors.",
        remedy="Follow the kind of fault: repair the memory, the disk or the file server.",
        source="https://docs.kernel.org/admin-guide/tainted-kernels.html",
        record="node:gpunode_kernel_log_events:increase15m",
        signal=gained(f'gpunode_kernel_log_events_total{{kind=~"{FAULTS}"}}', f"{NODE}, kind"),
        window="15m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.5, after="0s"),),
        scope="node",
        dashboard="health",
        labels=("kind",),
        every="1m",
        example=Example(fires={HUNG_TASKS: 0.01}, quiet={HUNG_TASKS: 0.0}, value=9.0),
    ),
    Threshold(
        alert="NodeFilesystemFailing",
        group="system",
        summary="A filesystem of a node takes no more files",
        summary_ko="노드의 파일 시스템에 쓸 수 없습니다",
        says="{mountpoint} was made read-only, has {inodes_free} of its inodes left, or is the "
        "root and has {root_free} of its space left",
        meaning="The kernel remounts a filesystem read-only when its disk fails, or somebody does; "
        "no checkpoint can be written.",
        remedy="Cordon the node; replace the disk, or free what fills it; of a shared filesystem, "
        "call whoever runs its servers.",
        source="https://docs.kernel.org/admin-guide/ext4.html",
        record="node:gpunode_filesystem:failing",
        window="0s",
        unit="flag",
        tiers=(
            Tier(severity="ticket", threshold=0.0, after="5m"),
            Tier(
                severity="page",
                threshold=0.0,
                after="5m",
                record="node:gpunode_filesystem:failing_in_use",
                unless="node:gpunode_drained:max",
            ),
        ),
        scope="node",
        labels=("mountpoint",),
        fault="filesystem",
        keep_firing_for="2m",
        example=Example(
            fires={
                **HELD,
                series("gpunode_filesystem_files_free", mountpoint="/", fstype="ext4"): 0.0,
                series("gpunode_filesystem_files", mountpoint="/", fstype="ext4"): 1e6,
            },
            quiet={series("gpunode_filesystem_files_free", mountpoint="/", fstype="ext4"): 5e5},
            value=1.0,
        ),
    ),
    Threshold(
        alert="FilesystemNearlyFull",
        group="system",
        summary="A filesystem of a node fills up",
        summary_ko="노드의 파일 시스템이 곧 가득 찹니다",
        says="{value} of {mountpoint} is free, and at this pace none within {fills_within}",
        meaning="Checkpoints and caches need the space; one that is kept full by design is "
        "not reported.",
        remedy="Remove old checkpoints, or enlarge the filesystem.",
        source=STATVFS,
        record="node:gpunode_filesystem:free",
        signal=_free(f'fstype=~"{LOCAL}"', f"{NODE}, mountpoint"),
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=FILESYSTEM_FREE, after="15m"),),
        scope="node",
        dashboard="host",
        labels=("mountpoint",),
        fault="filesystem",
        example=_filling("/", "ext4"),
    ),
    Threshold(
        alert="SharedFilesystemNearlyFull",
        group="system",
        summary="A shared filesystem fills up",
        summary_ko="공유 파일 시스템이 곧 가득 찹니다",
        says="{value} of {filesystem} is free, and at this pace none within {fills_within}",
        meaning="Checkpoints and caches of many nodes need the space.",
        remedy="Remove old checkpoints, or enlarge the filesystem.",
        source=STATVFS,
        record="filesystem:gpunode_filesystem:free",
        signal=(
            f"min by ({FILESYSTEM}) (label_replace("
            + _free(f'fstype!~"{LOCAL}"', f"{NODE}, mountpoint")
            + ', "filesystem", "$1", "mountpoint", "(.+)"))'
        ),
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=FILESYSTEM_FREE, after="15m"),),
        scope="filesystem",
        example=_filling("/data", "nfs"),
    ),
    Threshold(
        alert="NodeAuditFailed",
        group="system",
        summary="A node is not configured for training",
        summary_ko="노드 설정 점검을 통과하지 못한 항목이 있습니다",
        says="failed checks of the tuning audit: {value}",
        meaning="Settings of the node differ from what training needs.",
        remedy="Run `gpunode audit` on the node and apply the remedy of each failed check.",
        source="https://github.com/gpunode/gpunode/blob/main/docs/audit.md",
        record="node:gpunode_audit:failed",
        signal=f"count by ({NODE}) ({FAILED_CHECKS})",
        window="0s",
        unit="count",
        tiers=(Tier(severity="info", threshold=0.0, after="1h"),),
        scope="node",
        dashboard="health",
        example=Example(fires={SWAP_CHECK: 0.0}, quiet={SWAP_CHECK: 1.0}, value=1.0),
    ),
)
