"""Kernels that do not fill the GPU."""

from __future__ import annotations

from alerts.thresholds.references import DCGM, LEDGER
from alerts.thresholds.row import GPU, Example, Threshold, Tier, ledger, rate, series, state

KERNELS = (
    Threshold(
        alert="SmEfficiencyLow",
        group="kernels",
        summary="Kernels use few of the SMs",
        summary_ko="SM 효율이 낮습니다",
        says="{value} of the SMs are active while kernels run",
        meaning="The driver reports full utilisation, but the kernels are too small for the GPU.",
        remedy="Use larger batches, fused kernels, CUDA graphs or torch.compile.",
        source=DCGM,
        signal=(
            rate('gpunode_gpu_active_seconds_total{unit="sm"}')
            + " / ("
            + rate('gpunode_gpu_active_seconds_total{unit="graphics"}')
            + " > 0.5)"
        ),
        where=f"unless on ({GPU}) ({state('blocked')} + on ({GPU}) {state('communication')}) > 0.1",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="info", threshold=0.5, after="30m"),),
        example=Example(
            fires={
                series("gpunode_gpu_active_seconds_total", unit="sm"): 0.3,
                series("gpunode_gpu_active_seconds_total", unit="graphics"): 1.0,
                **ledger(blocked=0.0, communication=0.0),
            },
            quiet={series("gpunode_gpu_active_seconds_total", unit="sm"): 0.7},
            value=0.3,
        ),
    ),
    Threshold(
        alert="LaunchBound",
        group="kernels",
        summary="A GPU waits for kernels to be launched",
        summary_ko="커널 실행 지연으로 GPU가 쉬고 있습니다",
        says="loses {value} of the time to gaps between small kernels",
        meaning="The CPU launches kernels more slowly than the GPU runs them.",
        remedy="Use CUDA graphs, torch.compile, larger batches, or a faster CPU or governor.",
        source=LEDGER,
        signal=state("launch"),
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.15, after="15m"),),
        example=Example(fires=ledger(launch=0.5), quiet=ledger(launch=0.1), value=0.5),
    ),
)
