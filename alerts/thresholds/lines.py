"""Thresholds that dashboards draw and that alert nobody: by themselves they harm nobody."""

from __future__ import annotations

from alerts.model import DashboardLine
from alerts.promql import GPU, JOB, NODE, gained, of_gpus, of_jobs, rate, state
from alerts.recording.overview import READ
from alerts.settings import CONGESTED_FROM
from gpunode.verdict.causes.data import DISK_BUSY, QUOTA_THROTTLED
from gpunode.verdict.causes.host import THREAD_BUSY
from gpunode.verdict.causes.limits import LIMIT_LOWERED, MEMORY_FULL

LINES: tuple[DashboardLine, ...] = (
    DashboardLine(
        name="gpu_busy",
        group="data_ingestion",
        says="share of an hour in which the GPU had work",
        signal=f'1 - sum by ({GPU}) (gpu:gpunode_gpu_seconds:rate1h{{state=~"starved|idle"}})',
        unit="percent",
        comparison="<",
        threshold=0.95,
        scope="gpu",
        reason="JobStarved, JobLaunchBound and JobIdle tell of what the gaps consist.",
    ),
    DashboardLine(
        name="power_swings",
        group="data_ingestion",
        says="swings of the power draw a minute, from load to rest and back",
        signal=f"60 * {rate('gpunode_gpu_power_swings_total')}",
        unit="number",
        comparison=">",
        threshold=6.0,
        scope="gpu",
        reason="The saw-tooth is how JobStarved looks.",
    ),
    DashboardLine(
        name="power_of_default_limit",
        group="data_ingestion",
        says="power draw as a share of the board's default limit, whatever cap is set",
        signal=(
            f"{rate('gpunode_gpu_energy_joules_total')} "
            f"/ on ({GPU}) ({of_gpus('gpunode_gpu_power_default_limit_watts')} > 0)"
        ),
        unit="percent",
        comparison="<",
        threshold=0.43,
        scope="gpu",
        reason="Decoding is bound by memory and draws little; JobStarved tells if it is "
        "starvation.",
    ),
    DashboardLine(
        name="busiest_thread",
        group="data_ingestion",
        says="share of a core that the busiest thread of a job uses",
        signal=of_gpus("gpunode_job_busiest_thread_ratio"),
        unit="percent",
        comparison=">",
        threshold=THREAD_BUSY,
        scope="gpu",
        reason="It is the evidence of the cause data_loading_cpu, which JobStarved names.",
    ),
    DashboardLine(
        name="data_wait",
        group="data_ingestion",
        says="share of a training process's time in which it waits for a batch",
        signal=(
            'gpu:gpunode_training_seconds:rate5m{phase="data"} '
            f"/ on ({GPU}) (sum by ({GPU}) (gpu:gpunode_training_seconds:rate5m) > 0)"
        ),
        unit="percent",
        comparison=">",
        threshold=0.1,
        scope="gpu",
        reason="JobStarved tells if the GPU has to wait too.",
    ),
    DashboardLine(
        name="iowait",
        group="data_ingestion",
        says="share of the CPUs' time that is iowait",
        signal=(
            rate('gpunode_cpu_seconds_total{mode="iowait"}', NODE)
            + f" / on ({NODE}) sum by ({NODE}) (max by ({NODE}, node) (gpunode_cpu_cores) > 0)"
        ),
        unit="percent",
        comparison=">",
        threshold=0.2,
        scope="node",
        reason="A hint; NodeStoragePressure tells when it starves a GPU.",
    ),
    DashboardLine(
        name="disk_busy",
        group="data_ingestion",
        says="share of the time in which a disk has requests",
        signal=rate("gpunode_disk_busy_seconds_total", f"{NODE}, disk"),
        unit="percent",
        comparison=">",
        threshold=DISK_BUSY,
        scope="node",
        reason="A disk that serves requests in parallel may have room; NodeStoragePressure tells.",
    ),
    DashboardLine(
        name="shared_filesystem_read",
        group="data_ingestion",
        says="bytes a second that the nodes of a cluster read from Lustre",
        signal=READ,
        unit="bytes",
        comparison="<",
        threshold=1e9,
        scope="filesystem",
        reason="How much is enough depends on the jobs; JobStarved tells when it is not.",
    ),
    DashboardLine(
        name="lustre_metadata",
        group="data_ingestion",
        says="metadata operations a second of a node",
        signal=rate("gpunode_lustre_operations_total", f"{NODE}, filesystem"),
        unit="number",
        comparison=">",
        threshold=5000.0,
        scope="node",
        reason="StorageSlow tells when the servers suffer.",
    ),
    DashboardLine(
        name="lustre_busiest_target",
        group="data_ingestion",
        says="share of a node's time with object servers that one target takes",
        signal=f"max by ({NODE}, filesystem, target) (gpunode_lustre_busiest_target_ratio)",
        unit="percent",
        comparison=">",
        threshold=0.5,
        scope="node",
        reason="Small files have one stripe each; StorageSlow tells when requests take long.",
    ),
    DashboardLine(
        name="page_cache_missed",
        group="data_ingestion",
        says="share of the bytes that a job reads that come from storage, not from the page cache",
        signal=(
            rate('gpunode_job_io_bytes_total{direction="read"}')
            + f" / on ({GPU}) ("
            + rate("gpunode_job_read_call_bytes_total")
            + " > 1e6)"
        ),
        unit="percent",
        comparison=">",
        threshold=0.5,
        scope="gpu",
        reason="The first epoch reads everything from storage; JobStarved tells if a GPU waits.",
    ),
    DashboardLine(
        name="nvlink_used",
        group="communication",
        says="share of the NVLinks' bandwidth in use",
        signal=(
            f"{rate('gpunode_gpu_nvlink_bytes_total')} "
            f"/ on ({GPU}) ({of_gpus('gpunode_gpu_nvlink_speed_bytes_per_second')} > 0)"
        ),
        unit="percent",
        comparison="<",
        threshold=0.01,
        scope="gpu",
        reason="JobTransport tells when NCCL does not use them.",
    ),
    DashboardLine(
        name="rdma_congestion",
        group="communication",
        says="signs of congestion a second",
        signal=rate("gpunode_infiniband_congestion_events_total", f"{NODE}, device, port"),
        unit="number",
        comparison=">",
        threshold=CONGESTED_FROM.figure,
        scope="node",
        reason="Congestion slows traffic and loses nothing; JobCongested tells if a job waits.",
    ),
    DashboardLine(
        name="step_time_of_a_week",
        group="communication",
        says="time of a job's step over the shortest of the last seven days' runs",
        signal=(
            f"job:gpunode_training_step:median / on ({JOB}) "
            f"(min_over_time(job:gpunode_training_step:median[7d]) > 0)"
        ),
        unit="number",
        comparison=">",
        threshold=1.3,
        scope="job",
        reason="Runs of the same name may differ in what they train.",
    ),
    DashboardLine(
        name="gpu_memory_used",
        group="memory_precision",
        says="share of the GPU's memory in use",
        signal=(
            f"{of_gpus('gpunode_gpu_memory_used_bytes')} / on ({GPU}) "
            f"({of_gpus('gpunode_gpu_memory_size_bytes')} - on ({GPU}) "
            f"{of_gpus('gpunode_gpu_memory_reserved_bytes')} > 0)"
        ),
        unit="percent",
        comparison=">",
        threshold=MEMORY_FULL,
        scope="gpu",
        reason="Allocators keep what they once had; JobOutOfGpuMemory tells when it is not enough.",
    ),
    DashboardLine(
        name="torch_reserved",
        group="memory_precision",
        says="memory that PyTorch has reserved as a share of the GPU's",
        signal=(
            f"{of_gpus('gpunode_torch_memory_reserved_bytes')} / on ({GPU}) "
            f"({of_gpus('gpunode_gpu_memory_size_bytes')} > 0)"
        ),
        unit="percent",
        comparison=">",
        threshold=MEMORY_FULL,
        scope="gpu",
        reason="As above.",
    ),
    DashboardLine(
        name="gpu_memory_growth",
        group="memory_precision",
        says="bytes by which the use of a GPU's memory grows in an hour",
        signal=f"3600 * {of_gpus('deriv(gpunode_gpu_memory_used_bytes[3h])')}",
        unit="bytes",
        comparison=">",
        threshold=1e9,
        scope="gpu",
        reason="Any job grows as it starts; JobOutOfGpuMemory tells when memory is short.",
    ),
    DashboardLine(
        name="mfu",
        group="memory_precision",
        says="model FLOPs utilisation",
        signal=of_gpus("gpunode_training_mfu_ratio"),
        unit="percent",
        comparison="<",
        threshold=0.25,
        scope="gpu",
        reason="What is good depends on the model; the ledger tells what is lost.",
    ),
    DashboardLine(
        name="sm_efficiency",
        group="kernels",
        says="share of the SMs that are active while kernels run",
        signal=(
            rate('gpunode_gpu_active_seconds_total{unit="sm"}')
            + f" / on ({GPU}) ("
            + rate('gpunode_gpu_active_seconds_total{unit="graphics"}')
            + " > 0.05)"
        ),
        unit="percent",
        comparison="<",
        threshold=0.5,
        scope="gpu",
        reason="Small kernels are a property of the model; JobLaunchBound tells of gaps.",
    ),
    DashboardLine(
        name="torch_recompiled",
        group="kernels",
        says="graphs that torch.compile compiled in 15 minutes",
        signal=gained("gpunode_torch_compiled_graphs_total"),
        unit="count",
        comparison=">",
        threshold=10.0,
        scope="gpu",
        reason="A run compiles as it starts; the ledger tells what is lost.",
    ),
    DashboardLine(
        name="inlet_temperature",
        group="thermal_power",
        says="temperature of the air that enters the node",
        signal=(
            f'max by ({NODE}, chip, sensor) (gpunode_hwmon_temperature_celsius{{place="inlet"}})'
        ),
        unit="celsius",
        comparison=">",
        threshold=35.0,
        scope="node",
        reason="GpuHot and GpuThrottled tell when the GPUs suffer.",
    ),
    DashboardLine(
        name="sm_clock",
        group="thermal_power",
        says="SM clock as a share of its maximum",
        signal=(
            f"{of_gpus('gpunode_gpu_sm_clock_hertz')} / on ({GPU}) "
            f"({of_gpus('gpunode_gpu_sm_clock_max_hertz')} > 0)"
        ),
        unit="percent",
        comparison="<",
        threshold=0.6,
        scope="gpu",
        reason="An idle GPU lowers its clocks; GpuThrottled and GpuSlow tell of lowered ones.",
    ),
    DashboardLine(
        name="power_limit",
        group="thermal_power",
        says="power limit as a share of the board's default",
        signal=(
            f"{of_gpus('gpunode_gpu_power_limit_watts')} / on ({GPU}) "
            f"({of_gpus('gpunode_gpu_power_default_limit_watts')} > 0)"
        ),
        unit="percent",
        comparison="<",
        threshold=LIMIT_LOWERED,
        scope="gpu",
        reason="Somebody has lowered it on purpose.",
    ),
    DashboardLine(
        name="job_memory_growth",
        group="system",
        says="bytes by which a job's memory grows in an hour",
        signal=f"3600 * {of_gpus('deriv(gpunode_job_memory_bytes[1h])')}",
        unit="bytes",
        comparison=">",
        threshold=10e9,
        scope="gpu",
        reason="JobMemoryNearLimit tells when it is about to matter.",
    ),
    DashboardLine(
        name="request_time",
        group="serving",
        says="duration of the slowest 1% of interactive requests",
        signal="job:gpunode_serving_request:p99",
        unit="seconds",
        comparison=">",
        threshold=2.0,
        scope="job",
        reason="A chat streams its answer for longer; ServingSlow compares each with itself.",
    ),
    DashboardLine(
        name="batch_time",
        group="serving",
        says="mean duration of a request, for services that answer in batches",
        signal=of_jobs(
            f"({rate('gpunode_serving_request_seconds_sum')} / on ({GPU}) "
            f"({rate('gpunode_serving_request_seconds_count')} > 0))"
        ),
        unit="seconds",
        comparison=">",
        threshold=0.1,
        scope="job",
        reason="As above.",
    ),
    DashboardLine(
        name="torch_alloc_retries",
        group="memory_precision",
        says="allocations that flushed PyTorch's cache in 15 minutes",
        signal=gained("gpunode_torch_alloc_retries_total"),
        unit="count",
        comparison=">",
        threshold=1.0,
        scope="gpu",
        reason="JobOutOfGpuMemory tells.",
    ),
    DashboardLine(
        name="cpu_quota",
        group="data_ingestion",
        says="share of its CPU quota's periods in which a job is throttled",
        signal=(
            f"{rate('gpunode_job_cpu_quota_throttled_periods_total')} "
            f"/ on ({GPU}) ({rate('gpunode_job_cpu_quota_periods_total')} > 0)"
        ),
        unit="percent",
        comparison=">",
        threshold=QUOTA_THROTTLED,
        scope="gpu",
        reason="It is evidence of the cause data_loading_cpu, which JobStarved names.",
    ),
    DashboardLine(
        name="tcp_retransmitted",
        group="network",
        says="share of the TCP segments that are sent again",
        signal=(
            rate('gpunode_tcp_segments_total{kind="retransmitted"}', NODE)
            + f" / on ({NODE}) ("
            + rate('gpunode_tcp_segments_total{kind="first"}', NODE)
            + " > 100)"
        ),
        unit="percent",
        comparison=">",
        threshold=0.01,
        scope="node",
        reason="NetworkDrops, RdmaErrors and StorageSlow tell when a job suffers.",
    ),
    DashboardLine(
        name="tcp_round_trip",
        group="network",
        says="median of the round-trip times of TCP connections to other machines",
        signal=f"max by ({NODE}) (gpunode_tcp_round_trip_seconds)",
        unit="seconds",
        comparison=">",
        threshold=0.005,
        scope="node",
        reason="What is far away takes long by design; NetworkDrops, RdmaErrors, StorageSlow and "
        "JobCommunicationHigh tell when a job suffers.",
    ),
    DashboardLine(
        name="starved",
        group="data_ingestion",
        says="share of the time in which the GPU is starved",
        signal=state("starved"),
        unit="percent",
        comparison=">",
        threshold=0.1,
        scope="gpu",
        reason="JobStarved tells for the whole job.",
    ),
)

COVERED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("GPU utilisation below 95 % for long", ("JobStarved", "gpu_busy")),
    ("utilisation that swings between 100 and 0", ("JobStarved", "power_swings")),
    ("utilisation that drops suddenly", ("JobStalled", "JobIdle", "JobStarved")),
    ("200 to 300 W of 700 W", ("JobStarved", "power_of_default_limit")),
    ("one CPU core at 100 %", ("JobStarved", "busiest_thread")),
    ("I/O wait", ("NodeStoragePressure", "iowait")),
    ("the DataLoader is late", ("JobStarved", "data_wait")),
    ("Lustre, NFS or disks slower than needed", ("StorageSlow", "shared_filesystem_read")),
    ("a filesystem that does not answer", ("StorageDown",)),
    ("disk at 100 % while GPUs wait", ("NodeStoragePressure", "disk_busy")),
    ("many small files", ("StorageSlow", "lustre_metadata")),
    ("a hot OST", ("StorageSlow", "lustre_busiest_target")),
    ("the data set does not fit into the page cache", ("JobStarved", "page_cache_missed")),
    ("shared memory nearly full", ("ShmNearlyFull",)),
    ("an all-reduce stops", ("JobStalled",)),
    ("NCCL's log waits for a rank", ("JobStalled",)),
    ("NCCL_P2P_DISABLE is set; NCCL over sockets or shared memory", ("JobTransport",)),
    ("NVLink down or not used", ("NvlinkFaulty", "nvlink_used")),
    ("bandwidth between nodes below expectation", ("NcclBandwidthLow", "RdmaErrors")),
    ("latency between nodes", ("tcp_round_trip", "tcp_retransmitted", "RdmaErrors")),
    ("steps take longer; a run is slower than earlier ones", ("JobSlowed", "step_time_of_a_week")),
    ("rank imbalance", ("JobStraggler",)),
    ("communication share", ("JobCommunicationHigh", "JobCongested", "rdma_congestion")),
    ("GPU memory at its limit", ("JobOutOfGpuMemory", "gpu_memory_used")),
    ("GPU memory that grows for hours", ("JobOutOfGpuMemory", "gpu_memory_growth")),
    ("torch.compile compiles again and again", ("torch_recompiled",)),
    ("memory_reserved and allocation retries", ("JobOutOfGpuMemory", "torch_reserved")),
    ("FLOP/s far below the peak", ("mfu",)),
    ("tensor cores idle", ("JobTensorCoresIdle",)),
    ("checkpoints take long", ("JobCheckpointsCostly",)),
    ("a loss that is NaN, or diverges though finite", ("LossDiverges",)),
    ("SMs not filled at 100 % utilisation", ("sm_efficiency",)),
    ("gaps between kernels", ("JobLaunchBound",)),
    ("more than 80 °C", ("GpuHot", "GpuMemoryHot", "GpuThrottled")),
    ("warm air at the inlet", ("GpuHot", "inlet_temperature")),
    ("clocks or power limit lowered", ("GpuSlow", "sm_clock", "power_limit")),
    ("a GPU that is slower than others, from the start", ("GpuSlow",)),
    ("responses within 2 s, batches within 100 ms", ("ServingSlow", "request_time", "batch_time")),
)
"""What users ask to be notified of, and the alerts and lines that answer."""
