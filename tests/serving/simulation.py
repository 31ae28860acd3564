"""An engine with continuous batching, step by step: what its GPU does follows from its load.

A step takes as long as reading the weights and the KV cache, or as the arithmetic of its tokens,
whichever is longer, and then the scheduler's time, in which the GPU has nothing to run:
https://arxiv.org/abs/2402.16363 (roofline of inference).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from tests.serving.scheduler import Scheduler, Setting, StepPlan
from tests.verdict.stage import HBM, SHORT

BANDWIDTH = 3.35e12 * 0.8
FLOPS = 989e12 * 0.6
"""What a kernel reaches of an H100's HBM and BF16 peak."""

SHORT_GAP = 0.02
"""Seconds of a gap between kernels up to which nothing but a launch fits."""

IDLE_AFTER = 10.0
"""As ``gpunode.gpu.ledger.IDLE_AFTER``."""


@dataclass
class SimulatedEngine:
    """What its GPU did since that was last taken."""

    setting: Setting
    random: Random
    now: float = 0.0
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    rested: float = 0.0
    worked: float = 0.0
    busy: float = 0.0
    """The share of a CPU that its scheduler took in what was played last: it also waits for the GPU
    on it, as CUDA does unless told otherwise."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.setting, self.random)
        self.scheduler.open(self.now)

    def play(self, until: float) -> dict[str, float]:
        """Let time go on; the shares of the GPU's states meanwhile."""
        begin = self.now
        while self.now < until:
            step = self.scheduler.plan(self.now)
            if step is None:
                upto = min(until, self.scheduler.next_at)
                self._rest(max(upto, self.now + 1e-6) - self.now)
            else:
                self._step(step)
        passed = self.now - begin
        shares = {state: seconds / passed for state, seconds in self.spent.items()}
        self.busy = min(1.0, self.worked / passed)
        self.spent.clear()
        self.worked = 0.0
        return shares

    def _step(self, step: StepPlan) -> None:
        setting = self.setting
        read = 2.0 * setting.parameters + self.scheduler.used * setting.cache_bytes
        reads, computes = read / BANDWIDTH, 2.0 * setting.parameters * step.tokens / FLOPS
        self.spent[HBM if reads >= computes else "compute"] += max(reads, computes)
        host = setting.host * self.random.uniform(0.7, 1.3)
        self.spent[SHORT if host < SHORT_GAP else "starved"] += host
        self.now += max(reads, computes) + host
        self.worked += max(reads, computes) + host
        self.rested = 0.0
        self.scheduler.done(step, self.now)

    def _rest(self, seconds: float) -> None:
        self.spent["idle" if self.rested > IDLE_AFTER else "starved"] += seconds
        self.rested += seconds
        self.now += seconds
