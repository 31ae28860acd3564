"""Two ranks train, and another program comes to the GPU of one: how soon that GPU is named.

As ``python -m bench.neighbour RANK PORT`` it is a rank, and with one argument, a number of a
GPU, the neighbour.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.report import Report, Result, machine
from tests.daemon import Daemon, daemon, free_port

ALONE, BESIDE = 20.0, 75.0
"""Seconds before the neighbour comes, and with it."""

MULTIPLICATIONS, SIDE = 40, 4096
"""Of matrices, in each step of a rank."""

TARGET = 60.0


def train(rank: int, port: int) -> None:
    """Compute and add up gradients as one of two ranks, and print the time of each step."""
    import torch
    from torch import distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", rank=rank, world_size=2, device_id=device)
    matrix = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    gradients = torch.zeros(8 << 20, device=device)
    while True:
        begin = time.perf_counter()
        for _ in range(MULTIPLICATIONS):
            matrix @ matrix
        distributed.all_reduce(gradients)
        torch.cuda.synchronize()
        print(time.time(), time.perf_counter() - begin, flush=True)


def disturb(gpu: int) -> None:
    """Multiply matrices on a GPU that others use."""
    import torch

    torch.cuda.set_device(gpu)
    matrix = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    while True:
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()


@contextmanager
def _running(*arguments: object, out: Path) -> Iterator[None]:
    with out.open("w") as file:
        command = [sys.executable, "-m", "bench.neighbour", *map(str, arguments)]
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            child.kill()
            child.wait()


def _waited_for(one: Daemon) -> tuple[str, list[str]]:
    """The cause of the first GPU, and the GPUs that it waits for."""
    verdicts = {each["gpu"]: each for each in json.loads(one.get("/api/v1/verdict"))}
    first = verdicts.get("0", {"cause": "", "waits_for": []})
    return first["cause"], [late["at"][0] for late in first["waits_for"]]


def neighbour(folder: Path) -> Report:
    """Measure on the first two GPUs; the neighbour comes to the second."""
    steps, port = folder / "steps", free_port()
    told: list[tuple[float, str, list[str]]] = []
    with ExitStack() as running:
        for rank in (0, 1):
            out = steps if rank == 0 else Path(os.devnull)
            running.enter_context(_running(rank, port, out=out))
        one = running.enter_context(daemon("--log.level=error"))
        time.sleep(ALONE)
        before = _waited_for(one)
        began = time.time()
        running.enter_context(_running(1, out=Path(os.devnull)))
        while time.time() < began + BESIDE:
            cause, late = _waited_for(one)
            told.append((time.time() - began, cause, late))
            time.sleep(0.5)
    times = [tuple(map(float, line.split())) for line in steps.read_text().splitlines()[:-1]]
    alone = statistics.median(took for at, took in times if began - 10 < at < began)
    beside = statistics.median(took for at, took in times if began + 10 < at)
    named = next((at for at, _, late in told if late == ["1"]), None)
    right = [late == ["1"] for at, _, late in told if named is not None and at >= named]
    return Report(
        "A GPU that another program slows",
        machine(),
        f"Two ranks multiply matrices and add up gradients with NCCL. After {ALONE:g} s another "
        "program begins to multiply matrices on the second GPU, which its rank then shares.",
        [
            Result(
                "GPU that the other waits for named after",
                f"{named:.1f} s" if named is not None else "never",
                f"≤ {TARGET:g} s",
                named is not None and named <= TARGET,
            ),
            Result(
                "looks after that which name it and no other",
                f"{sum(right)} of {len(right)}",
                "≥ 95 %",
                bool(right) and sum(right) >= 0.95 * len(right),
            ),
            Result(
                "named before the program came",
                ", ".join(before[1]) or "nobody",
                "nobody",
                not before[1],
            ),
            Result(
                "median step before and beside it", f"{1e3 * alone:.2f} and {1e3 * beside:.2f} ms"
            ),
        ],
        [
            f"{at:.1f} s: GPU 0 {cause}, waits for {', '.join(late) or 'nobody'}"
            for at, cause, late in _changes(told)
        ],
    )


def _changes(told: list[tuple[float, str, list[str]]]) -> Iterator[tuple[float, str, list[str]]]:
    last: tuple[str, list[str]] | None = None
    for at, cause, late in told:
        if (cause, late) != last:
            last = cause, late
            yield at, cause, late


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(int(sys.argv[1]), int(sys.argv[2]))
    else:
        disturb(int(sys.argv[1]))
