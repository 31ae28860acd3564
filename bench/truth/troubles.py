"""Generated programs of one GPU whose host, memory or neighbours hold them up."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bench.truth.drawn import Parameters
from bench.truth.gpu_work import (
    WORDS,
    Language,
    training,
)
from bench.truth.pieces import (
    ENDS,
    builds,
    make_module,
    paced,
    synchronize,
    work,
)
from bench.truth.rank import Rank, Step, burn


@builds("attention_lengths")
def attention_lengths(rank: Rank, p: Parameters) -> Step:
    """Training on sequences of random lengths."""
    model = make_module(rank, lambda: Language(p["width"], p["layers"]))
    step = training(p, model)
    chance = random.Random(0)

    def steps() -> None:
        length = chance.randint(16, p["longest"])
        step(torch.randint(0, WORDS, (p["batch"], length), device=rank.device))

    return paced(steps, p)


@builds("host_gaps")
def host_gaps(rank: Rank, p: Parameters) -> Step:
    step = work(rank, p["work"], p["seconds"])
    gaps = [paced(step, {**each, "ahead": False}) for each in p["gaps"]]
    turn = itertools.cycle(gaps)
    return lambda: next(turn)()


@builds("streams")
def streams(rank: Rank, p: Parameters) -> Step:
    parts = []
    for each, seconds in zip(p["works"], p["shares"], strict=False):
        parts.append((torch.cuda.Stream(), work(rank, each, seconds)))
    synchronize()

    def step() -> None:
        for stream, part in parts:
            with torch.cuda.stream(stream):
                part()

    return paced(step, {**p, "ahead": False})


def copying(rank: Rank, p: Parameters) -> Step:
    """Copies of what is drawn, on the current stream."""
    piece = max(1024, p["bytes"] // p.get("pieces", 1))
    count = min(p.get("pieces", 1), 16)
    host = torch.empty(piece, dtype=torch.uint8)
    if p["pinned"]:
        host = host.pin_memory()
    device = torch.zeros(piece, dtype=torch.uint8, device=rank.device)

    def step() -> None:
        for _ in range(count):
            if p["direction"] != "out":
                device.copy_(host, non_blocking=True)
            if p["direction"] != "in":
                host.copy_(device, non_blocking=True)

    return step


@builds("copies")
def copies(rank: Rank, p: Parameters) -> Step:
    copy = copying(rank, p)
    busy = work(rank, p["work"], p["seconds"])
    side = torch.cuda.Stream()

    def step() -> None:
        if p["hidden"]:
            busy()
            with torch.cuda.stream(side):
                copy()
        else:
            copy()
            busy()

    return paced(step, {**p, "ahead": p["ahead"] and not p["hidden"]})


@builds("files")
def files(rank: Rank, p: Parameters) -> Step:
    path = rank.folder / f"weights.{os.getpid()}.pt"
    torch.save(torch.randn(p["bytes"] // 4), path)
    busy = work(rank, p["work"], p["seconds"])

    def step() -> None:
        options = {"mmap": True} if p["mapped"] else {}
        torch.load(path, map_location="cpu", **options).to(rank.device)
        busy()

    return paced(step, p)


@builds("allocator")
def allocator(rank: Rank, p: Parameters) -> Step:
    """Memory that is taken from the driver and given back in every step."""
    count = min(p["tensors"], (1 << 33) // p["bytes"])
    busy = work(rank, p["work"], p["seconds"])
    size = max(p["bytes"], 32 << 20)  # smaller ones come out of blocks that the allocator keeps

    def step() -> None:
        held = [torch.empty(size, dtype=torch.uint8, device=rank.device) for _ in range(count)]
        for each in held[:4]:
            each.zero_()
        busy()
        del held
        if p["empty_cache"]:
            torch.cuda.empty_cache()

    return paced(step, p)


class Items(Dataset):
    """What a worker takes a while to make."""

    def __init__(self, p: Parameters) -> None:
        self.seconds = p["item_seconds"] / p["items"]
        self.waits = p["waits"]
        self.size = p["bytes"]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        if self.waits:
            time.sleep(self.seconds)
        else:
            burn(self.seconds)
        return torch.full((self.size,), index % 256, dtype=torch.uint8)


@builds("loader")
def loader(rank: Rank, p: Parameters) -> Step:
    busy = work(rank, p["work"], p["seconds"])
    batches = iter(
        DataLoader(Items(p), p["items"], num_workers=p["workers"], pin_memory=p["pinned"])
    )

    def step() -> None:
        next(batches).to(rank.device, non_blocking=True)
        busy()

    return paced(step, p)


def preparing(p: Parameters) -> Callable[[], Tensor]:
    """What the main thread does for a batch."""
    count, chance = p["bytes"], np.random.default_rng(0)
    if p["of"] == "tokenising":
        words = ["".join(chr(97 + c) for c in chance.integers(0, 26, 6)) for _ in range(5000)]
        numbers = {word: number for number, word in enumerate(words)}
        text = " ".join(chance.choice(words, 5000))

        def unit() -> object:
            return [numbers.get(word.lower(), 0) for word in text.split()]

    elif p["of"] == "sampling":
        neighbours = chance.integers(0, 100_000, (100_000, 16))
        features = chance.random((100_000, 64), dtype=np.float32)

        def unit() -> object:
            seeds = chance.integers(0, 100_000, 64)
            for _ in range(2):
                seeds = np.unique(neighbours[seeds].reshape(-1))
            return features[seeds]

    elif p["of"] == "numpy":
        image = chance.random((256, 256, 3), dtype=np.float32)

        def unit() -> object:
            return np.ascontiguousarray(((image - image.mean()) / image.std())[::-1, ::-1])

    else:

        def unit() -> object:
            return sum(number * number for number in range(3000))

    unit()
    begin = time.perf_counter()
    unit()
    times = max(1, round(p["amount"] / (time.perf_counter() - begin)))
    batch = torch.zeros(count, dtype=torch.uint8)

    def prepare() -> Tensor:
        for _ in range(times):
            unit()
        return batch

    return prepare


@builds("preparation")
def preparation(rank: Rank, p: Parameters) -> Step:
    prepare = preparing(p)
    busy = work(rank, p["work"], p["seconds"])

    def step() -> None:
        prepare().to(rank.device)
        busy()

    return paced(step, p)


@builds("offload")
def offload(rank: Rank, p: Parameters) -> Step:
    """Gradients go to the CPU, whose optimizer sends the weights back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(p["threads"])
    ENDS.append(lambda: torch.set_num_threads(threads))
    busy = work(rank, p["work"], p["seconds"])
    gradients = torch.zeros(p["numbers"], device=rank.device)
    host = [torch.zeros(p["numbers"]) for _ in range(3)]
    if p["pinned"]:
        host = [each.pin_memory() for each in host]
    received, momentum, weights = host

    def step() -> None:
        busy()
        received.copy_(gradients)
        momentum.mul_(0.9).add_(received)
        weights.sub_(momentum, alpha=1e-6)
        gradients.copy_(weights)

    return paced(step, p)


@builds("threads")
def threads(rank: Rank, p: Parameters) -> Step:
    """Threads that want the GIL all the time or now and then."""
    step = paced(work(rank, p["work"], p["seconds"]), p)

    over = threading.Event()
    ENDS.append(over.set)

    def fight() -> None:
        while not over.is_set():
            burn(0.01)
            time.sleep(p["rest"])

    for _ in range(p["threads"]):
        fighter = threading.Thread(target=fight, daemon=True)
        fighter.start()
        ENDS.insert(0, fighter.join)  # after all are told to end
    return step


def keep_to(cores: set[int]) -> None:
    """Every thread of this process, and its children from now on, on some cores."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), cores)


@builds("one_core")
def one_core(rank: Rank, p: Parameters) -> Step:
    """A job that has one core for all its threads and workers."""
    busy = work(rank, p["work"], p["seconds"])
    items = {"items": 1, "waits": False, "bytes": 1 << 16, **p}
    batches = None
    moved: list[bool] = []
    every = os.sched_getaffinity(0)
    core = {sorted(every)[rank.device.index or 0]}
    if p["workers"]:
        os.sched_setaffinity(0, core)
        batches = iter(DataLoader(Items(items), 1, num_workers=p["workers"]))
        os.sched_setaffinity(0, every)

    def step() -> None:
        if rank.running_for > 0 and not moved:
            moved.append(True)
            ENDS.append(lambda: keep_to(every))
            keep_to(core)
        if batches is not None:
            next(batches).to(rank.device)
        busy()

    return paced(step, p)


@builds("shared_gpu")
@builds("launcher")
@builds("launcher_pair")
def alone(rank: Rank, p: Parameters) -> Step:
    """A process that knows nothing of the other one."""
    return paced(work(rank, p["work"], p["seconds"]), p)


def mixed(rank: Rank, p: Parameters) -> Step:
    parts = [
        work(rank, each, seconds) for each, seconds in zip(p["works"], p["shares"], strict=False)
    ]

    def step() -> None:
        for part in parts:
            part()

    return step


@builds("mixture")
def mixture(rank: Rank, p: Parameters) -> Step:
    return paced(mixed(rank, p), p)


@builds("mixture_host")
def mixture_host(rank: Rank, p: Parameters) -> Step:
    parts, copy = mixed(rank, p), copying(rank, p)

    def step() -> None:
        copy()
        parts()
        if p["empty_cache"]:
            torch.cuda.empty_cache()

    return paced(step, p)
