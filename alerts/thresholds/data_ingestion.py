"""GPUs that wait for data: the loader, its CPUs, its storage, and the copies to the device."""

from __future__ import annotations

from alerts.thresholds.references import LEDGER, LUSTRE, PSI, VERDICT
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
    state,
)
from gpunode.jobs.processes import BUSY
from gpunode.verdict.limits import (
    DISK_BUSY,
    LOST,
    QUOTA_THROTTLED,
    REMOTE_LATENCY,
    REMOTE_SHARE,
)

STARVES = f"and on ({GPU}) {state('starved')} > {LOST:g}"
SERVER = f"{NODE}, filesystem, server"
MOUNT = f"{NODE}, mountpoint"

DATA_INGESTION = (
    Threshold(
        alert="GpuStarved",
        group="data_ingestion",
        summary="A GPU waits for data",
        summary_ko="GPU가 데이터를 기다리고 있습니다",
        says="nothing to run for {value} of the time although its job is running",
        meaning="A running job holds the GPU but leaves it without work between steps.",
        remedy="Add loader workers, prefetch, or move the data closer to the GPU.",
        source=LEDGER,
        signal=state("starved"),
        unit="percent",
        tiers=(
            Tier(severity="warning", threshold=LOST, after="10m"),
            Tier(severity="critical", threshold=0.5, after="15m"),
        ),
        gate="some_work",
        keep_firing_for="5m",
        example=Example(fires=ledger(starved=0.6), quiet=ledger(starved=0.08), value=0.6),
    ),
    Threshold(
        alert="GpuUnderused",
        group="data_ingestion",
        summary="A GPU is busy for less than 95% of an hour",
        summary_ko="GPU 사용률이 한 시간 동안 95% 미만입니다",
        says="busy for {value} of the last hour",
        meaning="The job leaves gaps that add up over the hour, whatever causes them.",
        remedy="Reduce the largest of the ledger's states starved, launch and idle.",
        source=LEDGER,
        signal=(
            f'1 - sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate1h{{state=~"starved|launch|idle"}})'
        ),
        window="1h",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="info", threshold=0.95, after="30m"),),
        gate="some_work",
        example=Example(fires=ledger(starved=0.2), quiet=ledger(starved=0.03), value=0.8),
    ),
    Threshold(
        alert="GpuSawtooth",
        group="data_ingestion",
        summary="A GPU alternates between full load and nothing",
        summary_ko="GPU 부하가 0과 100 사이를 오르내립니다",
        says="power swings {value} times a minute",
        meaning="The GPU finishes each batch before the next one arrives.",
        remedy="Prefetch, so that the next batch is on the GPU before this one ends.",
        source=LEDGER,
        signal=f"60 * {rate('gpunode_gpu_power_swings_total')}",
        where=STARVES,
        unit="number",
        tiers=(Tier(severity="warning", threshold=6.0, after="10m"),),
        gate="some_work",
        keep_firing_for="5m",
        example=Example(
            fires={series("gpunode_gpu_power_swings_total"): 1.0, **ledger(starved=0.4)},
            quiet={series("gpunode_gpu_power_swings_total"): 0.05},
            value=60.0,
        ),
    ),
    Threshold(
        alert="GpuPowerLow",
        group="data_ingestion",
        summary="A busy GPU draws far less than its power limit",
        summary_ko="작업 중인 GPU의 전력이 한도보다 훨씬 낮습니다",
        says="draws {value} of its power limit",
        meaning="A job holds the GPU, but its work does not fill the GPU or arrives in pieces.",
        remedy="Reduce the largest loss in the ledger; memory-bound kernels draw less by nature.",
        source=LEDGER,
        signal=(
            f"{rate('gpunode_gpu_energy_joules_total')} "
            f"/ on ({GPU}) max by ({GPU}) (gpunode_gpu_power_limit_watts > 0)"
        ),
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="warning", threshold=0.43, after="15m"),),
        example=Example(
            fires={
                series("gpunode_gpu_energy_joules_total"): 250.0,
                series("gpunode_gpu_power_limit_watts"): 700.0,
                **ledger(starved=0.2),
            },
            quiet={series("gpunode_gpu_energy_joules_total"): 320.0},
            value=250 / 700,
        ),
    ),
    Threshold(
        alert="LoaderThreadSaturated",
        group="data_ingestion",
        summary="One thread holds back a starving GPU",
        summary_ko="스레드 하나가 CPU 코어를 100% 사용하며 GPU를 지연시킵니다",
        says="one thread of its job uses {value} of a CPU core",
        meaning="A single loader thread or the Python main thread cannot feed the GPU any faster.",
        remedy="Set num_workers above 0, decode on the GPU, or take work off the main thread.",
        source=VERDICT,
        signal=f"max by ({GPU}) (gpunode_job_busiest_thread_ratio)",
        where=STARVES,
        window="0s",
        unit="percent",
        tiers=(Tier(severity="warning", threshold=BUSY, after="5m"),),
        gate="some_work",
        example=Example(
            fires={series("gpunode_job_busiest_thread_ratio"): 0.99, **ledger(starved=0.4)},
            quiet={series("gpunode_job_busiest_thread_ratio"): 0.9},
            value=0.99,
        ),
    ),
    Threshold(
        alert="JobCpuThrottled",
        group="data_ingestion",
        summary="A job is throttled by its CPU quota",
        summary_ko="CPU 쿼터로 인해 작업이 제한되고 있습니다",
        says="its job is throttled in {value} of its CPU quota periods",
        meaning="The job's cgroup uses up its CPU quota and is paused until the period ends.",
        remedy="Raise the pod's CPU limit, or remove it.",
        source="https://docs.kernel.org/scheduler/sched-bwc.html",
        signal=(
            f"{rate('gpunode_job_cpu_quota_throttled_periods_total')} "
            f"/ ({rate('gpunode_job_cpu_quota_periods_total')} > 0)"
        ),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=QUOTA_THROTTLED, after="10m"),),
        example=Example(
            fires={
                series("gpunode_job_cpu_quota_throttled_periods_total"): 2.0,
                series("gpunode_job_cpu_quota_periods_total"): 10.0,
            },
            quiet={series("gpunode_job_cpu_quota_throttled_periods_total"): 0.4},
            value=0.2,
        ),
    ),
    Threshold(
        alert="NodeIoPressure",
        group="data_ingestion",
        summary="Tasks wait for storage while GPUs work",
        summary_ko="작업이 스토리지 입출력을 기다리고 있습니다",
        says="some task waits for I/O {value} of the time",
        meaning="Tasks on the node are stalled until storage answers (pressure stall information).",
        remedy="Spread reads, cache the data set on local disks, or move checkpoints elsewhere.",
        source=PSI,
        signal=rate('gpunode_pressure_waiting_seconds_total{resource="io"}', NODE),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.2, after="10m"),),
        scope="node",
        gate="lately",
        example=Example(
            fires={series("gpunode_pressure_waiting_seconds_total", resource="io"): 0.5},
            quiet={series("gpunode_pressure_waiting_seconds_total", resource="io"): 0.15},
            value=0.5,
        ),
    ),
    Threshold(
        alert="NodeIoWait",
        group="data_ingestion",
        summary="CPUs are idle while they wait for storage",
        summary_ko="CPU가 입출력을 기다리며 쉬고 있습니다",
        says="{value} of the CPU time is iowait",
        meaning="CPUs have nothing else to do while a task waits for a disk.",
        remedy="Treat it as a hint, and act on NodeIoPressure.",
        source="https://man7.org/linux/man-pages/man5/proc_stat.5.html",
        signal=(
            rate('gpunode_cpu_seconds_total{mode="iowait"}', NODE)
            + f" / on ({NODE}) sum by ({NODE}) (gpunode_cpu_cores > 0)"
        ),
        unit="percent",
        tiers=(Tier(severity="info", threshold=0.2, after="15m"),),
        scope="node",
        gate="lately",
        example=Example(
            fires={
                series("gpunode_cpu_seconds_total", cpu="0", mode="iowait"): 0.5,
                series("gpunode_cpu_cores", node="0"): 1.0,
            },
            quiet={series("gpunode_cpu_seconds_total", cpu="0", mode="iowait"): 0.1},
            value=0.5,
        ),
    ),
    Threshold(
        alert="DataWaitHigh",
        group="data_ingestion",
        summary="Training waits for its DataLoader",
        summary_ko="학습이 DataLoader를 기다리고 있습니다",
        says="training spends {value} of its time waiting for batches",
        meaning="The training process reports that it waits for the next batch.",
        remedy="Use more workers, a higher prefetch_factor, pinned memory or a faster format.",
        source="https://pytorch.org/docs/stable/data.html",
        signal=(
            rate('gpunode_training_seconds_total{phase="data"}')
            + f" / ({rate('gpunode_training_seconds_total')} > 0)"
        ),
        where=f"and on ({GPU}) {gained('gpunode_training_step_seconds_count')} > 0",
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.1, after="10m"),),
        gate="always",
        example=Example(
            fires={
                series("gpunode_training_seconds_total", phase="data"): 0.3,
                series("gpunode_training_seconds_total", phase="step"): 0.7,
                series("gpunode_training_step_seconds_count"): 1.0,
            },
            quiet={
                series("gpunode_training_seconds_total", phase="data"): 0.05,
                series("gpunode_training_seconds_total", phase="step"): 0.95,
            },
            value=0.3,
        ),
    ),
    Threshold(
        alert="LustreSlow",
        group="data_ingestion",
        summary="A Lustre server answers slowly",
        summary_ko="Lustre 서버의 응답이 느립니다",
        says="a request to a {server} server of {filesystem} takes {value} on average",
        meaning="Lustre requests take longer than the usual 1 to 10 ms.",
        remedy="Restripe hot files, spread small files, or move the data set to local disks.",
        source=LUSTRE,
        signal=(
            f"{rate('gpunode_lustre_rpc_seconds_total', SERVER)} "
            f"/ ({rate('gpunode_lustre_rpcs_total', SERVER)} > 0)"
        ),
        where=(
            f"and on ({SERVER}) {rate('gpunode_lustre_rpc_seconds_total', SERVER)} "
            f"> {REMOTE_SHARE:g}"
        ),
        unit="seconds",
        tiers=(Tier(severity="warning", threshold=REMOTE_LATENCY, after="10m"),),
        scope="node",
        labels=("filesystem", "server"),
        gate="lately",
        example=Example(
            fires={
                series(
                    "gpunode_lustre_rpc_seconds_total", filesystem="scratch", server="data"
                ): 8.0,
                series("gpunode_lustre_rpcs_total", filesystem="scratch", server="data"): 100.0,
            },
            quiet={
                series("gpunode_lustre_rpc_seconds_total", filesystem="scratch", server="data"): 1.0
            },
            value=0.08,
        ),
    ),
    Threshold(
        alert="LustreMetadataLoad",
        group="data_ingestion",
        summary="A node sends many requests to a Lustre metadata server",
        summary_ko="Lustre 메타데이터 요청이 매우 많습니다",
        says="{value} metadata operations per second on {filesystem}",
        meaning="The job opens thousands of files a second, as with a data set of small files.",
        remedy="Pack samples into larger files (WebDataset, TFRecord, Arrow).",
        source=LUSTRE,
        signal=rate("gpunode_lustre_operations_total", f"{NODE}, filesystem"),
        unit="number",
        tiers=(Tier(severity="info", threshold=5000.0, after="15m"),),
        scope="node",
        labels=("filesystem",),
        gate="lately",
        example=Example(
            fires={
                series(
                    "gpunode_lustre_operations_total", filesystem="fs0", operation="open"
                ): 8000.0
            },
            quiet={
                series(
                    "gpunode_lustre_operations_total", filesystem="fs0", operation="open"
                ): 4000.0
            },
            value=8000.0,
        ),
    ),
    Threshold(
        alert="NfsSlow",
        group="data_ingestion",
        summary="An NFS server answers slowly",
        summary_ko="NFS 서버의 응답이 느립니다",
        says="a request to {mountpoint} takes {value} on average",
        meaning="NFS requests take longer than the usual 1 to 10 ms.",
        remedy="Cache the data on local disks, mount with nconnect, or use another server.",
        source="https://man7.org/linux/man-pages/man5/nfs.5.html",
        signal=(
            f"{rate('gpunode_nfs_rtt_seconds_total', MOUNT)} "
            f"/ ({rate('gpunode_nfs_requests_total', MOUNT)} > 0)"
        ),
        where=(
            f"and on ({MOUNT}) {rate('gpunode_nfs_rtt_seconds_total', MOUNT)} > {REMOTE_SHARE:g}"
        ),
        unit="seconds",
        tiers=(Tier(severity="warning", threshold=REMOTE_LATENCY, after="10m"),),
        scope="node",
        labels=("mountpoint",),
        gate="lately",
        example=Example(
            fires={
                series("gpunode_nfs_rtt_seconds_total", mountpoint="/data", operation="read"): 9.0,
                series("gpunode_nfs_requests_total", mountpoint="/data", operation="read"): 100.0,
            },
            quiet={
                series("gpunode_nfs_rtt_seconds_total", mountpoint="/data", operation="read"): 2.0
            },
            value=0.09,
        ),
    ),
    Threshold(
        alert="DiskSaturated",
        group="data_ingestion",
        summary="A disk is busy all the time while GPUs work",
        summary_ko="디스크가 100% 사용 중입니다",
        says="{disk} has requests in flight {value} of the time",
        meaning="The disk is never idle, though an SSD with parallel requests may have room left.",
        remedy="Spread the load over more disks, read larger blocks, or cache in memory.",
        source="https://docs.kernel.org/admin-guide/iostats.html",
        signal=rate("gpunode_disk_busy_seconds_total", f"{NODE}, disk"),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=DISK_BUSY, after="10m"),),
        scope="node",
        labels=("disk",),
        gate="lately",
        example=Example(
            fires={series("gpunode_disk_busy_seconds_total", disk="nvme0n1"): 1.0},
            quiet={series("gpunode_disk_busy_seconds_total", disk="nvme0n1"): 0.9},
            value=1.0,
        ),
    ),
    Threshold(
        alert="HostCopiesHigh",
        group="data_ingestion",
        summary="Copies between host and device hold back a GPU",
        summary_ko="호스트-디바이스 복사가 GPU를 지연시킵니다",
        says="copies data and computes nothing for {value} of the time",
        meaning="The copy engines work while every SM is idle; the driver calls that utilised.",
        remedy="Use pinned memory with non_blocking=True, a copy stream, and fewer .item() calls.",
        source=LEDGER,
        signal=state("copy"),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=LOST, after="10m"),),
        example=Example(fires=ledger(copy=0.4), quiet=ledger(copy=0.05), value=0.4),
    ),
)
