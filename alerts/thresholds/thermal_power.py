"""Heat, power and clocks."""

from __future__ import annotations

from alerts.examples import series
from alerts.model import FOR_HOURS, Example, Threshold, Tier
from alerts.promql import GPU, of_gpus
from alerts.recording.compared import gpus_at
from alerts.recording.faults import THERMAL_SLOWDOWN
from alerts.settings import SLOW_GPU, THROTTLED_AGAIN, THROTTLED_OFTEN
from alerts.thresholds.references import NVML

NOW = "gpu:gpunode_gpu_throttled:ratio"

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
        when="its clocks are lowered {value} of five minutes, or {throttled_often} of an hour and "
        "in {throttled_again} of its twelve parts ({fault})",
        meaning="The driver slows the GPU down to protect it, and counts for how long.",
        remedy="Fix the cooling or the power supply; until then, keep the node out of large jobs.",
        source=NVML,
        record="gpu:gpunode_gpu_throttled:lasting",
        signal=(
            f"{NOW} > {THROTTLED_OFTEN} or on ({GPU}, fault) "
            f"(gpu:gpunode_gpu_throttled:ratio1h > {THROTTLED_OFTEN} "
            f"and on ({GPU}, fault) count_over_time(({NOW} > 0)[1h:5m]) >= {THROTTLED_AGAIN} "
            f"and on ({GPU}, fault) count_over_time(({NOW} > 0)[15m:5m])) "
            f"or on ({GPU}, fault) {NOW}"
        ),
        window="1h",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.01, after="10m"),),
        scope="gpu",
        labels=("fault",),
        every=FOR_HOURS,
        keep_firing_for="15m",
        example=Example(
            fires={THERMAL_SLOWDOWN: 0.3},
            quiet={THERMAL_SLOWDOWN: 0.005},
            value=0.3,
            labels={"fault": "thermal"},
        ),
    ),
    Threshold(
        alert="GpuSlow",
        group="thermal_power",
        summary="A GPU is slower than others that do the same",
        summary_ko="같은 일을 하는 다른 GPU보다 느립니다",
        says="its {what} is {value} of what others reach",
        when="its {what} is {value} of what others reach, where {compared_least} or more can be "
        "compared: an SM clock under load, without throttling and at a draw of {near_power_limit} "
        "of the limit, with the upper quartile of its model; a rate of HBM with the lower quartile "
        "of its job or service",
        meaning="Locked clocks, or memory that is slower than it should be, perhaps for as long as "
        "anyone has looked.",
        remedy="Unlock the clocks, or have the GPU tested before the next large job.",
        source="https://arxiv.org/abs/2402.15627",
        record="gpu:gpunode_gpu_pace:ratio_to_others",
        window="15m",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="ticket", threshold=SLOW_GPU.figure, after="30m"),),
        scope="gpu",
        labels=("what",),
        needs_all_nodes=True,
        every="1m",
        keep_firing_for="15m",
        example=Example(
            fires=gpus_at(2e9, 1e9),
            quiet={series("gpunode_gpu_sm_clock_hertz"): 1.9e9},
            value=0.5,
            labels={"what": "SM clock"},
        ),
    ),
)
