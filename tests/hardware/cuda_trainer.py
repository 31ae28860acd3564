"""A training loop of known FLOPs on a GPU: ``alone``, ``told`` by gpunode.client, or ``profiled``.

Prints a line when it begins; at the end the seconds of every step, and its FLOPs.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from gpunode import client

SIZE, PRODUCTS = 4096, 18


def main(steps: int, how: str) -> None:
    device = torch.device("cuda", 0)
    left = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    right, product = torch.randn_like(left), torch.empty_like(left)
    flops = 2.0 * SIZE**3 * PRODUCTS
    client.configure(flops_per_token=flops / 1000)
    if how == "profiled":
        client.profile(every=500)
    taken = []
    print("training", flush=True)
    for _ in range(steps):
        begin = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(left, right, out=product)
        torch.cuda.synchronize()
        if how != "alone":
            client.step(tokens=1000, samples=1, loss=0.5)
        taken.append(time.perf_counter() - begin)
    print(json.dumps({"steps": taken, "flops": flops}), flush=True)
    client.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
