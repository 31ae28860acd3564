"""How often verdicts change while the same goes on: recorded incidents played again and again."""

from __future__ import annotations

from collections import Counter

from bench.report import Report, Result, machine
from gpunode.config.daemon import Settings
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.sources import watch
from gpunode.verdict.source import Judgements

SECONDS = 1200.0
"""Of each incident, in a loop."""

SETTLED = 60.0
"""Seconds before verdicts are counted: of a job that has just come, little is known."""


def changes(name: str, seconds: float = SECONDS) -> tuple[float, Counter[tuple[str, str]]]:
    """Changes of verdicts per GPU and hour, and which."""
    node = TapeNode(INCIDENTS / name)
    loop = watch(node, Settings())
    begin = node.clock.monotonic()
    standing: dict[str, str] = {}
    found: Counter[tuple[str, str]] = Counter()
    for _ in loop.replay(node.clock, seconds):
        for told in loop.details(Judgements):
            for one in told.detail.verdicts:
                before = standing.get(one.gpu, one.cause)
                standing[one.gpu] = one.cause
                if before != one.cause and node.clock.monotonic() - begin > SETTLED:
                    found[before, one.cause] += 1
    return found.total() / max(1, len(standing)) / ((seconds - SETTLED) / 3600), found


def steadiness() -> Report:
    """Every recorded incident."""
    details, rates = [], []
    for path in sorted(INCIDENTS.glob("*.jsonl.gz")):
        rate, found = changes(path.name)
        rates.append(rate)
        which = ", ".join(f"{a} to {b} {many}" for (a, b), many in found.most_common(4))
        details.append(f"{rate:6.1f} {path.name.partition('.')[0]}: {which or 'none'}")
    return Report(
        "How often verdicts change",
        machine(),
        "Each recorded incident played for 20 minutes in a loop; where it goes through several "
        "phases, so do the verdicts. Changes of the named cause, for each GPU and hour.",
        [
            Result("mean over all incidents", f"{sum(rates) / len(rates):.1f} per hour"),
            Result("most of an incident", f"{max(rates):.1f} per hour"),
        ],
        details,
    )
