"""Random programs as numbers: what a seed draws for each family, without PyTorch.

A family is a kind of work or of trouble, so that a fit can leave a whole one out. A program is
called ``family:seed``, and these two determine it wholly. ``generated`` runs it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.truth.workloads import NO_P2P, Workload

Parameters = dict[str, Any]

PROGRAM = "PROGRAM"
"""The variable of the environment that tells a rank which program it is."""

ENTRY = "generated:program"

LAUNCH = "kernel_launch"
LOADING = "data_loading_cpu"
COPYING = "data_loading_copy"
COMMUNICATION = "communication"


def _log(chance: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform, to three digits."""
    return float(f"{math.exp(chance.uniform(math.log(low), math.log(high))):.3g}")


def _size(chance: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A whole number whose logarithm is uniform; a multiple of another."""
    return max(multiple, round(_log(chance, low, high) / multiple) * multiple)


def _precision(chance: random.Random) -> str:
    return chance.choice(("fp32", "tf32", "bf16", "bf16", "fp16", "fp16", "fp8"))


def _half(chance: random.Random) -> str:
    return chance.choice(("bf16", "bf16", "fp16", "tf32", "fp32"))


def _gap(chance: random.Random, often: float = 0.4) -> Parameters:
    """What the host does between two steps, with the GPU idle."""
    if chance.random() > often:
        return {"gap": "none", "gap_seconds": 0.0, "jitter": 0.0}
    return {
        "gap": chance.choice(("sleep", "burn", "lock")),
        "gap_seconds": _log(chance, 0.0003, 0.06),
        "jitter": chance.choice((0.0, 0.0, 0.3, 1.0)),
    }


def _pace(chance: random.Random, often: float = 0.4) -> Parameters:
    """How long the GPU works in a step, and how steps follow each other."""
    return {
        "seconds": _log(chance, 0.002, 0.15),
        "ahead": chance.random() < 0.5,
        **_gap(chance, often),
    }


def _matmul(chance: random.Random) -> Parameters:
    return {
        "m": _size(chance, 16, 8192, 16),
        "n": _size(chance, 64, 8192, 16),
        "k": _size(chance, 64, 8192, 16),
        "batch": chance.choice((1, 1, 1, 4, 16)),
        "precision": _precision(chance),
    }


def _convolution(chance: random.Random) -> Parameters:
    return {
        "dimensions": chance.choice((1, 2, 2, 2, 3)),
        "batch": _size(chance, 4, 64),
        "channels": _size(chance, 16, 512, 8),
        "size": _size(chance, 14, 112),
        "kernel": chance.choice((1, 3, 3, 5, 7)),
        "depthwise": chance.random() < 0.15,
        "channels_last": chance.random() < 0.6,
        "backward": chance.random() < 0.6,
        "precision": _half(chance),
    }


def _attention(chance: random.Random) -> Parameters:
    return {
        "batch": _size(chance, 1, 32),
        "heads": _size(chance, 4, 32),
        "width": chance.choice((64, 64, 128)),
        "length": _size(chance, 64, 4096, 8),
        "causal": chance.random() < 0.5,
        "backward": chance.random() < 0.5,
        "precision": chance.choice(("bf16", "fp16", "bf16", "fp32")),
    }


def _transformer(chance: random.Random) -> Parameters:
    return {
        "layers": _size(chance, 2, 12),
        "width": chance.choice((256, 512, 768, 1024, 1536)),
        "batch": _size(chance, 1, 16),
        "length": _size(chance, 64, 1024, 8),
        "precision": chance.choice(("bf16", "bf16", "fp16", "tf32", "fp32")),
        "optimizer": chance.choice(("adamw", "fused", "loop", "sgd")),
    }


def _gather(chance: random.Random) -> Parameters:
    return {
        "of": chance.choice(("embedding", "bag", "index_select", "scatter_add")),
        "rows": _size(chance, 10_000, 10_000_000),
        "width": _size(chance, 8, 256, 8),
        "picked": _size(chance, 10_000, 1_000_000),
        "bags": chance.choice((4, 16, 64)),
    }


def _pointwise(chance: random.Random) -> Parameters:
    known = ("add", "gelu", "softmax", "layer_norm", "sum", "sort", "cumsum", "transpose", "sin")
    return {
        "operations": [chance.choice(known) for _ in range(chance.randint(1, 4))],
        "rows": _size(chance, 256, 16384),
        "columns": _size(chance, 64, 8192, 8),
        "precision": chance.choice(("fp32", "bf16", "fp16")),
    }


def _triton(chance: random.Random) -> Parameters:
    return {
        "matmul": chance.choice((0.0, 0.3, 0.6, 1.0)),
        "size": _size(chance, 512, 4096, 128),
        "numbers": _size(chance, 1 << 18, 1 << 26, 1024),
        "arithmetic": chance.choice((1, 1, 4, 16)),
    }


def _compiled(chance: random.Random) -> Parameters:
    return {
        "width": _size(chance, 256, 4096, 64),
        "layers": chance.randint(1, 3),
        "batch": _size(chance, 64, 16384, 8),
        "training": chance.random() < 0.5,
        "precision": chance.choice(("bf16", "bf16", "fp16", "tf32")),
    }


def _graph(chance: random.Random) -> Parameters:
    return {
        "width": _size(chance, 256, 4096, 64),
        "layers": _size(chance, 4, 48),
        "batch": _size(chance, 1, 4096),
        "precision": _half(chance),
    }


def _fft(chance: random.Random) -> Parameters:
    return {
        "dimensions": chance.choice((1, 1, 2, 3)),
        "size": _size(chance, 16, 256, 2),
        "batch": _size(chance, 1, 64),
        "real": chance.random() < 0.5,
        "between": chance.random() < 0.5,
    }


def _sparse(chance: random.Random) -> Parameters:
    return {
        "rows": _size(chance, 5_000, 300_000),
        "each": _size(chance, 4, 64),
        "width": _size(chance, 1, 256),
    }


def _recurrent(chance: random.Random) -> Parameters:
    return {
        "cell": chance.choice(("lstm", "gru", "loop")),
        "width": _size(chance, 64, 1024, 32),
        "layers": chance.randint(1, 3),
        "batch": _size(chance, 8, 256),
        "length": _size(chance, 16, 200),
        "backward": chance.random() < 0.6,
        "precision": chance.choice(("fp32", "tf32", "bf16", "fp16")),
    }


def _decoding(chance: random.Random) -> Parameters:
    return {
        "layers": _size(chance, 4, 24),
        "width": chance.choice((512, 1024, 2048, 4096)),
        "batch": _size(chance, 1, 64),
        "length": _size(chance, 64, 2048, 8),
        "tokens": chance.choice((1, 4, 16)),
        "precision": chance.choice(("bf16", "fp16")),
    }


def _optimizer(chance: random.Random) -> Parameters:
    return {
        "tensors": _size(chance, 10, 200),
        "numbers": _size(chance, 1 << 12, 1 << 22),
        "kind_of": chance.choice(("adamw", "fused", "loop", "sgd", "adagrad")),
    }


KERNELS: dict[str, Callable[[random.Random], Parameters]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "gather": _gather,
    "pointwise": _pointwise,
    "triton": _triton,
    "compiled": _compiled,
    "cuda_graph": _graph,
    "fft": _fft,
    "sparse": _sparse,
    "recurrent": _recurrent,
    "transformer": _transformer,
    "decoding": _decoding,
    "optimizer": _optimizer,
}
"""Kinds of kernels, each a family, and what other families mix."""

PLAIN = (
    "matmul",
    "matmul",
    "convolution",
    "attention",
    "gather",
    "pointwise",
    "fft",
    "transformer",
)
"""Those that are quick to prepare and launch few kernels."""


def _work(chance: random.Random, of: Sequence[str] = PLAIN) -> Parameters:
    """Some work for the GPU, for families that are about something else."""
    kind = chance.choice(of)
    return {"kind": kind, **KERNELS[kind](chance)}


def _attention_lengths(chance: random.Random) -> Parameters:
    return {**_transformer(chance), "longest": _size(chance, 128, 2048, 8), **_pace(chance, 0.2)}


def _host_gaps(chance: random.Random) -> Parameters:
    """Gaps on either side of 20 ms, or both in turn."""
    return {
        "work": _work(chance),
        "seconds": _log(chance, 0.001, 0.05),
        "gaps": [
            {
                "gap": chance.choice(("sleep", "burn", "lock")),
                "gap_seconds": _log(chance, 0.0005, 0.15),
                "jitter": chance.choice((0.0, 0.3, 1.0)),
            }
            for _ in range(chance.randint(1, 3))
        ],
    }


def _streams(chance: random.Random) -> Parameters:
    return {
        "works": [_work(chance) for _ in range(chance.randint(2, 3))],
        "shares": [_log(chance, 0.002, 0.05) for _ in range(3)],
        **_gap(chance, 0.3),
    }


def _copies(chance: random.Random) -> Parameters:
    return {
        "bytes": _size(chance, 1 << 16, 1 << 29),
        "pinned": chance.random() < 0.5,
        "direction": chance.choice(("in", "in", "out", "both")),
        "hidden": chance.random() < 0.4,
        "pieces": _size(chance, 1, 16),
        "work": _work(chance),
        **_pace(chance, 0.3),
    }


def _files(chance: random.Random) -> Parameters:
    return {
        "bytes": _size(chance, 1 << 22, 1 << 28),
        "mapped": chance.random() < 0.3,
        "work": _work(chance),
        **_pace(chance, 0.2),
    }


def _allocator(chance: random.Random) -> Parameters:
    return {
        "empty_cache": chance.random() < 0.7,
        "tensors": _size(chance, 4, 64),
        "bytes": _size(chance, 1 << 20, 1 << 27),
        "work": _work(chance),
        "seconds": _log(chance, 0.002, 0.05),
        "ahead": False,
        **_gap(chance, 0.2),
    }


def _loader(chance: random.Random) -> Parameters:
    return {
        "workers": chance.choice((1, 2, 4, 8)),
        "item_seconds": _log(chance, 0.002, 0.1),
        "waits": chance.random() < 0.3,
        "items": chance.choice((1, 4, 8)),
        "bytes": _size(chance, 1 << 12, 1 << 20),
        "pinned": chance.random() < 0.6,
        "work": _work(chance),
        "seconds": _log(chance, 0.005, 0.1),
        "ahead": chance.random() < 0.5,
        **_gap(chance, 0.0),
    }


def _preparation(chance: random.Random) -> Parameters:
    return {
        "of": chance.choice(("tokenising", "sampling", "numpy", "python")),
        "amount": _log(chance, 0.003, 0.2),
        "bytes": _size(chance, 1 << 12, 1 << 25),
        "work": _work(chance),
        "seconds": _log(chance, 0.003, 0.08),
        "ahead": chance.random() < 0.3,
        **_gap(chance, 0.0),
    }


def _threads(chance: random.Random) -> Parameters:
    return {
        "threads": _size(chance, 1, 8),
        "rest": chance.choice((0.0, 0.0, 0.001, 0.01)),
        "work": _work(chance, (*PLAIN, "transformer", "decoding", "recurrent", "optimizer")),
        **_pace(chance, 0.2),
    }


def _one_core(chance: random.Random) -> Parameters:
    return {
        "work": _work(chance, (*PLAIN, "transformer", "transformer", "optimizer", "decoding")),
        "workers": chance.choice((0, 1, 2)),
        "item_seconds": _log(chance, 0.001, 0.03),
        **_pace(chance, 0.2),
    }


def _offload(chance: random.Random) -> Parameters:
    return {
        "numbers": _size(chance, 1 << 16, 1 << 25),
        "threads": chance.choice((1, 4, 8)),
        "pinned": chance.random() < 0.5,
        "work": _work(chance),
        "seconds": _log(chance, 0.003, 0.08),
        "ahead": False,
        **_gap(chance, 0.0),
    }


def _shared(chance: random.Random) -> Parameters:
    return {"work": _work(chance), **_pace(chance, 0.5)}


def _launcher(chance: random.Random) -> Parameters:
    return {
        "work": _work(chance, ("recurrent", "decoding", "transformer", "matmul", "gather")),
        **_pace(chance, 0.4),
    }


def _mixture(chance: random.Random) -> Parameters:
    few = ("recurrent", "decoding", "optimizer", "sparse", "cuda_graph")
    count = chance.randint(2, 4)
    return {
        "works": [_work(chance, PLAIN + few) for _ in range(count)],
        "shares": [_log(chance, 0.0005, 0.05) for _ in range(count)],
        "ahead": chance.random() < 0.5,
        **_gap(chance, 0.4),
    }


def _mixture_host(chance: random.Random) -> Parameters:
    """Kernels, copies, allocations and gaps in one step."""
    return {
        **_mixture(chance),
        "bytes": _size(chance, 1 << 16, 1 << 27),
        "pinned": chance.random() < 0.5,
        "direction": chance.choice(("in", "out", "both")),
        "empty_cache": chance.random() < 0.25,
        **_gap(chance, 0.8),
    }


LIBRARIES = (
    *("GPT2", "GPTNeoX", "Llama", "BERT"),
    *("resnet50", "convnext_tiny", "vit_small_patch16_224", "efficientnet_b0"),
    *("GAT", "GPyTorch", "e3nn", "Numba", "Diffrax", "JAX", "CuPy"),
)
"""What ``libraries`` runs: models of transformers, with peft's adapters or without, of timm, PyG,
GPyTorch and e3nn, and programs of Numba, Diffrax, JAX and CuPy."""


def _libraries(chance: random.Random) -> Parameters:
    return {
        "of": chance.choice(LIBRARIES),
        "batch": _size(chance, 1, 64),
        "length": _size(chance, 32, 512, 8),
        "half": chance.random() < 0.6,
        "training": chance.random() < 0.7,
        "adapters": chance.random() < 0.3,
        "generates": chance.random() < 0.3,
        **_pace(chance, 0.4),
    }


KINDS_OF_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
)


def _exchange(chance: random.Random) -> Parameters:
    return {
        "collective": chance.choice(KINDS_OF_COLLECTIVES),
        "bytes": _size(chance, 1 << 10, 1 << 28, 1024),
        "pieces": _size(chance, 1, 16),
        "work": _work(chance),
        **_pace(chance, 0.3),
    }


def _overlapped(chance: random.Random) -> Parameters:
    return {**_exchange(chance), "bytes": _size(chance, 1 << 20, 1 << 28, 1024)}


def _late(chance: random.Random) -> Parameters:
    return {
        **_exchange(chance),
        "late": chance.choice((0, 1, -1)),
        "late_seconds": _log(chance, 0.001, 0.2),
        "late_by": chance.choice(("sleep", "burn", "kernels")),
        "late_jitter": chance.choice((0.0, 0.5, 1.0)),
    }


def _parallel(chance: random.Random) -> Parameters:
    return {
        "model": chance.choice(("transformer", "transformer", "mlp", "convolutions")),
        "channels": _size(chance, 32, 256, 32),
        "bucket_mb": chance.choice((1, 25, 100)),
        **_transformer(chance),
        "precision": "bf16",
        **_gap(chance, 0.3),
    }


def _objects(chance: random.Random) -> Parameters:
    return {
        "numbers": _size(chance, 10, 300_000),
        "late": chance.choice((0, 1, -1)),
        "late_seconds": _log(chance, 0.001, 0.1),
        "work": _work(chance),
        **_pace(chance, 0.2),
    }


@dataclass(frozen=True, slots=True)
class Family:
    """How its programs are drawn, and where they run."""

    draw: Callable[[random.Random], Parameters]
    gpus: int = 1
    copies: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    room: str = "alone"
    """Programs of the same room can run in one process, one after the other."""


def _kernels(draw: Callable[[random.Random], Parameters]) -> Callable[[random.Random], Parameters]:
    return lambda chance: {**draw(chance), **_pace(chance)}


def _pair(draw: Callable[[random.Random], Parameters]) -> Family:
    return Family(draw, gpus=2, room="pair")


def _without_p2p(draw: Callable[[random.Random], Parameters]) -> Family:
    return Family(draw, gpus=2, room="no_p2p", environment=tuple(NO_P2P.items()))


UNJOINED = (("WORLD_SIZE", "2"), ("RANK", "0"))
"""What a launcher may set for processes that never talk to each other."""

FAMILIES: dict[str, Family] = {
    **{name: Family(_kernels(draw)) for name, draw in KERNELS.items()},
    "attention_lengths": Family(_attention_lengths),
    "host_gaps": Family(_host_gaps),
    "streams": Family(_streams),
    "copies": Family(_copies),
    "files": Family(_files),
    "allocator": Family(_allocator),
    "loader": Family(_loader),
    "preparation": Family(_preparation),
    "threads": Family(_threads),
    "one_core": Family(_one_core),
    "offload": Family(_offload),
    "mixture": Family(_mixture),
    "mixture_host": Family(_mixture_host),
    "libraries": Family(_libraries),
    "shared_gpu": Family(_shared, copies=2, room="shared"),
    "launcher": Family(_launcher, copies=2, environment=UNJOINED, room="launcher"),
    "launcher_pair": Family(_launcher, gpus=2, room="launcher_pair"),
    "collectives": _pair(_exchange),
    "no_p2p": _without_p2p(_exchange),
    "overlapped": _pair(_overlapped),
    "late_ranks": _pair(_late),
    "ddp": _pair(_parallel),
    "ddp_no_p2p": _without_p2p(_parallel),
    "fsdp": _pair(_parallel),
    "objects": Family(_objects, gpus=2, room="objects"),
}


def parameters(family: str, seed: int) -> Parameters:
    """What that seed draws. Raises ``KeyError`` for a family that there is not."""
    return FAMILIES[family].draw(random.Random(f"{family}:{seed}"))


def split_name(program: str) -> tuple[str, int]:
    """Family and seed of ``family:seed``."""
    family, _, seed = program.partition(":")
    return family, int(seed)


def series(programs: Sequence[str]) -> Workload:
    """Programs of one room, as the bench starts them: in the same processes.

    Which causes are right differs from program to program: ``expected`` tells.
    """
    kinds = [FAMILIES[split_name(name)[0]] for name in programs]
    assert len({kind.room for kind in kinds}) == 1
    name = " ".join(programs)
    return Workload(
        name,
        ENTRY,
        ("",) * kinds[0].gpus,
        copies=kinds[0].copies,
        environment={PROGRAM: name, **dict(kinds[0].environment)},
    )
