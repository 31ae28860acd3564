"""A training that saves its state, is killed at a known step, and goes on from its checkpoint.

It notes when each step and checkpoint ended, which is the truth. ``client`` or ``none`` is how it
reports.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from gpunode import client

STEP, STEPS, SAVED_EVERY, DIES_AT = 1.0, 12, 4, 7


def main(folder: Path, way: str) -> None:
    """Train until killed, or from the checkpoint to the end."""
    model = torch.nn.Linear(3000, 3000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saved, begin = folder / "checkpoint", 0
    if saved.exists():
        state = torch.load(saved)
        begin = state["step"]
        model.load_state_dict(state["model"])
    with (folder / "truth").open("a") as truth:
        for number in range(begin + 1, STEPS + 1):
            optimizer.zero_grad()
            model(torch.randn(8, 3000)).square().mean().backward()
            optimizer.step()
            time.sleep(STEP)
            if way == "client":
                client.step(number=number)
            print("step", number, time.time(), file=truth, flush=True)
            if number % SAVED_EVERY == 0:
                torch.save({"step": number, "model": model.state_dict()}, saved)
                print("saved", number, time.time(), file=truth, flush=True)
            if number == DIES_AT and not begin:
                time.sleep(STEP / 2)
                print("killed", number, time.time(), file=truth, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    input()  # once the daemon knows that this process has a GPU
    main(Path(sys.argv[1]), sys.argv[2])
    time.sleep(2.5)  # the daemon hears of the last step
