"""Programs of several ranks: data, tensor, pipeline and expert parallelism, and their troubles."""

from __future__ import annotations

import functools
import threading
import time

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from bench.truth.data import Images
from bench.truth.rank import Rank, Step, burn

WORDS = 32000


def gpt(layers: int, width: int, heads: int, length: int = 1024) -> nn.Module:
    """A GPT-2 of random weights."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=length,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            use_cache=False,
        )
    )


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One update of the weights; returns when the GPU has done it."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def train(model: nn.Module, rank: Rank, batch: int, length: int) -> Step:
    """One step of training on random tokens, in BF16 where the model is not."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    tokens = torch.randint(0, WORDS, (batch, length), device=rank.device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        update(optimizer, loss)

    return step


def ddp(rank: Rank) -> Step:
    rank.join()
    model = DistributedDataParallel(gpt(12, 1024, 16).to(rank.device), device_ids=[rank.device])
    return train(model, rank, batch=12, length=1024)


def ddp_small(rank: Rank) -> Step:
    """A batch too small for the gradients that it sends."""
    rank.join()
    model = DistributedDataParallel(gpt(6, 2048, 16).to(rank.device), device_ids=[rank.device])
    return train(model, rank, batch=4, length=512)


def ddp_gaps(rank: Rank) -> Step:
    """The next batch is cut out on the CPU between steps, which takes 6 ms."""
    step = ddp(rank)

    def with_gap() -> None:
        burn(0.006)
        step()

    return with_gap


def image_training(rank: Rank, workers: int, batch: int = 128) -> Step:
    """ResNet-50 on JPEG files."""
    folder = rank.folder / f"images.{rank.rank}"
    folder.mkdir()
    model: nn.Module = torchvision.models.resnet50().to(rank.device)
    model = model.to(memory_format=torch.channels_last)
    if rank.ranks > 1:
        model = DistributedDataParallel(model, device_ids=[rank.device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = iter(DataLoader(Images(folder), batch, num_workers=workers, pin_memory=True))

    def step() -> None:
        images, labels = (part.to(rank.device, non_blocking=True) for part in next(loader))
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def resnet(rank: Rank) -> Step:
    rank.join()
    return image_training(rank, workers=2)


def _sharded(model: nn.Module, rank: Rank) -> nn.Module:
    mesh = init_device_mesh("cuda", (rank.ranks,))
    model = model.to(rank.device, torch.bfloat16)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model


def fsdp(rank: Rank) -> Step:
    rank.join()
    model = _sharded(gpt(16, 2048, 16), rank)
    return train(model, rank, batch=8, length=1024)


def fsdp_small(rank: Rank) -> Step:
    rank.join()
    model = _sharded(gpt(12, 1024, 16), rank)
    return train(model, rank, batch=1, length=256)


class Block(nn.Module):
    """A transformer's feed-forward block, as tensor parallelism cuts it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def _tensor_parallel(rank: Rank, layers: int, width: int) -> nn.Module:
    rank.join()
    mesh = init_device_mesh("cuda", (rank.ranks,))
    model = nn.Sequential(*(Block(width) for _ in range(layers)))
    model = model.to(rank.device, torch.bfloat16)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model:
        parallelize_module(block, mesh, plan)
    return model


def tensor_parallel(rank: Rank) -> Step:
    """One token at a time: a small all-reduce a layer."""
    model = _tensor_parallel(rank, layers=32, width=4096)
    token = torch.randn(8, 1, 4096, device=rank.device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step() -> None:
        x = token
        for _ in range(16):
            x = model(x)
        x.sum().item()

    return step


def tensor_parallel_training(rank: Rank) -> Step:
    model = _tensor_parallel(rank, layers=16, width=4096)
    x = torch.randn(4, 2048, 4096, device=rank.device, dtype=torch.bfloat16)
    # One parameter at a time: some are spread over the ranks, and some are not.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)

    def step() -> None:
        loss = model(x).square().mean()
        update(optimizer, loss)

    return step


def pipeline(rank: Rank) -> Step:
    """Two stages and two micro-batches: a third of the time is bubbles."""
    rank.join()
    width = 4096
    part = nn.Sequential(*(Block(width) for _ in range(8))).to(rank.device, torch.bfloat16)
    stage = PipelineStage(part, rank.rank, rank.ranks, rank.device)
    schedule = ScheduleGPipe(
        stage, n_microbatches=2, loss_fn=lambda out, target: functional.mse_loss(out, target)
    )
    x = torch.randn(16, 1024, width, device=rank.device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-6)

    def step() -> None:
        if rank.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x, losses=[])
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def moe(rank: Rank) -> Step:
    """Tokens go to the experts of both ranks and back, a layer at a time."""
    rank.join()
    width, tokens = 4096, 8192
    experts = nn.ModuleList(
        nn.Sequential(
            nn.Linear(width, 4096, bias=False), nn.SiLU(), nn.Linear(4096, width, bias=False)
        )
        for _ in range(8)
    ).to(rank.device, torch.bfloat16)
    x = torch.randn(tokens, width, device=rank.device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step() -> None:
        y = x
        for expert in experts:
            sent = torch.empty_like(y)
            dist.all_to_all_single(sent, y[torch.randperm(tokens, device=y.device)])
            back = torch.empty_like(y)
            dist.all_to_all_single(back, expert(sent))
            y = functional.layer_norm(y + back, (width,))
        y.sum().item()

    return step


def slow_rank(rank: Rank) -> Step:
    """The last rank prepares its batches on its main thread for 150 ms each."""
    step = ddp(rank)

    def uneven() -> None:
        if rank.rank == rank.ranks - 1:
            burn(0.15)
        step()

    return uneven


def evaluation(rank: Rank) -> Step:
    """Rank 0 evaluates for 4 s; the others wait for it at a barrier."""
    rank.join()
    model = gpt(12, 1024, 16).to(rank.device, torch.bfloat16)
    tokens = torch.randint(0, WORDS, (16, 1024), device=rank.device)
    dist.barrier()

    @torch.inference_mode()
    def step() -> None:
        until = time.monotonic() + 4.0
        while rank.rank == 0 and time.monotonic() < until and rank.running_for > 0:
            model(input_ids=tokens).logits.float().logsumexp(-1).mean().item()
        dist.barrier()
        torch.cuda.synchronize()

    return step


def checkpoint(rank: Rank) -> Step:
    """After 2 s of steps rank 0 writes its weights, for which the other waits."""
    step = ddp(rank)
    state = torch.randn(768 << 20, device=rank.device, dtype=torch.bfloat16)
    counter = iter(range(10**9))
    path = rank.folder / "checkpoint.pt"

    def saving() -> None:
        step()
        if next(counter) % 25 == 24:
            if rank.rank == 0:
                torch.save(state.cpu(), path)
            dist.barrier()

    return saving


def checkpoint_async(rank: Rank) -> Step:
    """Steps during which a thread writes the weights from a copy in pinned memory."""
    step = ddp(rank)
    state = torch.randn(256 << 20, device=rank.device, dtype=torch.bfloat16)
    copy = torch.empty_like(state, device="cpu", pin_memory=True)
    path = rank.folder / f"checkpoint.{rank.rank}.bin"
    writers: list[threading.Thread] = []
    counter = iter(range(10**9))

    def saving() -> None:
        step()
        if next(counter) % 25 == 24 and not any(writer.is_alive() for writer in writers):
            copy.copy_(state, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            save = functools.partial(copy.view(torch.int16).numpy().tofile, path)
            writers[:] = [threading.Thread(target=save)]
            writers[0].start()

    return saving
