"""What panels draw beside a figure that alerts nobody: by itself it harms nobody.

A figure may be a property of the model or of the site; the alerts tell when a job suffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dashboards.promql import GPU, NODE, gained, of_gpus, rate, ratio, share
from dashboards.rules import Comparison, Limit
from gpunode.verdict.causes.data import DISK_BUSY, QUOTA_THROTTLED
from gpunode.verdict.causes.host import THREAD_BUSY
from gpunode.verdict.causes.limits import LIMIT_LOWERED, MEMORY_FULL


@dataclass(frozen=True, slots=True)
class Line:
    """What is asked, and the figure beyond which it is worth a look."""

    signal: str
    comparison: Comparison
    threshold: float

    @property
    def limit(self) -> Limit:
        return Limit(self.threshold, self.comparison)


SIZE = of_gpus("gpunode_gpu_memory_size_bytes")

LINES: Mapping[str, Line] = {
    "power_swings": Line(f"60 * {rate('gpunode_gpu_power_swings_total')}", ">", 6.0),
    "power_of_default_limit": Line(
        ratio(
            rate("gpunode_gpu_energy_joules_total"),
            of_gpus("gpunode_gpu_power_default_limit_watts"),
        ),
        "<",
        0.43,
    ),
    "busiest_thread": Line(of_gpus("gpunode_job_busiest_thread_ratio"), ">", THREAD_BUSY),
    "iowait": Line(
        rate('gpunode_cpu_seconds_total{mode="iowait"}', NODE)
        + f" / on ({NODE}) sum by ({NODE}) (max by ({NODE}, node) (gpunode_cpu_cores) > 0)",
        ">",
        0.2,
    ),
    "disk_busy": Line(rate("gpunode_disk_busy_seconds_total", f"{NODE}, disk"), ">", DISK_BUSY),
    "lustre_metadata": Line(
        rate("gpunode_lustre_operations_total", f"{NODE}, filesystem"), ">", 5000.0
    ),
    "lustre_busiest_target": Line(
        f"max by ({NODE}, filesystem, target) (gpunode_lustre_busiest_target_ratio)", ">", 0.5
    ),
    "page_cache_missed": Line(
        rate('gpunode_job_io_bytes_total{direction="read"}')
        + f" / on ({GPU}) ({rate('gpunode_job_read_call_bytes_total')} > 1e6)",
        ">",
        0.5,
    ),
    "nvlink_used": Line(
        ratio(
            rate("gpunode_gpu_nvlink_bytes_total"),
            of_gpus("gpunode_gpu_nvlink_speed_bytes_per_second"),
        ),
        "<",
        0.01,
    ),
    "rdma_congestion": Line(
        rate("gpunode_infiniband_congestion_events_total", f"{NODE}, device, port"), ">", 10_000.0
    ),
    "gpu_memory_used": Line(
        f"{of_gpus('gpunode_gpu_memory_used_bytes')} / on ({GPU}) "
        f"({SIZE} - on ({GPU}) {of_gpus('gpunode_gpu_memory_reserved_bytes')} > 0)",
        ">",
        MEMORY_FULL,
    ),
    "gpu_memory_growth": Line(
        f"3600 * {of_gpus('deriv(gpunode_gpu_memory_used_bytes[3h])')}", ">", 1e9
    ),
    "mfu": Line(of_gpus("gpunode_training_mfu_ratio"), "<", 0.25),
    "sm_efficiency": Line(
        rate('gpunode_gpu_active_seconds_total{unit="sm"}')
        + f" / on ({GPU}) ("
        + rate('gpunode_gpu_active_seconds_total{unit="graphics"}')
        + " > 0.05)",
        "<",
        0.5,
    ),
    "torch_recompiled": Line(gained("gpunode_torch_compiled_graphs_total"), ">", 10.0),
    "inlet_temperature": Line(
        f'max by ({NODE}, chip, sensor) (gpunode_hwmon_temperature_celsius{{place="inlet"}})',
        ">",
        35.0,
    ),
    "sm_clock": Line(
        share("gpunode_gpu_sm_clock_hertz", "gpunode_gpu_sm_clock_max_hertz"),
        "<",
        0.6,
    ),
    "power_limit": Line(
        share("gpunode_gpu_power_limit_watts", "gpunode_gpu_power_default_limit_watts"),
        "<",
        LIMIT_LOWERED,
    ),
    "job_memory_growth": Line(
        f"3600 * {of_gpus('deriv(gpunode_job_memory_bytes[1h])')}", ">", 1e10
    ),
    "cpu_quota": Line(
        ratio(
            rate("gpunode_job_cpu_quota_throttled_periods_total"),
            rate("gpunode_job_cpu_quota_periods_total"),
        ),
        ">",
        QUOTA_THROTTLED,
    ),
    "tcp_retransmitted": Line(
        rate('gpunode_tcp_segments_total{kind="retransmitted"}', NODE)
        + f" / on ({NODE}) ("
        + rate('gpunode_tcp_segments_total{kind="first"}', NODE)
        + " > 100)",
        ">",
        0.01,
    ),
    "tcp_round_trip": Line(f"max by ({NODE}) (gpunode_tcp_round_trip_seconds)", ">", 0.005),
}
"""By name."""

ANY = Limit(0.0, ">")
SLOWED_DOWN = Limit(0.01, ">")
"""The share of the time."""

PRESSURE = Limit(0.2, ">")
OPEN_FILES = Limit(0.9, ">")
