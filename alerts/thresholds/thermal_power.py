"""Heat, power and clocks."""

from __future__ import annotations

from alerts.thresholds.references import NVML
from alerts.thresholds.row import GPU, Example, Threshold, Tier, ledger, rate, series, state
from gpunode.verdict.limits import LIMIT_LOWERED, THROTTLED_SHARE

THERMAL_SLOWDOWN = series("gpunode_gpu_throttled_seconds_total", reason="sw_thermal")
POWER_BRAKE = series("gpunode_gpu_throttled_seconds_total", reason="hw_power_brake")

THERMAL_POWER = (
    Threshold(
        alert="GpuHot",
        group="thermal_power",
        summary="A GPU is hot",
        summary_ko="GPU 온도가 높습니다",
        says="temperature of {value}",
        meaning="No performance is lost yet; GpuThermalSlowdown fires when it is.",
        remedy="Check fans, filters, blanking panels, inlet temperature and cold plates.",
        source=NVML,
        signal=f"max by ({GPU}) (gpunode_gpu_temperature_celsius)",
        window="0s",
        unit="celsius",
        tiers=(Tier(severity="warning", threshold=80.0, after="10m"),),
        gate="always",
        keep_firing_for="10m",
        example=Example(
            fires={series("gpunode_gpu_temperature_celsius"): 84.0},
            quiet={series("gpunode_gpu_temperature_celsius"): 78.0},
            value=84.0,
        ),
    ),
    Threshold(
        alert="GpuThermalSlowdown",
        group="thermal_power",
        summary="Heat lowers a GPU's clocks",
        summary_ko="발열로 GPU 클럭이 낮아졌습니다",
        says="heat lowers its clocks {value} of the time",
        meaning="The driver slows the GPU down to protect it, and counts for how long.",
        remedy="Fix the cooling; until then, keep the node out of large jobs.",
        source=NVML,
        signal=rate('gpunode_gpu_throttled_seconds_total{reason=~"sw_thermal|hw_thermal"}'),
        unit="percent",
        tiers=(
            Tier(severity="warning", threshold=0.01, after="5m"),
            Tier(severity="critical", threshold=0.1, after="5m"),
        ),
        gate="always",
        example=Example(fires={THERMAL_SLOWDOWN: 0.3}, quiet={THERMAL_SLOWDOWN: 0.005}, value=0.3),
    ),
    Threshold(
        alert="GpuPowerBrake",
        group="thermal_power",
        summary="The power brake slows a GPU down",
        summary_ko="외부 전력 제한(power brake)이 걸렸습니다",
        says="the power brake lowers its clocks {value} of the time",
        meaning="The power supply or the rack asserts the GPU's external power brake signal.",
        remedy="Repair the power supply, or reduce the load on the rack.",
        source=NVML,
        signal=rate('gpunode_gpu_throttled_seconds_total{reason="hw_power_brake"}'),
        unit="percent",
        tiers=(Tier(severity="critical", threshold=THROTTLED_SHARE, after="1m"),),
        gate="always",
        example=Example(fires={POWER_BRAKE: 0.5}, quiet={POWER_BRAKE: 0.0}, value=0.5),
    ),
    Threshold(
        alert="GpuPowerLimitLowered",
        group="thermal_power",
        summary="A GPU's power limit is below its default",
        summary_ko="GPU 전력 한도가 낮게 설정되어 있습니다",
        says="its power limit is {value} of the board's default",
        meaning="Somebody lowered the limit, which trades speed for efficiency.",
        remedy="Restore the limit with `nvidia-smi -pl WATTS` if it was not intended.",
        source=NVML,
        signal=(
            f"max by ({GPU}) (gpunode_gpu_power_limit_watts) / on ({GPU}) "
            f"max by ({GPU}) (gpunode_gpu_power_default_limit_watts > 0)"
        ),
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="info", threshold=LIMIT_LOWERED, after="15m"),),
        gate="always",
        example=Example(
            fires={
                series("gpunode_gpu_power_limit_watts"): 500.0,
                series("gpunode_gpu_power_default_limit_watts"): 700.0,
            },
            quiet={series("gpunode_gpu_power_limit_watts"): 700.0},
            value=500 / 700,
        ),
    ),
    Threshold(
        alert="GpuClocksLow",
        group="thermal_power",
        summary="A busy GPU runs at low clocks",
        summary_ko="작업 중인 GPU의 클럭이 낮습니다",
        says="its SMs run at {value} of their highest clock",
        meaning="A GPU at its power limit gives up some clock speed; this is far below that.",
        remedy="Unlock locked clocks with `nvidia-smi -rgc`, or remove what lowers them.",
        source=NVML,
        signal=(
            f"max by ({GPU}) (avg_over_time(gpunode_gpu_sm_clock_hertz[15m])) / on ({GPU}) "
            f"max by ({GPU}) (gpunode_gpu_sm_clock_max_hertz > 0)"
        ),
        where=f"and on ({GPU}) {state('compute')} > 0.5",
        window="15m",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="info", threshold=0.6, after="15m"),),
        example=Example(
            fires={
                series("gpunode_gpu_sm_clock_hertz"): 900e6,
                series("gpunode_gpu_sm_clock_max_hertz"): 1980e6,
                **ledger(starved=0.0),
            },
            quiet={series("gpunode_gpu_sm_clock_hertz"): 1600e6},
            value=900 / 1980,
        ),
    ),
    Threshold(
        alert="GpuMemoryHot",
        group="thermal_power",
        summary="The memory of a GPU is hot",
        summary_ko="GPU 메모리(HBM) 온도가 높습니다",
        says="memory temperature of {value}",
        meaning="HBM has its own temperature limit, above which the driver slows it down.",
        remedy="Act as for GpuHot; replace a board that differs from its peers.",
        source=NVML,
        signal=f"max by ({GPU}) (gpunode_gpu_memory_temperature_celsius)",
        window="0s",
        unit="celsius",
        tiers=(Tier(severity="warning", threshold=95.0, after="10m"),),
        gate="always",
        keep_firing_for="10m",
        example=Example(
            fires={series("gpunode_gpu_memory_temperature_celsius"): 99.0},
            quiet={series("gpunode_gpu_memory_temperature_celsius"): 90.0},
            value=99.0,
        ),
    ),
)
