"""What generated programs are made of: work that is repeated, gaps, and the pace of both."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.truth.drawn import Parameters
from bench.truth.rank import Rank, Step, burn

MAX_REPETITIONS = 400
"""The most repetitions of a piece of work in a step."""

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}

BUILD: dict[str, Callable[[Rank, Parameters], Step]] = {}
"""What prepares a piece of work or a family, by its name in ``drawn``."""

Builder = Callable[[Rank, Parameters], Step]

ENDS: list[Callable[[], object]] = []
"""What ends that which a program has begun beside its steps."""


def clean_up() -> None:
    """End what the last program began beside its steps."""
    while ENDS:
        ENDS.pop()()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


def builds(name: str) -> Callable[[Builder], Builder]:
    def keep(builder: Builder) -> Builder:
        BUILD[name] = builder
        return builder

    return keep


def synchronize() -> None:
    torch.cuda.synchronize()


def dtype_of(p: Parameters) -> torch.dtype:
    """The type of a precision, with TF32 switched as it says."""
    allowed = p["precision"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    return DTYPES[p["precision"]]


def took(step: Step) -> float:
    """Seconds of one step, once it is warm."""
    for _ in range(2):
        step()
    synchronize()
    begin = time.perf_counter()
    step()
    synchronize()
    return max(1e-6, time.perf_counter() - begin)


def repeated(step: Step, seconds: float) -> Step:
    """As many of a step as take about that long."""
    count = max(1, min(MAX_REPETITIONS, round(seconds / took(step))))
    if count == 1:
        return step

    def steps() -> None:
        for _ in range(count):
            step()

    return steps


def work(rank: Rank, p: Parameters, seconds: float) -> Step:
    """Some work for the GPU that takes about that long."""
    return repeated(BUILD[p["kind"]](rank, p), seconds)


def gap(p: Parameters) -> Step:
    """What the host does meanwhile, for a random time."""
    chance = random.Random(0)
    mean, jitter = p["gap_seconds"], p["jitter"]
    kind = p["gap"]

    def seconds() -> float:
        return float(mean * (1 + jitter * (2 * chance.random() - 1)))

    if kind == "sleep":
        return lambda: time.sleep(seconds())
    if kind == "burn":
        return lambda: burn(seconds())
    if kind == "lock":
        never = threading.Event()
        return lambda: never.wait(seconds())
    return lambda: None


def paced(step: Step, p: Parameters) -> Step:
    """A step, then a gap; the host waits for this step or, if it runs ahead, for the one before."""
    wait = gap(p)
    if p["gap"] != "none" or not p["ahead"]:

        def steps() -> None:
            step()
            synchronize()
            wait()

        return steps
    before: list[Any] = []

    def ahead() -> None:
        step()
        done = torch.cuda.Event()
        done.record()
        before.append(done)
        if len(before) > 1:
            before.pop(0).synchronize()

    return ahead


def make_module(rank: Rank, make: Callable[[], nn.Module]) -> nn.Module:
    """A module whose weights begin on the GPU, where they are drawn sooner."""
    with rank.device:
        return make()


def random_tensor(rank: Rank, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=rank.device).to(dtype)
