"""The memory of a GPU, the precision of its arithmetic, checkpoints and the loss."""

from __future__ import annotations

from alerts.examples import HELD_B, TRAINS, series
from alerts.model import FOR_DAYS, Example, Threshold, Tier
from alerts.promql import JOB
from alerts.recording.parts import CHECKPOINTS, LOSS_TO_BEST, MEMORY_FAILURES
from alerts.thresholds.references import DCGM, TORCH_MEMORY

STEPS = series("gpunode_training_step_median_seconds")

MEMORY_PRECISION = (
    Threshold(
        alert="JobOutOfGpuMemory",
        group="memory_precision",
        summary="A job runs out of GPU memory",
        summary_ko="작업의 GPU 메모리가 부족합니다",
        says="PyTorch allocations that failed or flushed its cache in 15 minutes: {value}",
        meaning="PyTorch had to give back reserved memory, which stops the GPU, or failed to "
        "get any.",
        remedy="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use less memory per step.",
        source=TORCH_MEMORY,
        record="job:gpunode_torch_memory:failures",
        signal=MEMORY_FAILURES.over_nodes(),
        window="15m",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=1.0, after="1m"),),
        scope="job",
        of_owner=True,
        example=Example(
            fires={
                **TRAINS,
                series("gpunode_torch_alloc_retries_total"): 0.02,
                series("gpunode_torch_ooms_total"): 0.0,
            },
            quiet={series("gpunode_torch_alloc_retries_total"): 0.0},
            value=18.0,
        ),
    ),
    Threshold(
        alert="JobTensorCoresIdle",
        group="memory_precision",
        summary="A job's matrix products run without tensor cores",
        summary_ko="작업이 텐서 코어를 쓰지 않고 행렬 연산을 하고 있습니다",
        says="GPUs of the job whose FP32 or FP64 pipe computes the matrix products: {value}",
        meaning="The SMs are busy but the tensor cores are idle: BF16, FP8 or TF32 is not in use.",
        remedy='Use torch.autocast, or torch.set_float32_matmul_precision("high").',
        source=DCGM,
        record="job:gpunode_tensor_cores_idle:gpus",
        signal=f'sum by ({JOB}) (job:gpunode_gpu_bottleneck:count{{cause="precision"}})',
        window="0s",
        unit="count",
        tiers=(Tier(severity="ticket", threshold=0.0, after="15m"),),
        scope="job",
        of_owner=True,
        example=Example(
            fires={**TRAINS, series("gpunode_gpu_bottleneck", cause="precision"): 1.0},
            quiet={series("gpunode_gpu_bottleneck", cause="precision"): 0.0},
            value=1.0,
        ),
    ),
    Threshold(
        alert="JobCheckpointsCostly",
        group="memory_precision",
        summary="Checkpoints take much of a job's time",
        summary_ko="체크포인트에 많은 시간이 걸립니다",
        says="training spent {value} of the last hour on checkpoints",
        meaning="Every rank waits while the state is written.",
        remedy="Write asynchronous or sharded checkpoints, to local disks first, or write fewer.",
        source="https://pytorch.org/docs/stable/distributed.checkpoint.html",
        record="job:gpunode_checkpoints:ratio",
        signal=CHECKPOINTS.over_nodes()
        + f" unless on ({JOB}) last_over_time(job:gpunode_event:gpus[1h])",
        window="1h",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.05, after="30m"),),
        scope="job",
        of_owner=True,
        every=FOR_DAYS,
        example=Example(
            fires={
                **TRAINS,
                series("gpunode_training_seconds_total", phase="checkpoint"): 0.2,
                series("gpunode_training_seconds_total", phase="step"): 0.8,
                STEPS: 1.0,
            },
            quiet={
                series("gpunode_training_seconds_total", phase="checkpoint"): 0.02,
                series("gpunode_training_seconds_total", phase="step"): 0.98,
            },
            value=0.2,
        ),
    ),
    Threshold(
        alert="LossDiverges",
        group="memory_precision",
        summary="The loss of a job diverges",
        summary_ko="작업의 손실(loss)이 발산하고 있습니다",
        says="the loss has been {value} times as high as at its best for half an hour, or is NaN "
        "or infinite",
        meaning="The optimizer no longer learns, or already computes with NaN.",
        remedy="Go back to a checkpoint, then lower the learning rate or check that rank's GPU.",
        source="https://pytorch.org/docs/stable/amp.html",
        record="job:gpunode_training_loss:ratio_to_best",
        signal=LOSS_TO_BEST.over_nodes(),
        window="0s",
        unit="number",
        tiers=(
            Tier(
                severity="ticket",
                threshold=2.0,
                after="5m",
                record="job:gpunode_training_loss:diverged",
            ),
            Tier(
                severity="page",
                threshold=0.0,
                after="5m",
                record="job:gpunode_training_loss:to_page",
                says="ranks whose last reported loss is NaN or infinite, of a job with "
                "{paged_gpus} GPUs: {value}",
                unit="count",
            ),
        ),
        scope="job",
        of_owner=True,
        example=Example(
            fires={
                **TRAINS,
                **HELD_B,
                series("gpunode_training_loss"): 9.0,
                series("gpunode_training_loss_best"): 3.0,
                series("gpunode_training_loss_finite"): 0.0,
            },
            quiet={
                series("gpunode_training_loss"): 3.2,
                series("gpunode_training_loss_finite"): 1.0,
            },
            value=3.0,
        ),
    ),
)
