"""One rank of a job that hangs: trains for a while, then its last rank stands still.

Orders come on standard input, as for ``bench.truth.rank``: ``start`` once it has loaded,
``go`` once it is ready.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.hangs import beat
from bench.hangs.ways import BY_NAME, INSIDE, LIBRARY, NATIVE, Around, Way
from bench.truth.rank import say
from gpunode import client

HEALTHY_FOR = 5.0
"""Seconds of training before it hangs."""

CONTAINER = """
mount --rbind / "$0" && mount -t proc proc "$0/proc" &&
exec chroot "$0" sh -c 'cd "$0" && exec "$@"' "$@"
"""


def enter_container(folder: Path) -> None:
    """Go on as the first process of a PID namespace, with a root of its own."""
    root = folder / "root"
    root.mkdir()
    os.environ[INSIDE] = "1"
    namespaces = ["unshare", "--fork", "--pid", "--mount", "--propagation", "private"]
    again = [sys.executable, "-m", "bench.hangs.rank", *sys.argv[1:]]
    os.execvp("unshare", [*namespaces, "sh", "-c", CONTAINER, str(root), os.getcwd(), *again])


class Training:
    """Steps of a training on a GPU, or on a CPU where there is none."""

    def __init__(self, gpu: int) -> None:
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", gpu) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", device_id=self.device)
        else:
            dist.init_process_group("gloo")
        size = 4096 if on_gpu else 256
        self.left = torch.randn(size, size, device=self.device)
        self.gradient = torch.zeros(size * size, device=self.device)
        self.over = torch.zeros((), device=self.device)
        self.wait = torch.cuda.synchronize if on_gpu else lambda: time.sleep(0.01)

    def step(self, over: bool) -> bool:
        """One step, after which all ranks know whether it was the last healthy one."""
        for _ in range(20):
            torch.mm(self.left, self.left)
        dist.all_reduce(self.gradient)
        self.over.fill_(float(over))
        dist.broadcast(self.over, 0)
        self.wait()
        client.step()
        return bool(self.over.item())

    def second_group(self) -> Any:
        """Another communicator of the same ranks, in use."""
        group = dist.new_group()
        dist.all_reduce(self.over, group=group)
        self.over.zero_()
        self.wait()
        return group


def main(name: str, gpu: int, shared: Path) -> None:
    """Be one process of a job that hangs."""
    rank = int(os.environ["RANK"])
    last = rank == int(os.environ["WORLD_SIZE"]) - 1
    folder = shared.parent
    way = BY_NAME.get(name)
    if way is not None and not way.python:
        os.execv(os.environ[NATIVE], [NATIVE, str(gpu), str(folder / "id")])
    if name == "container" and last and INSIDE not in os.environ:
        enter_container(folder)
    say("loaded")
    sys.stdin.readline()
    training = Training(gpu)
    group = training.second_group() if way is not None and way.all_wait else None
    library = Path(os.environ[LIBRARY])
    beat.begin(library, folder / f"beats.{rank}")
    for _ in range(5):
        training.step(over=False)
    say("ready")
    sys.stdin.readline()
    began = time.monotonic()
    with (folder / f"steps.{rank}").open("w", buffering=1) as steps:
        before = time.perf_counter()
        while not training.step(way is not None and time.monotonic() - began > HEALTHY_FOR):
            now = time.perf_counter()
            steps.write(f"{time.time()} {now - before}\n")
            before = now
    assert way is not None
    if last:
        say("hangs")
        hang(way, Around(folder, library, group), training)
    while True:
        training.step(over=False)


def hang(way: Way, around: Around, training: Training) -> None:
    """Stand still, or be slow from now on."""
    way.hangs(around)
    while way.slow:
        training.step(over=False)
        way.hangs(around)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[4]))
