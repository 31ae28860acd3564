"""An inference engine on a GPU: a decoder of random weights under continuous batching.

``python vllm SITUATION GPU PORT RANK RUN``: who asks, and how the engine is set, is in
``SITUATIONS``; each run has other requests. The people who ask are in the process; their requests,
the KV cache and every kernel are real. It serves ``/metrics`` with vLLM's names once its weights
are there. Ranks of a tensor-parallel group are processes of their own, of which rank 0 decides and
answers.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from bench.serving.served import ServedEngine
from bench.serving.situations import SITUATIONS, Situation
from tests.serving.scheduler import Request, Scheduler, StepPlan

WIDTH = 128
"""Of a head."""

LENGTHS = [256 << power for power in range(8)]
BATCHES = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
"""Sizes for which a step is captured as a CUDA graph."""


class Model:
    """A decoder with grouped queries, its KV cache, and the two kinds of steps it takes."""

    def __init__(self, of: Situation, ranks: int) -> None:
        self.of, self.ranks = of, ranks
        self.heads, self.key_heads = of.width // WIDTH // ranks, max(1, of.key_heads // ranks)
        self.slots, self.longest = of.slots, of.longest
        hidden = of.hidden // ranks
        keys = self.key_heads * WIDTH
        self.layers = [
            (
                self._weights(of.width, self.heads * WIDTH + 2 * keys),
                self._weights(self.heads * WIDTH, of.width),
                self._weights(of.width, 2 * hidden),
                self._weights(hidden, of.width),
            )
            for _ in range(of.layers)
        ]
        size = (of.layers, self.slots, self.key_heads, self.longest, WIDTH)
        self.keys = torch.zeros(size, dtype=torch.bfloat16, device="cuda")
        self.values = torch.zeros_like(self.keys)
        self.embedded = torch.randn(of.setting.step_tokens, of.width, device="cuda").bfloat16()
        self.places = torch.zeros(self.slots, dtype=torch.long, device="cuda")
        self.columns = torch.arange(self.longest, device="cuda")
        self.rows = torch.arange(self.slots, device="cuda")
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        if of.graphs:
            self._capture()

    def decode(self, batch: int, length: int) -> None:
        """One token for each of the first slots, whose requests are at most so long."""
        batch = min(self.slots, next(size for size in BATCHES if size >= batch))
        length = min(self.longest, next(size for size in LENGTHS if size >= length))
        if self.of.graphs:
            self.graphs[batch, length].replay()
        else:
            self._decode(batch, length)

    def prefill(self, slot: int, begin: int, count: int) -> None:
        """A piece of a prompt."""
        x, end = self.embedded[:count], begin + count
        repeated = self.heads // self.key_heads
        mask = causal_lower_right(count, end)
        for at, layer in enumerate(self.layers):
            queries, keys, values = self._projected(x, layer[0])
            self.keys[at, slot, :, begin:end] = keys.transpose(0, 1)
            self.values[at, slot, :, begin:end] = values.transpose(0, 1)
            attended = functional.scaled_dot_product_attention(
                queries.transpose(0, 1)[None],
                self.keys[at, slot, :, :end].repeat_interleave(repeated, 0)[None],
                self.values[at, slot, :, :end].repeat_interleave(repeated, 0)[None],
                attn_mask=mask,
            )
            x = self._rest_of(x, attended[0].transpose(0, 1).reshape(count, -1), layer)

    def _capture(self) -> None:
        """Record a graph of each size, as engines do when they start."""
        pool = torch.cuda.graph_pool_handle()
        batches = {min(self.slots, size) for size in BATCHES}
        for batch in sorted(batches, reverse=True):
            for length in sorted({min(self.longest, size) for size in LENGTHS}):
                self._decode(batch, length)
                graph = self.graphs[batch, length] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    self._decode(batch, length)

    def _decode(self, batch: int, length: int) -> None:
        x, rows, places = self.embedded[:batch], self.rows[:batch], self.places[:batch]
        hidden = self.columns[:length] > places[:, None]
        for at, layer in enumerate(self.layers):
            queries, keys, values = self._projected(x, layer[0])
            self.keys[at].transpose(1, 2)[rows, places] = keys
            self.values[at].transpose(1, 2)[rows, places] = values
            grouped = queries.view(batch, self.key_heads, -1, WIDTH) * WIDTH**-0.5
            scores = grouped @ self.keys[at, :batch, :, :length].transpose(2, 3)
            scores = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1)
            attended = scores @ self.values[at, :batch, :, :length]
            x = self._rest_of(x, attended.reshape(batch, -1), layer)

    def _projected(self, x: Any, weights: Any) -> tuple[Any, Any, Any]:
        keys = self.key_heads * WIDTH
        projected = functional.rms_norm(x, x.shape[-1:]) @ weights
        parts = projected.split([self.heads * WIDTH, keys, keys], -1)
        queries, keys_, values = (part.view(len(x), -1, WIDTH) for part in parts)
        return queries, keys_, values

    def _rest_of(self, x: Any, attended: Any, layer: tuple[Any, ...]) -> Any:
        x = x + self._joined(attended @ layer[1])
        gate, up = (functional.rms_norm(x, x.shape[-1:]) @ layer[2]).chunk(2, -1)
        return x + self._joined((functional.silu(gate) * up) @ layer[3])

    def _joined(self, part: Any) -> Any:
        if self.ranks > 1:
            dist.all_reduce(part)
        return part

    def _weights(self, rows: int, columns: int) -> Any:
        if not self.of.loads:
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * rows**-0.5
        # As from a file: made on the host, and sent.
        return torch.randn(rows, columns).bfloat16().cuda() * rows**-0.5


class Engine:
    """Computes the steps of a scheduler on a model."""

    def __init__(self, model: Model, scheduler: Scheduler) -> None:
        self.model, self.scheduler = model, scheduler
        self.free = list(range(model.slots))
        self.slot: dict[Request, int] = {}

    def take(self, step: StepPlan) -> None:
        """Compute a step, and wait for its tokens, as an engine does that looks at them."""
        for one in set(self.slot) - set(self.scheduler.running):
            self.free.append(self.slot.pop(one))
        for one in self.scheduler.running:
            if one not in self.slot:
                self.free.sort()
                self.slot[one] = self.free.pop(0)
        orders = [(self.slot[one], one.length) for one in step.decodes]
        pieces = [(self.slot[one], one.computed, count) for one, count in step.pieces.items()]
        if self.model.ranks > 1:
            _broadcast([len(orders), max((slot for slot, _ in orders), default=0), len(pieces)])
        compute(self.model, orders, pieces)
        torch.cuda.synchronize()


def compute(
    model: Model, orders: list[tuple[int, int]], pieces: list[tuple[int, int, int]]
) -> None:
    """Decode for slots of that length, and pieces of prompts: slot, begin and count."""
    if orders:
        places = torch.zeros(model.slots, dtype=torch.long)
        for slot, length in orders:
            places[slot] = min(length, model.longest - 1)
        model.places.copy_(places)
        longest = 1 + max(length for _, length in orders)
        model.decode(1 + max(slot for slot, _ in orders), min(longest, model.longest))
    for slot, begin, count in pieces:
        model.prefill(slot, begin, count)


def _broadcast(words: list[int]) -> list[int]:
    """What rank 0 tells all ranks."""
    told = torch.tensor(words, device="cuda")
    dist.broadcast(told, 0)
    return [int(word) for word in told.tolist()]


def follow(model: Model) -> None:
    """Compute what rank 0 computes, of a group whose prompts are of one token."""
    while True:
        decodes, last, pieces = _broadcast([0, 0, 0])
        compute(model, [(last, 0)] * bool(decodes), [(0, 0, 1)] * pieces)


def main() -> None:
    name, run = sys.argv[1], sys.argv[5]
    gpu, port, rank = map(int, sys.argv[2:5])
    of = SITUATIONS[name]
    torch.cuda.set_device(gpu)
    torch.zeros(1, device="cuda")
    if of.ranks > 1:
        device = torch.device("cuda", gpu)
        dist.init_process_group("nccl", rank=rank, world_size=of.ranks, device_id=device)
    with torch.inference_mode():
        model = Model(of, of.ranks)
        if rank:
            follow(model)
        scheduler = Scheduler(of.setting, Random(f"{name} {run}"))
        served = ServedEngine(scheduler, Engine(model, scheduler).take)
        served.listen(port)
        served.run()


if __name__ == "__main__":
    main()
