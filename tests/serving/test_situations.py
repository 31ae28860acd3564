"""What holds a server up, where it follows from a simulated load and not from what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from gpunode.jobs import processes as job
from tests.serving.fleet import Engines, Fleet
from tests.serving.scheduler import Scheduler, Setting
from tests.serving.simulation import SimulatedEngine
from tests.verdict.stage import Actor, Stage

AT = "127.0.0.1:8000"
WARM, WATCHED, EVERY = 40, 60, 4


def queue(random: Random) -> Setting:
    """More people than the limit of requests, and room in the cache."""
    return Setting(
        random.uniform(3e9, 30e9),
        users=random.randint(16, 80),
        prompt=random.randint(100, 600),
        output=random.randint(100, 800),
        most_requests=random.randint(2, 8),
        host=random.uniform(0.0001, 0.0004),
    )


def kv_full(random: Random) -> Setting:
    """More people than the cache has room for, which large requests leave partly empty."""
    prompt, output = random.randint(500, 4000), random.randint(200, 1500)
    cache = random.randint(4, 30) * (prompt + output)
    return Setting(
        random.uniform(7e9, 30e9),
        users=int(cache / (prompt + output) * random.uniform(2, 4)),
        prompt=prompt,
        output=output,
        cache_tokens=cache,
        host=random.uniform(0.0005, 0.003),
    )


def batch_small(random: Random) -> Setting:
    """A few people."""
    return Setting(
        random.uniform(7e9, 30e9),
        users=random.randint(1, 6),
        prompt=random.randint(50, 500),
        output=random.randint(200, 1500),
        host=random.uniform(0.0001, 0.0004),
    )


def prefill_interference(random: Random) -> Setting:
    """Long documents with short answers."""
    return Setting(
        random.uniform(7e9, 30e9),
        users=random.randint(6, 24),
        prompt=random.randint(8000, 24000),
        output=random.randint(50, 200),
        step_tokens=random.choice([2048, 4096, 8192]),
        cache_tokens=1_000_000,
        host=random.uniform(0.0005, 0.002),
    )


def host_bound(random: Random) -> Setting:
    """A small model whose steps take as long as the scheduler."""
    return Setting(
        random.uniform(0.5e9, 3e9),
        users=random.randint(4, 64),
        prompt=random.randint(50, 500),
        output=random.randint(200, 1500),
        host=random.uniform(0.003, 0.03),
    )


def memory_bandwidth(random: Random) -> Setting:
    """Enough people, and room for all."""
    return Setting(
        random.uniform(7e9, 30e9),
        users=random.randint(24, 120),
        prompt=random.randint(200, 800),
        output=random.randint(300, 1500),
        host=random.uniform(0.0002, 0.001),
    )


def no_requests(random: Random) -> Setting:
    """Nobody asks."""
    return Setting(random.uniform(0.5e9, 30e9), users=0, prompt=1, output=1)


SITUATIONS: tuple[Callable[[Random], Setting], ...] = (
    queue,
    kv_full,
    batch_small,
    prefill_interference,
    host_bound,
    memory_bandwidth,
    no_requests,
)


@dataclass(frozen=True)
class Kind:
    """An engine as another has it: what runs, what it says, and how it computes prompts."""

    name: str
    program: str
    process: str
    page: Callable[[Scheduler], str]
    apart: bool = False


KINDS = (
    Kind("vllm", "vllm", "VLLM::EngineCore", Scheduler.page),
    Kind("sglang_0.5.23", "sglang", "sglang::scheduler", Scheduler.page_of_sglang, apart=True),
    Kind(
        "sglang_0.5.9",
        "sglang",
        "sglang::scheduler",
        partial(Scheduler.page_of_sglang, prefills=False),
        apart=True,
    ),
)


def causes(kind: Kind, setting: Setting, random: Random, root: Path) -> Counter[str]:
    """How often each cause was named, once the engine has run for a while."""
    engine = SimulatedEngine(replace(setting, apart=kind.apart), random)
    actor = Actor(0, program=kind.process)
    fleet = Fleet(root)
    fleet.run(7, program=kind.program)
    fleet.cards[0].hold(7)
    stage = Stage(actor, finders=[Engines(fleet)])
    fleet.proc.node.clock = stage.clock  # type: ignore[assignment]
    named: Counter[str] = Counter()
    for second in range(2, WARM + WATCHED + 1, 2):
        actor.states = engine.play(second)
        actor.gauges = {job.HOST_THREAD: engine.busy}
        fleet.serve(7, AT, kind.page(engine.scheduler))
        stage.play(2)
        if second > WARM and second % EVERY == 0:
            named[stage.verdict().cause] += 1
    return named


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_cause_follows_from_the_load(
    kind: Kind, situation: Callable[[Random], Setting], tmp_path: Path
) -> None:
    random = Random(f"{situation.__name__} {kind.name}")
    named = causes(kind, situation(random), random, tmp_path)
    assert named[situation.__name__] >= 0.9 * named.total(), named
