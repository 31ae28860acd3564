"""Kernels that do not fill the GPU."""

from __future__ import annotations

from alerts.examples import TRAINS, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import JOB
from alerts.recording.parts import BY_SERVICE, SERVERS
from alerts.recording.parts import LAUNCHES as LAUNCHED
from alerts.settings import SERVER_LAUNCHES
from alerts.thresholds.references import LEDGER
from gpunode.gpu.activity import SHORT_GAPS
from gpunode.verdict.causes.limits import LAUNCHES

GAPS = series(SHORT_GAPS.name)

KERNELS = (
    Threshold(
        alert="JobLaunchBound",
        group="kernels",
        summary="A job's GPUs wait for kernels to be launched",
        summary_ko="커널 런치가 늦어 작업의 GPU가 대기하고 있습니다",
        says="loses {value} of the time to gaps between small kernels",
        when="training loses {value} of the time to gaps between small kernels, or a service "
        "{server_launches}",
        meaning="The CPU launches kernels more slowly than the GPU runs them.",
        remedy="If the verdict is kernel_launch, use CUDA graphs, torch.compile, larger batches or "
        "a faster CPU or governor. Else do what the verdict advises: the process may sleep between "
        "kernels (`gpunode stacks --pid PID`).",
        source=LEDGER,
        record="job:gpunode_launch:ratio",
        signal=(
            f"{LAUNCHED.over_nodes()} and on ({JOB}) job:gpunode_training:gpus "
            f"or on ({BY_SERVICE}) ({LAUNCHED.over_nodes(BY_SERVICE)} > {SERVER_LAUNCHES} "
            f"and on ({BY_SERVICE}) {SERVERS})"
        ),
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=LAUNCHES, after="30m"),),
        scope="job",
        of_owner=True,
        example=Example(fires={**TRAINS, GAPS: 0.5}, quiet={GAPS: 0.1}, value=0.5),
    ),
)
