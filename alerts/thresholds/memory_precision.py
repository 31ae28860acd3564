"""The memory of a GPU and the precision of its arithmetic."""

from __future__ import annotations

from alerts.thresholds.references import DCGM, TORCH_MEMORY
from alerts.thresholds.row import GPU, Example, Threshold, Tier, gained, rate, series
from gpunode.verdict.limits import MEMORY_FULL

MEMORY_PRECISION = (
    Threshold(
        alert="FrameBufferFull",
        group="memory_precision",
        summary="The memory of a GPU is full",
        summary_ko="GPU 메모리가 가득 찼습니다",
        says="{value} of its memory is in use",
        meaning="PyTorch keeps the memory it once allocated, so this alone is not a fault.",
        remedy="Use smaller batches, activation checkpointing or sharding.",
        source=TORCH_MEMORY,
        signal=(
            f"max by ({GPU}) (gpunode_gpu_memory_used_bytes) / on ({GPU}) "
            f"(max by ({GPU}) (gpunode_gpu_memory_size_bytes) - on ({GPU}) "
            f"max by ({GPU}) (gpunode_gpu_memory_reserved_bytes) > 0)"
        ),
        window="0s",
        unit="percent",
        tiers=(Tier(severity="info", threshold=MEMORY_FULL, after="15m"),),
        example=Example(
            fires={
                series("gpunode_gpu_memory_used_bytes"): 99.0,
                series("gpunode_gpu_memory_size_bytes"): 101.0,
                series("gpunode_gpu_memory_reserved_bytes"): 1.0,
            },
            quiet={series("gpunode_gpu_memory_used_bytes"): 90.0},
            value=0.99,
        ),
    ),
    Threshold(
        alert="TorchAllocRetries",
        group="memory_precision",
        summary="PyTorch flushes its memory cache to allocate",
        summary_ko="PyTorch가 메모리를 비우고 다시 할당하고 있습니다",
        says="allocations that flushed PyTorch's cache in 15 minutes: {value}",
        meaning="A flush synchronises the GPU and returns cached memory to the driver.",
        remedy="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use less memory per step.",
        source=TORCH_MEMORY,
        signal=gained("gpunode_torch_alloc_retries_total"),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=1.0, after="0s"),),
        gate="always",
        example=Example(
            fires={series("gpunode_torch_alloc_retries_total"): 0.02},
            quiet={series("gpunode_torch_alloc_retries_total"): 0.0},
            value=18.0,
        ),
    ),
    Threshold(
        alert="TorchOutOfMemory",
        group="memory_precision",
        summary="A GPU memory allocation failed",
        summary_ko="GPU 메모리 부족(OOM)이 발생했습니다",
        says="failed PyTorch allocations in 15 minutes: {value}",
        meaning="PyTorch counted a CUDA out-of-memory error.",
        remedy="Use smaller batches, activation checkpointing or sharding.",
        source=TORCH_MEMORY,
        signal=gained("gpunode_torch_ooms_total"),
        window="15m",
        unit="count",
        tiers=(Tier(severity="warning", threshold=0.5, after="0s"),),
        gate="always",
        example=Example(
            fires={series("gpunode_torch_ooms_total"): 0.01},
            quiet={series("gpunode_torch_ooms_total"): 0.0},
            value=9.0,
        ),
    ),
    Threshold(
        alert="MfuLow",
        group="memory_precision",
        summary="Training uses little of the GPU's arithmetic",
        summary_ko="모델 FLOPs 이용률(MFU)이 낮습니다",
        says="training reaches {value} of the dense half-precision peak",
        meaning="Large dense models reach 35% to 55% on H100s.",
        remedy="Use larger matrices, fused kernels, FlashAttention or compilation; recompute less.",
        source="https://arxiv.org/abs/2204.02311",
        signal=f"max by ({GPU}) (gpunode_training_mfu_ratio)",
        window="0s",
        unit="percent",
        comparison="<",
        tiers=(Tier(severity="info", threshold=0.25, after="30m"),),
        example=Example(
            fires={series("gpunode_training_mfu_ratio"): 0.15},
            quiet={series("gpunode_training_mfu_ratio"): 0.3},
            value=0.15,
        ),
    ),
    Threshold(
        alert="TensorCoresIdle",
        group="memory_precision",
        summary="Matrix products run without tensor cores",
        summary_ko="텐서 코어를 쓰지 않고 행렬 연산을 하고 있습니다",
        says="the FP32 or FP64 pipe computes the matrix products",
        meaning="The SMs are busy but the tensor cores are idle: BF16, FP8 or TF32 is not in use.",
        remedy='Use torch.autocast, or torch.set_float32_matmul_precision("high").',
        source=DCGM,
        signal=f'max by ({GPU}) (gpunode_gpu_bottleneck{{cause="precision"}})',
        window="0s",
        unit="flag",
        tiers=(Tier(severity="warning", threshold=0.0, after="15m"),),
        example=Example(
            fires={series("gpunode_gpu_bottleneck", cause="precision"): 1.0},
            quiet={series("gpunode_gpu_bottleneck", cause="precision"): 0.0},
            value=1.0,
        ),
    ),
    Threshold(
        alert="CheckpointsCostly",
        group="memory_precision",
        summary="Checkpoints take much of the time",
        summary_ko="체크포인트에 많은 시간이 걸립니다",
        says="training spent {value} of the last hour on checkpoints",
        meaning="Every rank waits while the state is written.",
        remedy="Write asynchronous or sharded checkpoints, to local disks first, or write fewer.",
        source="https://pytorch.org/docs/stable/distributed.checkpoint.html",
        signal=(
            rate('gpunode_training_seconds_total{phase="checkpoint"}', window="1h")
            + f" / ({rate('gpunode_training_seconds_total', window='1h')} > 0)"
        ),
        where=f"and on ({GPU}) max by ({GPU}) (gpunode_training_step_median_seconds)",
        window="1h",
        unit="percent",
        tiers=(Tier(severity="warning", threshold=0.05, after="15m"),),
        gate="always",
        example=Example(
            fires={
                series("gpunode_training_seconds_total", phase="checkpoint"): 0.2,
                series("gpunode_training_seconds_total", phase="step"): 0.8,
                series("gpunode_training_step_median_seconds"): 1.0,
            },
            quiet={
                series("gpunode_training_seconds_total", phase="checkpoint"): 0.02,
                series("gpunode_training_seconds_total", phase="step"): 0.98,
            },
            value=0.2,
        ),
    ),
    Threshold(
        alert="LossNotFinite",
        group="memory_precision",
        summary="The loss is NaN or infinite",
        summary_ko="손실 값이 NaN 또는 무한대입니다",
        says="most losses of the last 10 minutes are NaN or infinite",
        meaning="A gradient scaler skips single steps; when most are bad, the run has diverged.",
        remedy="Go back to a checkpoint, then lower the learning rate or check that rank's GPU.",
        source="https://pytorch.org/docs/stable/amp.html",
        signal=f"1 - max by ({GPU}) (avg_over_time(gpunode_training_loss_finite[10m]))",
        where=f"and on ({GPU}) {gained('gpunode_training_step_seconds_count')} > 0",
        window="10m",
        unit="flag",
        tiers=(Tier(severity="critical", threshold=0.5, after="5m"),),
        gate="always",
        example=Example(
            fires={
                series("gpunode_training_loss_finite"): 0.0,
                series("gpunode_training_step_seconds_count"): 1.0,
            },
            quiet={series("gpunode_training_loss_finite"): 1.0},
            value=1.0,
        ),
    ),
)
