"""One rank of a workload: prepares, waits for ``go``, steps until told to stop.

Its program is a function that takes a ``Rank`` and returns the function that does one step. Orders
come on standard input. What it says goes to standard output, a line of JSON each: when, and a word.
From ``trace`` on, every kernel and copy is traced (CUPTI, CUDA activities only) and in the end kept
in a file.
"""

from __future__ import annotations

import importlib
import json
import math
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from bench.truth.kernels import Trace

Step = Callable[[], object]


def say(word: str) -> None:
    """Tell the bench where the rank is, or what its GPU does from now on if nothing is traced."""
    print(json.dumps([time.time(), word]), flush=True)


def burn(seconds: float) -> None:
    """Work on one thread in Python."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(500))


class Rank:
    """What a program knows of its place."""

    def __init__(self, gpu: int, shared: Path) -> None:
        self.rank = int(os.environ.get("RANK", 0))
        self.ranks = int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device("cuda", gpu)
        self.folder = shared.parent
        self.began = math.inf
        """When the measured steps began, on the monotonic clock."""
        torch.cuda.set_device(self.device)
        torch.manual_seed(self.rank)

    def join(self) -> None:
        """Form a process group over NCCL, if there is none."""
        if dist.is_initialized():
            return
        dist.init_process_group("nccl", device_id=self.device)

    @property
    def running_for(self) -> float:
        """Seconds since the measured steps began; negative before."""
        return time.monotonic() - self.began


def tracer() -> torch.profiler.profile:
    """A tracer of CUDA activities alone."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def traced(profiler: torch.profiler.profile, in_turns: bool) -> Trace:
    """What a tracer that was stopped has seen run on the GPU."""
    cuda = torch.autograd.DeviceType.CUDA
    events = profiler.profiler.kineto_results.events()
    return Trace.of(events, lambda event: event.device_type() == cuda, in_turns)


class Orders:
    """What the bench says while the rank steps: a thread listens."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.trace = False
        self.stop = False
        self.shared = shared
        """The number of steps after which all ranks end, once rank 0 has set it."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "trace":
                self.trace = True
            elif line.strip() == "stop":
                self.stop = True

    @property
    def last(self) -> int:
        return int(struct.unpack("=q", self.shared[:8])[0])


def steps(step: Step, rank: Rank, orders: Orders) -> torch.profiler.profile | None:
    """Step until the last step; returns the tracer, if told to trace.

    All ranks must do the same number of steps, or one would wait for ever in a collective. Once
    told to stop, rank 0 sets a number that no rank can have reached: what it does in a second.
    """
    profiler = None
    done = 0
    begin = time.monotonic()
    while not orders.last or done < orders.last:
        if orders.trace and profiler is None:
            profiler = tracer()
            profiler.start()
        if orders.stop and rank.rank == 0 and not orders.last:
            each = (time.monotonic() - begin) / max(1, done)
            ahead = 1 + math.ceil(1.0 / max(each, 1e-6)) if rank.ranks > 1 else 0
            orders.shared[:8] = struct.pack("=q", done + 1 + ahead)
        step()
        done += 1
    return profiler


def main(program: str, gpu: int, copies: int, shared: Path) -> None:
    """Be one process of a program on a GPU, which takes turns with its copies there.

    ``shared`` is the file that all its ranks share.
    """
    module, function = program.split(":")
    prepare = getattr(importlib.import_module(f"bench.truth.{module}"), function)
    say("loaded")
    sys.stdin.readline()
    rank = Rank(gpu, shared)
    step: Step = prepare(rank)
    with tracer():  # the first one takes seconds to start
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    say("ready")
    sys.stdin.readline()
    with shared.open("r+b") as file:
        orders = Orders(mmap.mmap(file.fileno(), 8))
    rank.began = time.monotonic()
    profiler = steps(step, rank, orders)
    torch.cuda.synchronize()
    if profiler is not None:
        profiler.stop()
        traced(profiler, in_turns=copies > 1).save(rank.folder / f"trace.{os.getpid()}.npz")
        say("traced")
    os._exit(0)  # a program may hold threads and process groups that would wait for each other


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
