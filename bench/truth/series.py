"""Programs that a process runs one after the other, so that CUDA and its tracer start once.

It takes the place of ``rank`` for generated programs, whose names are in the environment. Orders
come on standard input: ``start`` at first; for each program ``next`` prepares it, ``go`` begins its
steps, ``trace`` the tracer, and ``stop`` ends both. Each answer has the program's number.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import mmap
import os
import queue
import struct
import sys
import threading
import time
from pathlib import Path

import torch

from bench.truth import generated
from bench.truth.drawn import PROGRAM
from bench.truth.pieces import clean_up
from bench.truth.rank import Rank, Step, say, traced, tracer
from bench.truth.series_files import names_file, trace_file

AHEAD = 0.3
"""Seconds of steps that all ranks still do after rank 0 was told to stop."""

NAMES = 8
"""How many names of kernels are kept, of those that ran longest."""

SLOT = struct.Struct("=q")
"""The number of steps after which all ranks end a program; there is one for each program."""


class Orders:
    """What the bench says, in order."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # A loader's worker closes sys.stdin, whose lock this thread would hold when it forks.
        with open(0, "rb", buffering=0, closefd=False) as orders:
            for line in orders:
                self.lines.put(line.decode().strip())
        os._exit(0)

    def wait_for(self, word: str) -> None:
        while self.lines.get() != word:
            pass

    def now(self) -> str:
        """The next order, or none."""
        try:
            return self.lines.get_nowait()
        except queue.Empty:
            return ""


def steps(
    step: Step, rank: Rank, orders: Orders, number: int, shared: mmap.mmap
) -> torch.profiler.profile | None:
    """Step until all ranks have done as many steps as rank 0 says once it is told to stop."""
    profiler, last, done = None, 0, 0
    begin = time.monotonic()
    while not last or done < last:
        order = orders.now()
        if order == "trace":
            profiler = tracer()
            profiler.start()
            say(f"tracing {number}")
        if order == "stop" and rank.rank == 0:
            each = (time.monotonic() - begin) / max(1, done)
            ahead = 1 + math.ceil(AHEAD / max(each, 1e-6)) if rank.ranks > 1 else 0
            SLOT.pack_into(shared, number * SLOT.size, done + 1 + ahead)
        step()
        done += 1
        last = SLOT.unpack_from(shared, number * SLOT.size)[0]
    return profiler


def one(name: str, number: int, rank: Rank, orders: Orders, shared: mmap.mmap, copies: int) -> None:
    """Prepare, run and trace a program."""
    os.environ[PROGRAM] = name
    step = generated.program(rank)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    say(f"ready {number}")
    orders.wait_for("go")
    rank.began = time.monotonic()
    profiler = steps(step, rank, orders, number, shared)
    torch.cuda.synchronize()
    clean_up()
    if profiler is None:
        return
    profiler.stop()
    say(f"stopped {number}")
    trace = traced(profiler, in_turns=copies > 1)
    trace.save(trace_file(rank.folder, os.getpid(), number))
    longest = sorted(trace.names.items(), key=lambda each: -each[1])[:NAMES]
    names_file(rank.folder, os.getpid(), number).write_text(json.dumps(longest))
    say(f"traced {number}")


def main(gpu: int, copies: int, path: Path) -> None:
    """Be one process of every program of the series, on a GPU."""
    programs = os.environ[PROGRAM].split()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool would outlive its program
    if any(name.startswith("compiled") for name in programs):
        importlib.import_module("torch._dynamo")
    say("loaded")
    orders = Orders()
    orders.wait_for("start")
    rank = Rank(gpu, path)
    with tracer():  # the first one takes seconds to start
        torch.ones(1, device=rank.device)
        torch.cuda.synchronize()
    say("begun")
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    for number, name in enumerate(programs):
        orders.wait_for("next")
        rank.began = math.inf
        try:
            one(name, number, rank, orders, shared, copies)
        except Exception as error:
            if rank.ranks > 1 or "CUDA error" in str(error):
                raise  # other ranks would wait for ever, and a context that failed stays so
            clean_up()
            first = (str(error).splitlines() or [""])[0][:200]
            say(f"failed {number} {type(error).__name__}: {first}")
        gc.collect()
        torch.cuda.empty_cache()
    os._exit(0)  # a program may hold threads and process groups that would wait for each other


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
