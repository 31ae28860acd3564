"""The scheduler of an engine with continuous batching, and what it says of itself.

Paged KV cache: https://arxiv.org/abs/2309.06180; prompts in pieces beside decoding:
https://arxiv.org/abs/2403.02310. What a step takes is another's business: a model of a GPU, or one.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random

BOUNDS = (0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0)
"""Of the histograms, in seconds; 1 s and 2.5 s are vLLM's."""


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

    before: float = 0.002
    after: float = 0.004
    """Mean seconds of the server outside of its scheduler: until a request is in its queue (the
    text becomes tokens, and goes to another process), and until a token is with who asked."""

    apart: bool = False
    """Whether prompts have passes of their own, which come first, as SGLang has it."""


@dataclass(eq=False)
class Request:
    """A request: how far its prompt and its answer are, and when it came and went on."""

    prompt: int
    output: int
    came: float
    queued: float
    began: float | None = None
    first: float | None = None
    computed: int = 0
    answered: int = 0

    @property
    def length(self) -> int:
        return self.computed + self.answered


@dataclass(frozen=True)
class StepPlan:
    """A step: who decodes in it, and how much of whose prompt is computed."""

    decodes: Sequence[Request]
    pieces: Mapping[Request, int]

    @property
    def tokens(self) -> int:
        return len(self.decodes) + sum(self.pieces.values())


@dataclass
class Scheduler:
    """Who is served when, and what has been counted of it."""

    setting: Setting
    random: Random
    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    coming: list[tuple[float, float]] = field(default_factory=list)
    """When each of the next requests is in the queue, and when it comes to the server."""

    leaving: list[tuple[float, float]] = field(default_factory=list)
    """When each of the first tokens is with who asked, and when that request came."""

    counted: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)
    """Those with prompts (`prefill`), and those in which requests only `decode`."""

    ended: Counter[str] = field(default_factory=Counter)
    """Of the requests that were answered: how many, and the tokens of prompts and answers."""

    def open(self, now: float) -> None:
        """Let the people come."""
        for _ in range(self.setting.users):
            self._ask(now)

    @property
    def next_at(self) -> float:
        """When the next request is in the queue; never, if nobody asks."""
        return min(self.coming, default=(inf, inf))[0]

    @property
    def used(self) -> int:
        """Tokens in the KV cache."""
        return sum(one.length for one in self.running)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, with those who have come; None if there is nothing to compute."""
        self._deliver(now)
        while self.next_at <= now:
            queued, came = self.coming.pop(0)
            prompt, output = self._about(self.setting.prompt), self._about(self.setting.output)
            self.waiting.append(Request(prompt, output, came, queued))
        pieces: dict[Request, int] = {}
        decodes = [one for one in self.running if one.computed >= one.prompt]
        while self.used + len(decodes) > self.setting.cache_tokens:
            lost = self.running.pop()
            if lost in decodes:
                decodes.remove(lost)
            lost.computed = lost.answered = 0
            self.waiting.appendleft(lost)
            self.counted["num_preemptions_total"] += 1
        left = self.setting.step_tokens - len(decodes)
        room = self.setting.cache_tokens - self.used - len(decodes)
        for one in self.running:
            if one.computed < one.prompt and min(left, room) > 0:
                pieces[one] = piece = min(one.prompt - one.computed, left, room)
                left, room = left - piece, room - piece
        while self.waiting and len(self.running) < self.setting.most_requests and left > 0:
            if room < min(self.waiting[0].prompt, left):
                break
            one = self.waiting.popleft()
            self.running.append(one)
            if one.began is None:
                one.began = now
                self._time("request_queue_time_seconds", now - one.queued)
            pieces[one] = piece = min(one.prompt, left, room)
            left, room = left - piece, room - piece
        if self.setting.apart and pieces:
            decodes = []
        return StepPlan(decodes, pieces) if decodes or pieces else None

    def done(self, step: StepPlan, now: float) -> None:
        """A step is over."""
        self.counted["iteration_tokens_total_count"] += 1
        self.counted["iteration_tokens_total_sum"] += step.tokens
        self.counted["prompt_tokens_total"] += sum(step.pieces.values())
        self.counted["generation_tokens_total"] += len(step.decodes)
        self.passes["prefill" if step.pieces else "decode"] += 1
        for one, piece in step.pieces.items():
            one.computed += piece
        for one in step.decodes:
            one.answered += 1
            if one.first is None:
                one.first = now
                self.leaving.append((now + self._spread(self.setting.after), one.came))
                self._time("request_prefill_time_seconds", now - (one.began or one.queued))
            if one.answered >= one.output:
                self.running.remove(one)
                self._time("request_decode_time_seconds", now - one.first)
                self._ask(now + self._spread(self.setting.after))
                self.ended.update(requests=1, prompt=one.prompt, generated=one.answered)

    def page(self) -> str:
        """What it says of itself, as vLLM."""
        counted = "".join(f"vllm:{name} {value}\n" for name, value in sorted(self.counted.items()))
        return (
            f"vllm:num_requests_running {len(self.running)}\n"
            f"vllm:num_requests_waiting {len(self.waiting)}\n"
            f"vllm:kv_cache_usage_perc {self.used / self.setting.cache_tokens}\n{counted}"
        )

    def page_of_sglang(self, *, prefills: bool = True) -> str:
        """What it says of itself, as SGLang from 0.5.8; passes with prompts from 0.5.10 on."""
        tokens = {
            "prefill_compute": self.counted["prompt_tokens_total"],
            "decode": self.counted["generation_tokens_total"],
        }
        passes = {"decode_cuda_graph": self.passes["decode"]}
        if prefills:
            passes["prefill_none"] = self.passes["prefill"]
        told = {
            "num_running_reqs": len(self.running),
            "num_queue_reqs": len(self.waiting),
            "token_usage": self.used / self.setting.cache_tokens,
            "num_retracted_requests_total": self.counted["num_preemptions_total"],
            "prompt_tokens_total": self.ended["prompt"],
            "generation_tokens_total": self.ended["generated"],
            "num_requests_total": self.ended["requests"],
            **{f'realtime_tokens_total{{mode="{mode}"}}': of for mode, of in tokens.items()},
            **{f'cuda_graph_passes_total{{mode="{mode}"}}': of for mode, of in passes.items()},
        }
        return "".join(f"sglang:{name} {value}\n" for name, value in told.items())

    def _ask(self, now: float) -> None:
        """Let one of the people think, and ask."""
        came = now + self._pause()
        insort(self.coming, (came + self._spread(self.setting.before), came))

    def _deliver(self, now: float) -> None:
        """Count the first tokens that are with who asked."""
        for one in [one for one in self.leaving if one[0] <= now]:
            self.leaving.remove(one)
            self._time("time_to_first_token_seconds", one[0] - one[1])

    def _time(self, name: str, seconds: float) -> None:
        """Count one in a histogram."""
        self.counted[f"{name}_count"] += 1
        self.counted[f"{name}_sum"] += seconds  # type: ignore[assignment]
        for bound in (*BOUNDS, float("inf")):
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            self.counted[f'{name}_bucket{{le="{le}"}}'] += seconds <= bound

    def _pause(self) -> float:
        return self.random.expovariate(1 / self.setting.think) if self.setting.think else 0.0

    def _about(self, mean: int) -> int:
        return max(1, int(self._spread(mean)))

    def _spread(self, mean: float) -> float:
        return mean * self.random.uniform(0.5, 1.5)
