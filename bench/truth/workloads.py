"""The workloads: what runs on which GPU, and the causes that a verdict on it may rightly name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Workload:
    """A program of one process a rank, and what is right to say of each GPU that it uses."""

    name: str
    program: str
    """``module:function`` below ``bench.truth``."""

    causes: tuple[str, ...]
    """For each GPU, the causes that are right, separated by spaces."""

    copies: int = 1
    """Processes on each GPU, which know nothing of each other if there are several."""

    kinds: str = "training unknown"
    """What ``gpunode_gpu_workload`` may rightly say, separated by spaces."""

    seconds: float = 18.0
    """How long it is watched."""

    traced: float = 8.0
    """Seconds at the end in which every kernel is traced. If 0, the ranks say themselves what their
    GPUs do: a tracer would wait for a hang."""

    stalls: bool = False
    """Whether the last rank stops joining after a while, which must be noticed."""

    awaited: tuple[int, str] | None = None
    """The rank for which the others wait, and the reason that is right; empty if any is."""

    environment: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """How many GPUs it uses."""
        return len(self.causes)


NOTHING = "nothing"
"""Stands for a cause where there is no verdict on a GPU."""

HEALTHY = "none memory_bandwidth memory_capacity"
HOST = "host_compute data_loading_cpu"
STALLED = "stalled_collective"
NO_P2P = {"NCCL_P2P_DISABLE": "1"}


def _stall(name: str, program: str, reason: str, causes: tuple[str, str]) -> Workload:
    """The last of two ranks stops joining; without a ``reason`` any is right."""
    return Workload(
        name,
        program,
        causes,
        seconds=24.0,
        traced=0.0,
        stalls=True,
        awaited=(1, reason),
    )


WORKLOADS = (
    # Several GPUs.
    Workload("DDP transformer", "parallel:ddp", (HEALTHY,) * 2),
    Workload("DDP without P2P", "parallel:ddp_small", ("communication",) * 2, environment=NO_P2P),
    Workload("DDP, gaps of a few ms", "parallel:ddp_gaps", ("kernel_launch " + HEALTHY,) * 2),
    Workload("DDP ResNet, JPEG files", "parallel:resnet", ("data_loading_cpu straggler",) * 2),
    Workload("FSDP transformer", "parallel:fsdp", (HEALTHY,) * 2),
    Workload("FSDP, small batches", "parallel:fsdp_small", ("kernel_launch straggler",) * 2),
    Workload(
        "tensor parallel decoding",
        "parallel:tensor_parallel",
        ("kernel_launch straggler communication",) * 2,
        kinds="training serving unknown",
    ),
    Workload(
        "tensor parallel training",
        "parallel:tensor_parallel_training",
        ("communication " + HEALTHY,) * 2,
    ),
    Workload("pipeline with bubbles", "parallel:pipeline", ("straggler",) * 2),
    Workload("MoE all-to-all", "parallel:moe", ("communication " + HEALTHY,) * 2),
    Workload("a slow rank", "parallel:slow_rank", ("straggler", HOST)),
    Workload(
        "rank 0 evaluates",
        "parallel:evaluation",
        (HEALTHY, "straggler"),
        traced=18.0,
        awaited=(0, "evaluating"),
    ),
    Workload(
        "checkpoint, synchronous",
        "parallel:checkpoint",
        ("checkpoint", "straggler"),
        awaited=(0, "checkpointing"),
    ),
    Workload("checkpoint, asynchronous", "parallel:checkpoint_async", (HEALTHY,) * 2),
    # Stalls.
    _stall("hang in a large all-reduce", "stalls:large", "", (STALLED, "unexplained")),
    _stall("hang in a scalar all-reduce", "stalls:scalar", "", (STALLED, "unexplained")),
    _stall("a stopped rank", "stalls:stopped", "stopped", (STALLED, "stopped")),
    _stall("a killed rank", "stalls:killed", "gone", (STALLED, f"{NOTHING} none")),
    _stall(
        "a rank in a Python loop",
        "stalls:looping",
        "cpu_bound",
        (f"{STALLED} straggler", "host_compute"),
    ),
    _stall("a rank in D state", "stalls:uninterruptible", "uninterruptible", (STALLED, "stopped")),
    # One GPU.
    Workload("ResNet, JPEG files", "single:resnet", ("data_loading_cpu",)),
    Workload("tokenising on the main thread", "single:tokenise", (HOST,)),
    Workload("pageable copies", "single:pageable", ("data_loading_copy",)),
    Workload("hidden prefetch", "single:prefetch", (HEALTHY,)),
    Workload("optimizer on the CPU", "single:offload", ("host_compute",)),
    Workload("torch.compile", "single:compiling", ("compile",), traced=0.0),
    # These launch so many kernels that a long trace would take minutes to read.
    Workload(
        "eager decoding", "single:decode", ("kernel_launch",), kinds="unknown serving", traced=7.5
    ),
    Workload(
        "decoding with CUDA graphs",
        "single:decode_graph",
        (HEALTHY + " kernel_launch",),
        kinds="unknown serving",
        traced=4.5,
    ),
    Workload("serving random requests", "single:serve", ("no_requests",), kinds="serving"),
    Workload("fp32 by mistake", "single:fp32", ("precision",)),
    Workload("LSTM", "single:lstm", ("kernel_launch none",)),
    Workload("embedding gathers", "single:embedding", (HEALTHY + " kernel_launch",)),
    Workload("threads that share the GIL", "single:gil", (HOST,)),
    Workload("two processes on one GPU", "single:vision", (HEALTHY,), copies=2),
    Workload("JAX training", "other:jax_training", (HEALTHY + " kernel_launch",)),
    Workload("CuPy spectra", "other:cupy_spectra", (HEALTHY + " kernel_launch",)),
)

BY_NAME = {workload.name: workload for workload in WORKLOADS}


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of that program, of that module, or with that in their name; all for no name.

    Raises ``LookupError`` for a name that none has.
    """
    found = {name: [workload for workload in WORKLOADS if _is(workload, name)] for name in names}
    if unknown := [name for name, those in found.items() if not those]:
        raise LookupError(f"no workload is called {', '.join(unknown)}")
    every = [workload for those in found.values() for workload in those]
    return [workload for workload in WORKLOADS if not names or workload in every]


def _is(workload: Workload, name: str) -> bool:
    module = workload.program.partition(":")[0]
    return name in (workload.program, module) or name in workload.name
