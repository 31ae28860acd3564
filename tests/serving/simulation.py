"""An engine with continuous batching, step by step: what its GPU does follows from its load.

A step takes as long as reading the weights and the KV cache, or as the arithmetic of its tokens,
whichever is longer, and then the scheduler's time, in which the GPU has nothing to run:
https://arxiv.org/abs/2402.16363 (roofline of inference), https://arxiv.org/abs/2309.06180 (paged KV
cache), https://arxiv.org/abs/2403.02310 (prompts in pieces beside decoding).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from random import Random

BANDWIDTH = 3.35e12 * 0.8
FLOPS = 989e12 * 0.6
"""What a kernel reaches of an H100's HBM and BF16 peak."""

SHORT_GAP = 0.02
"""Seconds of a gap between kernels up to which the ledger calls it ``launch``."""

IDLE_AFTER = 10.0
"""As ``gpunode.gpu.ledger.IDLE_AFTER``."""


@dataclass
class Setting:
    """A model, an engine's limits, and the people who ask, each again once answered."""

    parameters: float
    users: int
    prompt: int
    output: int
    think: float = 0.0
    """Mean seconds until who was answered asks again."""

    most_requests: int = 256
    step_tokens: int = 8192
    cache_tokens: int = 400_000
    cache_bytes: float = 131_072.0
    """Of a token: 32 layers, 8 heads of 128 for keys and values in 16 bits."""

    host: float = 0.001
    """Seconds of the scheduler between steps."""


@dataclass
class Asked:
    """A request: how far its prompt and its answer are."""

    prompt: int
    output: int
    computed: int = 0
    answered: int = 0

    @property
    def length(self) -> int:
        return self.computed + self.answered


@dataclass
class SimulatedEngine:
    """What it has counted, and what its GPU did since that was last taken."""

    setting: Setting
    random: Random
    now: float = 0.0
    running: list[Asked] = field(default_factory=list)
    waiting: deque[Asked] = field(default_factory=deque)
    coming: list[float] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    rested: float = 0.0
    worked: float = 0.0
    busy: float = 0.0
    """The share of a CPU that its scheduler took in what was played last: it also waits for the GPU
    on it, as CUDA does unless told otherwise."""

    def __post_init__(self) -> None:
        self.coming = sorted(self._pause() for _ in range(self.setting.users))

    def play(self, until: float) -> dict[str, float]:
        """Let time go on; the shares of the GPU's states meanwhile."""
        begin = self.now
        while self.now < until:
            while self.coming and self.coming[0] <= self.now:
                self.coming.pop(0)
                self.waiting.append(
                    Asked(self._about(self.setting.prompt), self._about(self.setting.output))
                )
            tokens = self._schedule()
            if not tokens:
                upto = min(until, self.coming[0]) if self.coming else until
                self._rest(max(upto, self.now + 1e-6) - self.now)
            else:
                self._step(*tokens)
        passed = self.now - begin
        shares = {state: seconds / passed for state, seconds in self.spent.items()}
        self.busy = min(1.0, self.worked / passed)
        self.spent.clear()
        self.worked = 0.0
        return shares

    def page(self) -> str:
        """What it says of itself, as vLLM."""
        counted = "".join(f"vllm:{name} {value}\n" for name, value in sorted(self.counted.items()))
        return (
            f"vllm:num_requests_running {len(self.running)}\n"
            f"vllm:num_requests_waiting {len(self.waiting)}\n"
            f"vllm:kv_cache_usage_perc {self._used() / self.setting.cache_tokens}\n{counted}"
        )

    def _pause(self) -> float:
        return self.now + (
            self.random.expovariate(1 / self.setting.think) if self.setting.think else 0.0
        )

    def _about(self, mean: int) -> int:
        return max(1, int(mean * self.random.uniform(0.5, 1.5)))

    def _used(self) -> int:
        return sum(one.length for one in self.running)

    def _schedule(self) -> tuple[list[Asked], dict[int, int]] | None:
        """Who decodes in the next step, and how much of whose prompt is computed in it."""
        left, pieces = self.setting.step_tokens, dict[int, int]()
        decodes = [one for one in self.running if one.computed >= one.prompt]
        while self._used() + len(decodes) > self.setting.cache_tokens:
            lost = self.running.pop()
            if lost in decodes:
                decodes.remove(lost)
            lost.computed, lost.answered = 0, 0
            self.waiting.appendleft(lost)
            self.counted["num_preemptions_total"] += 1
        left -= len(decodes)
        room = self.setting.cache_tokens - self._used() - len(decodes)
        for one in self.running:
            if one.computed < one.prompt and min(left, room) > 0:
                piece = min(one.prompt - one.computed, left, room)
                pieces[id(one)], left, room = piece, left - piece, room - piece
        while self.waiting and len(self.running) < self.setting.most_requests and left > 0:
            if room < min(self.waiting[0].prompt, left):
                break
            one = self.waiting.popleft()
            self.running.append(one)
            piece = min(one.prompt, left, room)
            pieces[id(one)], left, room = piece, left - piece, room - piece
        return (decodes, pieces) if decodes or pieces else None

    def _step(self, decodes: list[Asked], pieces: dict[int, int]) -> None:
        setting = self.setting
        tokens = len(decodes) + sum(pieces.values())
        read = 2.0 * setting.parameters + self._used() * setting.cache_bytes
        reads, computes = read / BANDWIDTH, 2.0 * setting.parameters * tokens / FLOPS
        self.spent["memory" if reads >= computes else "compute"] += max(reads, computes)
        host = setting.host * self.random.uniform(0.7, 1.3)
        self.spent["launch" if host < SHORT_GAP else "starved"] += host
        self.now += max(reads, computes) + host
        self.worked += max(reads, computes) + host
        self.rested = 0.0
        self.counted["iteration_tokens_total_count"] += 1
        self.counted["iteration_tokens_total_sum"] += tokens
        self.counted["prompt_tokens_total"] += sum(pieces.values())
        self.counted["generation_tokens_total"] += len(decodes)
        for one in self.running:
            one.computed += pieces.get(id(one), 0)
        for one in decodes:
            one.answered += 1
            if one.answered >= one.output:
                self.running.remove(one)
                self.coming.append(self._pause())
        self.coming.sort()

    def _rest(self, seconds: float) -> None:
        self.spent["idle" if self.rested > IDLE_AFTER else "starved"] += seconds
        self.rested += seconds
        self.now += seconds
