"""The situations of the engine, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from tests.serving.scheduler import Setting

SEVEN, HALF = 7e9, 0.5e9
"""Parameters of the models."""


@dataclass(frozen=True)
class Situation:
    """An engine and who asks it; ``name`` is the cause that should be named."""

    name: str
    setting: Setting
    layers: int = 32
    width: int = 4096
    hidden: int = 14336
    key_heads: int = 8
    slots: int = 64
    longest: int = 2048
    graphs: bool = True
    ranks: int = 1
    loads: bool = False
    """Whether its weights come from the host, which takes as long as from a slow disk."""


SMALL = {"layers": 24, "width": 1024, "hidden": 2816}

SITUATIONS = {
    situation.name: situation
    for situation in (
        Situation(
            "prefill_interference",
            Setting(SEVEN, users=12, prompt=9000, output=80, step_tokens=4096),
            slots=16,
            longest=16384,
        ),
        Situation(
            "kv_full",
            Setting(SEVEN, users=40, prompt=1500, output=500, cache_tokens=24_000),
            slots=48,
            longest=4096,
        ),
        Situation(
            "queue",
            Setting(SEVEN, users=32, prompt=300, output=400, most_requests=4, host=0.0002),
            slots=4,
        ),
        Situation(
            "batch_small",
            Setting(SEVEN, users=3, prompt=200, output=600, host=0.0002),
            slots=4,
        ),
        Situation(
            "host_bound",
            Setting(HALF, users=24, prompt=200, output=500, host=0.004),
            slots=24,
            **SMALL,  # type: ignore[arg-type]
        ),
        Situation("no_requests", Setting(HALF, users=0, prompt=1, output=1), **SMALL),  # type: ignore[arg-type]
        Situation(
            "cold_start",
            Setting(SEVEN, users=0, prompt=1, output=1),
            layers=24,
            slots=4,
            loads=True,
        ),
        Situation(
            "stalled_collective",
            Setting(SEVEN, users=16, prompt=1, output=600),
            slots=16,
            graphs=False,
            ranks=2,
        ),
    )
}
