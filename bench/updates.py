"""Whether the report names what changes of versions did, on fleets whose truth is known."""

from __future__ import annotations

import math
import random

from bench.report import Report, Result, machine
from gpunode.report.changes import changes
from tests.report.updates import DAYS, JOBS, KINDS, SHARE, fleet, named

FLEETS = 40
EFFECTS = (0.0, 0.02, 0.05, 0.1)


def updates(seed: int = 5000) -> Report:
    """How many changes are told rightly, by their true effect."""
    told: dict[float, list[bool]] = {effect: [] for effect in EFFECTS}
    held: list[bool] = []
    for number in range(FLEETS):
        chance = random.Random(seed + number)
        effects = dict(zip(KINDS, chance.sample(EFFECTS, len(EFFECTS)), strict=True))
        found = changes(fleet(effects, chance))
        for kind, effect in effects.items():
            step = named(found, kind).step
            assert step is not None
            held.append(step.lower <= math.log1p(effect) <= step.upper)
            told[effect].append(step.lower > 0 if effect else not step.sure)
    results = [
        Result(
            f"a change that makes steps {effect:.0%} longer is told"
            if effect
            else "no change reported where there is none",
            f"{sum(right)} of {len(right)}",
            "95%",
            sum(right) >= 0.95 * len(right),
        )
        for effect, right in told.items()
    ]
    results.append(
        Result(
            "true effects within their bounds",
            f"{sum(held)} of {len(held)}",
            "95%",
            sum(held) >= 0.95 * len(held),
        )
    )
    return Report(
        "What a change did",
        machine(),
        f"{FLEETS} simulated fleets of {JOBS} jobs over {DAYS} days. Four kinds of "
        f"versions change within the same two weeks, each for {SHARE:.0%} of the jobs. Steps vary "
        "from day to day and drift, and owners change 15 % of the jobs by 5 to 30 %.",
        results,
        [],
    )
