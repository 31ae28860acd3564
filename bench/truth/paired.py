"""Programs in pairs: the same job without and with what mends it; with torch alone.

It takes the place of ``rank`` for the programs of pairs, which are called ``NAME:FIXED:SIZE``.
Orders come on standard input: ``start`` (touch the GPU), ``go``. Before it says ``measured``, a
file has how many items it did per second, and when. A program is a function that takes a ``Rank``
and returns the function that does one step.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench.truth.rank import Step, burn, say

WARM_UP = 3
"""Steps before ``ready``."""

SETTLE = 3.5
"""Seconds from ``go`` to the measurement."""

SECONDS = 10.5
"""Seconds from ``go`` to the end: a verdict covers ten."""


class Rank:
    """What a program knows of its place, and whether its job is mended."""

    def __init__(self, gpu: int, folder: Path, fixed: bool, size: int) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.cuda = gpu >= 0
        self.device = torch.device("cuda", gpu) if self.cuda else torch.device("cpu")
        self.folder = folder
        self.fixed = fixed
        self.large = bool(size)
        self.items = 1.0
        """What one step gets done."""
        if self.cuda:
            torch.cuda.set_device(self.device)
        torch.manual_seed(self.rank)

    def join(self) -> None:
        if self.cuda:
            dist.init_process_group("nccl", device_id=self.device)
        else:
            dist.init_process_group("gloo")

    def wait(self) -> None:
        """Until the GPU has done all that was launched."""
        if self.cuda:
            torch.cuda.synchronize()

    def random(self, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=kind)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.into(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.after(x))))


def transformer(rank: Rank, layers: int, width: int) -> nn.Module:
    return nn.Sequential(*(Block(width) for _ in range(layers))).to(rank.device)


def training(rank: Rank, layers: int, width: int, batch: int, length: int) -> Callable[..., None]:
    """A step of training in BF16, on these numbers or others of their shape."""
    model = transformer(rank, layers, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    x = rank.random(batch, length, width)

    def step(added: Tensor | None = None) -> None:
        y = x if added is None else x + added.mean()
        with torch.autocast(rank.device.type, torch.bfloat16):
            loss = model(y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rank.wait()

    return step


class Slowly(Dataset[Tensor]):
    """Samples that take a CPU a while each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        torch.set_num_threads(1)
        burn(self.seconds)
        return torch.full((16,), float(index % 7))


def workers(rank: Rank) -> Step:
    """Batches of 8 samples, from one worker or from as many as it takes."""
    each = 0.012 if rank.large else 0.005
    count = 8 if rank.fixed else 1
    loader = iter(DataLoader(Slowly(each), 8, num_workers=count, prefetch_factor=4))
    train = training(rank, 8, 1024, 32, 512)
    return lambda: train(next(loader).to(rank.device))


def main_thread(rank: Rank) -> Step:
    """Batches are made between steps, by the same thread or by workers."""
    each = 0.004 if rank.large else 0.0015
    data = Slowly(each)
    train = training(rank, 8, 1024, 32, 512)
    if rank.fixed:
        loader = iter(DataLoader(data, 16, num_workers=6, prefetch_factor=4))
        return lambda: train(next(loader).to(rank.device))
    counter = iter(range(1 << 60))

    def step() -> None:
        train(torch.stack([data[next(counter)] for _ in range(16)]).to(rank.device))

    return step


def pinned(rank: Rank) -> Step:
    """Large batches from memory that is not pinned, or from pinned memory ahead of the step."""
    host = torch.randn(160 if rank.large else 64, 1 << 20)
    weight = rank.random(1 << 12, 1 << 12, kind=torch.bfloat16)
    products = 24 if rank.large else 36

    def compute(batch: Tensor) -> None:
        x = weight * batch.view(-1)[0].bfloat16()
        for _ in range(products):
            x = x @ weight
            x = x * 1e-2

    if not rank.fixed:

        def slowly() -> None:
            compute(host.to(rank.device))
            rank.wait()

        return slowly
    host = host.pin_memory()
    side = torch.cuda.Stream()
    ahead = [host.to(rank.device)]

    def step() -> None:
        torch.cuda.current_stream().wait_stream(side)
        batch = ahead.pop()
        with torch.cuda.stream(side):
            ahead.append(host.to(rank.device, non_blocking=True))
        compute(batch)
        rank.wait()

    return step


def results(rank: Rank) -> Step:
    """Results go to the host in pageable memory, or in pinned memory beside the next step."""
    weight = rank.random(1 << 12, 1 << 12, kind=torch.bfloat16)
    out = rank.random(96 if rank.large else 48, 1 << 20)
    products = 36

    def compute() -> None:
        x = weight
        for _ in range(products):
            x = (x @ weight) * 1e-2

    if not rank.fixed:

        def slowly() -> None:
            compute()
            out.cpu()

        return slowly
    kept = torch.empty(out.shape, pin_memory=True)
    side = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(side):
            kept.copy_(out, non_blocking=True)
        compute()
        rank.wait()

    return step


class Chain(nn.Module):
    """Elementwise operations, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        for at in range(12):
            x = torch.tanh(x * 0.5 + 0.1 * at)
            x = x + torch.sigmoid(x)
        return x


def compiled(rank: Rank) -> Step:
    """Small elementwise kernels, or one that ``torch.compile`` makes of them."""
    model: Callable[[Tensor], Tensor] = Chain()
    x = rank.random(1 << 13, 1 << (10 if rank.large else 5))
    if rank.fixed:
        model = torch.compile(model)

    @torch.no_grad()
    def step() -> None:
        for _ in range(20):
            model(x)
        rank.wait()

    return step


def graphs(rank: Rank) -> Step:
    """A token at a time, launched kernel by kernel or as a recorded graph."""
    model = transformer(rank, 16, 1024 if rank.large else 512).bfloat16().eval()
    token = rank.random(4, 1, 1024 if rank.large else 512, kind=torch.bfloat16)

    @torch.no_grad()
    def slowly() -> None:
        for _ in range(8):
            model(token)
        rank.wait()

    if not rank.fixed:
        return slowly
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(token)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(token)

    def step() -> None:
        for _ in range(8):
            graph.replay()
        rank.wait()

    return step


def batch(rank: Rank) -> Step:
    """A batch that is too small for the kernels' launches, or eight times of it."""
    rank.items = 8.0 if rank.fixed else 1.0
    return training(rank, 8, 512, (16 if rank.fixed else 2), 128 if rank.large else 64)


def item(rank: Rank) -> Step:
    """Each small layer's result is asked for, or only that of the last."""
    layers = 64
    width = 2048 if rank.large else 1024
    model = nn.ModuleList(nn.Linear(width, width) for _ in range(layers)).to(rank.device).bfloat16()
    x = rank.random(512, width, kind=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        y = x
        for layer in model:
            y = torch.relu(layer(y))
            if not rank.fixed:
                y.mean().item()
        y.mean().item()

    return step


def allocator(rank: Rank) -> Step:
    """Memory goes back to the driver after each step, or stays."""
    train = training(rank, 6, 1024, 8 if rank.large else 4, 512)

    def step() -> None:
        train()
        if not rank.fixed:
            torch.cuda.empty_cache()

    return step


def offloaded(rank: Rank) -> Step:
    """The optimizer runs on the CPU, or on the GPU."""
    torch.set_num_threads(4)
    model = transformer(rank, 2 if rank.large else 1, 1024)
    x = rank.random(192, 512, 1024)
    masters = list(model.parameters())
    if not rank.fixed:
        masters = [p.detach().cpu().clone() for p in masters]
    optimizer = torch.optim.AdamW(masters, lr=1e-5)

    def step() -> None:
        with torch.autocast(rank.device.type, torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        if not rank.fixed:
            for master, parameter in zip(masters, model.parameters()):  # noqa: B905
                master.grad = parameter.grad.cpu()
        optimizer.step()
        if not rank.fixed:
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters()):  # noqa: B905
                    parameter.copy_(master)
        model.zero_grad()
        rank.wait()

    return step


def gil(rank: Rank) -> Step:
    """Threads of Python beside the one that launches kernels, or none."""
    if not rank.fixed:
        for _ in range(2 if rank.large else 1):
            threading.Thread(target=lambda: burn(1e9), daemon=True).start()
    return training(rank, 8, 512, 8, 256)


def source(rank: Rank) -> Step:
    """Each batch is asked for from a slow server, or was kept."""
    train = training(rank, 8, 1024, 16, 512)
    wait = 0.04 if rank.large else 0.012

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(wait)
            self.send_response(200)
            self.send_header("Content-Length", "64")
            self.end_headers()
            self.wfile.write(bytes(64))

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def step() -> None:
        if not rank.fixed:
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read()
        train()

    return step


def tf32(rank: Rank) -> Step:
    """Training in FP32, on the FP32 pipe or on the tensor cores."""
    return _precision(rank, "high")


def bf16(rank: Rank) -> Step:
    """Training in FP32 without tensor cores, or in BF16."""
    return _precision(rank, "highest")


def _precision(rank: Rank, mended: str) -> Step:
    torch.set_float32_matmul_precision(mended if rank.fixed else "highest")
    half = rank.fixed and mended == "highest"
    width = 2048 if rank.large else 1024
    model = transformer(rank, 6, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = rank.random(8, 512, width)

    def step() -> None:
        with torch.autocast(rank.device.type, torch.bfloat16, enabled=half):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rank.wait()

    return step


def checkpoint(rank: Rank) -> Step:
    """The state is written between steps, or by a thread from a copy."""
    train = training(rank, 8, 1024, 32, 512)
    state = rank.random(160 if rank.large else 64, 1 << 20)
    every = 24
    path = rank.folder / "checkpoint.pt"
    counter = iter(range(1 << 60))
    copy = torch.empty(state.shape, pin_memory=rank.cuda) if rank.fixed else None
    writers: list[threading.Thread] = []

    def step() -> None:
        train()
        if next(counter) % every != every - 1:
            return
        if copy is None:
            torch.save(state.cpu(), path)
        elif not any(writer.is_alive() for writer in writers):
            copy.copy_(state, non_blocking=True)
            rank.wait()
            writers[:] = [threading.Thread(target=torch.save, args=(copy, path), daemon=True)]
            writers[0].start()

    return step


# Two GPUs.


def p2p(rank: Rank) -> Step:
    """Gradients go through the host, or over NVLink (the environment says which)."""
    rank.join()
    train = training(rank, 8, 1024, 16 if rank.large else 32, 512)
    gradients = rank.random(100, 1 << 20)

    def step() -> None:
        train()
        dist.all_reduce(gradients)
        gradients.mul_(0.5)
        rank.wait()

    return step


def straggler(rank: Rank) -> Step:
    """The last rank is late in each step, or none is."""
    rank.join()
    train = training(rank, 8, 1024, 16, 512)
    small = rank.random(1 << 16)
    late = 0.06 if rank.large else 0.02

    def step() -> None:
        if not rank.fixed and rank.rank == rank.ranks - 1:
            burn(late)
        train()
        dist.all_reduce(small)
        rank.wait()

    return step


def balance(rank: Rank) -> Step:
    """The last rank has most of the batch, or each has as much."""
    rank.join()
    whole = 48
    first = whole // 2 if rank.fixed else (8 if rank.large else 16)
    train = training(rank, 8, 1024, first if rank.rank == 0 else whole - first, 512)
    small = rank.random(1 << 16)

    def step() -> None:
        train()
        dist.all_reduce(small)
        rank.wait()

    return step


def overlap(rank: Rank) -> Step:
    """Gradients are summed after the backward pass, or by DDP during it."""
    rank.join()
    model = transformer(rank, 6 if rank.large else 4, 2048)
    if rank.fixed:
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(model, device_ids=[rank.device] if rank.cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = rank.random(4 if rank.large else 2, 512, 2048)

    def step() -> None:
        with torch.autocast(rank.device.type, torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        if not rank.fixed:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad.mul_(1.0 / rank.ranks)
        optimizer.step()
        optimizer.zero_grad()
        rank.wait()

    return step


def listener() -> threading.Event:
    """Set once standard input has said ``go``; the rank ends when it is closed."""
    go = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                go.set()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return go


def main(program: str, gpu: int, folder: Path) -> None:
    """Be one rank of a job; ranks agree on the number of steps by the time of the slowest."""
    say("loaded")
    sys.stdin.readline()
    name, fixed, size = program.split(":")
    rank = Rank(gpu, folder, fixed == "1", int(size))
    step: Step = globals()[name](rank)
    for _ in range(WARM_UP):
        step()
    rank.wait()
    say("ready")
    go = listener()
    go.wait()
    together = rank.random(1)
    began = time.monotonic()
    done = 0
    since: tuple[float, int, float] | None = None
    while True:
        step()
        done += 1
        elapsed = time.monotonic() - began
        ends = 2.0 * (elapsed >= SECONDS) + (elapsed >= SETTLE)
        if rank.ranks > 1 and (done % 8 == 0):
            together.fill_(ends)
            dist.all_reduce(together, dist.ReduceOp.MIN)
            ends = float(together.item())
        elif rank.ranks > 1:
            continue
        if since is None and ends >= 1.0:
            rank.wait()
            since = time.monotonic(), done, time.time()
        elif since is not None and ends >= 2.0:
            rank.wait()
            break
    steps, seconds = done - since[1], time.monotonic() - since[0]
    rate = rank.items * steps / seconds
    figures = {"since": since[2], "until": time.time(), "rate": rate, "steps": steps}
    (folder / f"measured.{rank.rank}").write_text(json.dumps(figures))
    say("measured")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[4]).parent)
