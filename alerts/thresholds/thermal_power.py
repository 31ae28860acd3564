"""Heat, power and clocks."""

from __future__ import annotations

from alerts.examples import series
from alerts.model import Example, Threshold, Tier
from alerts.promql import of_gpus
from alerts.recording.faults import THERMAL_SLOWDOWN
from alerts.thresholds.references import NVML

THERMAL_POWER = (
    Threshold(
        alert="GpuHot",
        group="thermal_power",
        summary="A GPU is hot",
        summary_ko="GPU 온도가 높습니다",
        says="its temperature is {value}",
        meaning="No performance is lost yet; GpuThrottled fires when it is.",
        remedy="Check fans, filters, blanking panels, inlet temperature and cold plates.",
        source=NVML,
        record="gpu:gpunode_gpu_temperature:celsius",
        signal=of_gpus("gpunode_gpu_temperature_celsius"),
        window="0s",
        unit="celsius",
        tiers=(Tier(severity="ticket", threshold=80.0, after="15m"),),
        scope="gpu",
        fault="thermal",
        keep_firing_for="15m",
        example=Example(
            fires={series("gpunode_gpu_temperature_celsius"): 84.0},
            quiet={series("gpunode_gpu_temperature_celsius"): 78.0},
            value=84.0,
        ),
    ),
    Threshold(
        alert="GpuMemoryHot",
        group="thermal_power",
        summary="The memory of a GPU is hot",
        summary_ko="GPU 메모리(HBM) 온도가 높습니다",
        says="the temperature of its memory is {value}",
        meaning="HBM has its own temperature limit, above which the driver slows it down.",
        remedy="Act as for GpuHot; replace a board that differs from its peers.",
        source=NVML,
        record="gpu:gpunode_gpu_memory_temperature:celsius",
        signal=of_gpus("gpunode_gpu_memory_temperature_celsius"),
        window="0s",
        unit="celsius",
        tiers=(Tier(severity="ticket", threshold=95.0, after="15m"),),
        scope="gpu",
        fault="thermal",
        keep_firing_for="15m",
        example=Example(
            fires={series("gpunode_gpu_memory_temperature_celsius"): 99.0},
            quiet={series("gpunode_gpu_memory_temperature_celsius"): 90.0},
            value=99.0,
        ),
    ),
    Threshold(
        alert="GpuThrottled",
        group="thermal_power",
        summary="Heat or the power supply lowers a GPU's clocks",
        summary_ko="발열 또는 전원 문제로 GPU 클럭이 낮아졌습니다",
        says="its clocks are lowered {value} of the time ({fault})",
        meaning="The driver slows the GPU down to protect it, and counts for how long.",
        remedy="Fix the cooling or the power supply; until then, keep the node out of large jobs.",
        source=NVML,
        record="gpu:gpunode_gpu_throttled:ratio",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.01, after="10m"),),
        scope="gpu",
        labels=("fault",),
        keep_firing_for="15m",
        example=Example(
            fires={THERMAL_SLOWDOWN: 0.3},
            quiet={THERMAL_SLOWDOWN: 0.005},
            value=0.3,
            labels={"fault": "thermal"},
        ),
    ),
)
