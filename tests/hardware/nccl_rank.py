"""A rank of an NCCL job of which the last rank does not join after a while."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed


def main(seconds: float) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=device)
    gradient = torch.zeros(16 << 20, dtype=torch.bfloat16, device=device)
    end = time.monotonic() + seconds
    while True:
        go_on = torch.tensor(float(time.monotonic() < end), device=device)
        torch.distributed.broadcast(go_on, 0)
        if not go_on.item():
            break
        torch.distributed.all_reduce(gradient)
    if rank == ranks - 1:
        print("stalled", time.time(), flush=True)
        time.sleep(300)
    torch.distributed.all_reduce(gradient)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(float(sys.argv[1]))
