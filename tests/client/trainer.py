"""A training process: a small PyTorch model on the CPU that tells gpunode.client how it goes.

Standard library and torch only: it runs under whichever Python has torch.
"""

from __future__ import annotations

import sys
import time

import torch

from gpunode import client


def main(steps: int, pause: float) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [torch.randn(8, 64) for _ in range(steps)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    client.configure(flops_per_token=6 * 64 * 64)
    client.profile(every=20)
    for batch in client.watch(loader):
        optimizer.zero_grad()
        loss = ((model(batch) - batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
        client.step(tokens=8 * 64, samples=8, loss=loss.item())
    with client.phase("checkpoint"):
        time.sleep(0.2)
    client.follow(optimizer)
    optimizer.step()
    client.request(0.03, batch=4)
    client.flush()
    print(f"{loss.item():.6f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
