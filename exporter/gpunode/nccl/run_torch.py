"""Measures a collective with torch.distributed and prints the result like nccl-tests.

Runs as a program with the arguments COLLECTIVE GPUS LARGEST.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SMALLEST = 8 << 20
WARM_UP, TIMES = 5, 20


def size_of(text: str) -> int:
    """Parse a size such as 8G into bytes."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)


def bus_factor(collective: str, ranks: int) -> float:
    """Ratio of bus to algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0


def operate(distributed: Any, collective: str, whole: Any, part: Any, received: Any) -> None:
    """Run a collective on the tensor ``whole``, of which each rank has a ``part``.

    ``received`` is where an all-to-all writes: a tensor as large as ``whole``.
    """
    if collective == "all_reduce":
        distributed.all_reduce(whole)
    elif collective == "all_gather":
        distributed.all_gather_into_tensor(whole, part)
    elif collective == "reduce_scatter":
        distributed.reduce_scatter_tensor(part, whole)
    elif collective == "alltoall":
        distributed.all_to_all_single(received, whole)
    elif collective == "broadcast":
        distributed.broadcast(whole, 0)
    else:
        raise SystemExit(f"{collective}: not supported with torch; install nccl-tests")


def run(rank: int, collective: str, ranks: int, largest: int, port: int) -> None:
    """Measure all sizes as one rank."""
    import torch
    from torch import distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    size = SMALLEST
    while size <= largest:
        count = size // 2 // ranks * ranks
        whole = torch.zeros(count, dtype=torch.bfloat16, device=device)
        part = torch.zeros(count // ranks, dtype=torch.bfloat16, device=device)
        received = torch.empty_like(whole if collective == "alltoall" else part)
        for turn in range(WARM_UP + TIMES):
            if turn == WARM_UP:
                torch.cuda.synchronize()
                distributed.barrier()
                torch.cuda.synchronize()
                begin = time.perf_counter()
            operate(distributed, collective, whole, part, received)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / TIMES
        if rank == 0:
            speed = size / seconds / 1e9
            columns = (
                f"{seconds * 1e6:.1f} {speed:.2f} {speed * bus_factor(collective, ranks):.2f} 0"
            )
            print(f"{size} {count} bfloat16 sum -1 {columns} {columns}", flush=True)
        del whole, part, received
        size *= 2
    distributed.destroy_process_group()


def main(collective: str, ranks: int, largest: str) -> None:
    """Run each rank in its own process."""
    from torch import multiprocessing

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    multiprocessing.spawn(run, (collective, ranks, size_of(largest), port), nprocs=ranks)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
