"""Generated programs of several GPUs. ``parallel`` would import what takes seconds."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.truth.drawn import Parameters
from bench.truth.gpu_work import (
    WORDS,
    Language,
    Perceptron,
    optimizer_of,
)
from bench.truth.pieces import (
    BUILD,
    MAX_REPETITIONS,
    builds,
    dtype_of,
    make_module,
    paced,
    synchronize,
    took,
    work,
)
from bench.truth.rank import Rank, Step, burn


def exchange(rank: Rank, p: Parameters) -> Step:
    """A collective of the drawn kind and size, in pieces."""
    count = max(rank.ranks, p["bytes"] // 2 // rank.ranks * rank.ranks)
    a = torch.zeros(count, dtype=torch.bfloat16, device=rank.device)
    b = torch.zeros_like(a)
    part = b[: count // rank.ranks]
    kind = p["collective"]
    neighbours = (rank.rank + 1) % rank.ranks, (rank.rank - 1) % rank.ranks

    def send_and_receive() -> None:
        pairs = [
            dist.P2POp(dist.isend, a, neighbours[0]),
            dist.P2POp(dist.irecv, b, neighbours[1]),
        ]
        for each in dist.batch_isend_irecv(pairs):
            each.wait()

    known: dict[str, Step] = {
        "all_reduce": lambda: dist.all_reduce(a),
        "all_gather": lambda: dist.all_gather_into_tensor(a, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, a),
        "all_to_all": lambda: dist.all_to_all_single(b, a),
        "broadcast": lambda: dist.broadcast(a, 0),
        "send_recv": send_and_receive,
    }
    once = known[kind]
    times = max(1, min(p["pieces"], (1 << 29) // p["bytes"]))

    def step() -> None:
        for _ in range(times):
            once()

    return step


def same_on_all(rank: Rank, p: Parameters, seconds: float) -> Step:
    """Work that is repeated as often on every rank."""
    step = BUILD[p["kind"]](rank, p)
    count = torch.tensor(float(min(MAX_REPETITIONS, seconds / took(step))), device=rank.device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    times = max(1, round(count.item()))

    def steps() -> None:
        for _ in range(times):
            step()

    return steps


@builds("collectives")
@builds("no_p2p")
def collectives(rank: Rank, p: Parameters) -> Step:
    rank.join()
    busy, send = same_on_all(rank, p["work"], p["seconds"]), exchange(rank, p)

    def step() -> None:
        busy()
        send()

    return paced(step, p)


@builds("overlapped")
def overlapped(rank: Rank, p: Parameters) -> Step:
    rank.join()
    busy, send = same_on_all(rank, p["work"], p["seconds"]), exchange(rank, p)
    side = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(side):
            send()
        busy()
        torch.cuda.current_stream().wait_stream(side)

    return paced(step, p)


@builds("late_ranks")
def late_ranks(rank: Rank, p: Parameters) -> Step:
    """A rank, or now this and now that one, comes later than the other to the collective."""
    rank.join()
    busy, send = same_on_all(rank, p["work"], p["seconds"]), exchange(rank, p)
    chance, turn = random.Random(1), itertools.count()
    late = p["late_seconds"]

    def step() -> None:
        seconds = late * (1 + p["late_jitter"] * (2 * chance.random() - 1))
        who = next(turn) % 2 if p["late"] < 0 else p["late"]
        busy()
        if who == rank.rank:
            if p["late_by"] == "sleep":
                time.sleep(seconds)
            elif p["late_by"] == "burn":
                burn(seconds)
            else:
                for _ in range(1 + round(min(3.0, seconds / p["seconds"]))):
                    busy()
        send()

    return paced(step, p)


def network(p: Parameters) -> nn.Module:
    """A random model and what it takes."""
    if p["model"] == "transformer":
        return Language(p["width"], p["layers"])
    if p["model"] == "mlp":
        return Perceptron(p["width"], p["layers"])
    channels = p["channels"]
    layers: list[nn.Module] = []
    for _ in range(p["layers"]):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers)


def batch_for(rank: Rank, p: Parameters) -> Tensor:
    if p["model"] == "transformer":
        return torch.randint(0, WORDS, (p["batch"], p["length"]), device=rank.device)
    if p["model"] == "mlp":
        return torch.randn(p["batch"] * p["length"], p["width"], device=rank.device)
    size = 32 if p["length"] < 256 else 64
    return torch.randn(p["batch"], p["channels"], size, size, device=rank.device)


def trained(rank: Rank, p: Parameters, model: Callable[[Tensor], Tensor], weights: Any) -> Step:
    """Steps of training on one batch."""
    x = batch_for(rank, p)
    optimizer = optimizer_of("adamw" if p["optimizer"] == "fused" else p["optimizer"], weights)
    dtype = dtype_of(p)

    def step() -> None:
        with torch.autocast("cuda", dtype):
            model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return paced(step, {**p, "ahead": False})


@builds("ddp")
@builds("ddp_no_p2p")
def ddp(rank: Rank, p: Parameters) -> Step:
    rank.join()
    model = DistributedDataParallel(
        make_module(rank, lambda: network(p)),
        device_ids=[rank.device],
        bucket_cap_mb=p["bucket_mb"],
    )
    return trained(rank, p, model, list(model.parameters()))


@builds("fsdp")
def fsdp(rank: Rank, p: Parameters) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank.join()
    mesh = init_device_mesh("cuda", (rank.ranks,))
    model = make_module(rank, lambda: network(p))
    for block in getattr(model, "blocks", None) or getattr(model, "linears", None) or []:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(rank, {**p, "optimizer": "adamw"}, model, list(model.parameters()))


@builds("objects")
def objects(rank: Rank, p: Parameters) -> Step:
    """Python objects are gathered over gloo between steps; one rank may come late."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    busy = work(rank, p["work"], p["seconds"])
    mine = list(range(p["numbers"]))
    turn = itertools.count()

    def step() -> None:
        busy()
        synchronize()
        who = next(turn) % 2 if p["late"] < 0 else p["late"]
        if who == rank.rank:
            burn(p["late_seconds"])
        found: list[Any] = [None] * rank.ranks
        dist.all_gather_object(found, mine)

    return paced(step, {**p, "ahead": False})
