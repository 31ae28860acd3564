"""Keeps one GPU at one thing after another, for ``gpunode calibrate``; takes PyTorch.

Runs as a program with the UUID of a GPU, or of two, in CUDA_VISIBLE_DEVICES. It says ``ready`` and
how many SMs the GPU has. Then it does what each line of standard input names, says ``begun``, and
goes on until the next line comes.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

BATCH = 8
"""Operations that are launched at a time, before a look at standard input."""

LARGE = 8192
"""Rows and columns of a matrix: a product of two fills any GPU."""

STREAMED = 1 << 28
"""Numbers of 4 bytes that an elementwise kernel goes through: more than any cache holds."""

REDUCED = 1 << 28
"""Numbers of 2 bytes in a collective."""


COLLECTIVE_TIMEOUT = 60.0
"""Seconds for two processes to begin a collective."""


def operations(torch: Any, device: Any) -> dict[str, Callable[[], object]]:
    """What can be asked for, by name; each does it once."""
    torch.backends.cuda.matmul.allow_tf32 = False
    half = torch.randn(LARGE, LARGE, device=device, dtype=torch.bfloat16)
    single = torch.randn(LARGE, LARGE, device=device)
    stream = torch.randn(STREAMED, device=device)
    return {
        "tensor": lambda: half @ half,
        "pipe": lambda: single @ single,
        "dram": lambda: stream.mul_(1.0),
    }


def repeat(torch: Any, operation: Callable[[], object], lines: Any) -> None:
    """Do one thing until a line comes."""
    print("begun", flush=True)
    while not select.select([lines], [], [], 0)[0]:
        for _ in range(BATCH):
            operation()
        torch.cuda.synchronize()


def collective(torch: Any, lines: Any) -> None:
    """All-reduce between both GPUs until a line comes; each is a rank of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    begun, ended = context.Event(), context.Event()
    ranks = [
        context.Process(target=reduce, args=(rank, port, begun, ended), daemon=True)
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    if not begun.wait(COLLECTIVE_TIMEOUT):
        sys.exit(f"the collective did not begin within {COLLECTIVE_TIMEOUT:g} s")
    print("begun", flush=True)
    select.select([lines], [], [])
    ended.set()
    for rank in ranks:
        rank.join(20.0)


def reduce(rank: int, port: int, begun: Any, ended: Any) -> None:
    """One rank: both stop after the same number of rounds, as the first says when."""
    import torch
    from torch import distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", rank=rank, world_size=2, device_id=device)
    numbers = torch.zeros(REDUCED, dtype=torch.bfloat16, device=device)
    goes_on = torch.ones(1, device=device)
    while bool(goes_on.item()):
        for _ in range(4 * BATCH):
            distributed.all_reduce(numbers)
        torch.cuda.synchronize()
        begun.set()
        goes_on.fill_(0.0 if ended.is_set() else 1.0)
        distributed.broadcast(goes_on, 0)
    distributed.destroy_process_group()


def main() -> None:
    """Run the tasks that standard input names, until it ends."""
    import torch

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    known = operations(torch, device)
    for name in ("tensor", "pipe"):
        known[name]()
    torch.cuda.synchronize()
    # Unbuffered: select() does not see a line that a buffer already holds.
    lines = os.fdopen(sys.stdin.fileno(), "rb", buffering=0)
    print("ready", torch.cuda.get_device_properties(device).multi_processor_count, flush=True)
    while name := lines.readline().decode().strip():
        if name == "rest":
            print("begun", flush=True)
            select.select([lines], [], [])
        elif name == "collective":
            collective(torch, lines)
        else:
            repeat(torch, known[name], lines)


if __name__ == "__main__":
    main()
