"""A training-like loop: matrix products, and an all-reduce where there are several GPUs.

Reads seconds from standard input, a number a line, steps for that long and answers with the time of
every step.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed


def main(rank: int, ranks: int) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    if ranks > 1:
        torch.distributed.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    left = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    right, product = torch.randn_like(left), torch.empty_like(left)
    gradient = torch.zeros(16 << 20, device=device, dtype=torch.bfloat16)
    for line in sys.stdin:
        count = torch.tensor(round(float(line) / 0.004), device=device)
        steps = []
        for _ in range(int(count)):
            begin = time.perf_counter()
            for _ in range(18):
                torch.mm(left, right, out=product)
            if ranks > 1:
                torch.distributed.all_reduce(gradient)
            torch.cuda.synchronize()
            steps.append(time.perf_counter() - begin)
        print(json.dumps(steps), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
