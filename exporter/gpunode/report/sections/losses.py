"""What somebody lost most to, and what would give it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.report import words
from gpunode.report.history import Amounts
from gpunode.report.view import (
    LOST,
    held,
    ratio,
)
from gpunode.report.words import OF_STATES, REMEDIES, number, written


@dataclass(frozen=True, slots=True)
class Loss:
    """What a job lost most to: its hours, what the verdicts say, and what would come back."""

    state: str
    cause: str
    evidence: str
    remedy: str
    given_back: float


def loss_of(states: Mapping[str, float], causes: Mapping[str, float]) -> Loss:
    """What would give back most hours of GPUs with this ledger and these verdicts.

    The hours of a state are divided among the causes that take it, as the verdicts named them, and
    no cause gets more than it was named for. What no verdict explains is the state's own.
    """
    back: Amounts = defaultdict(float)
    unexplained: Amounts = {}
    for state in LOST:
        named = {
            cause: hours
            for cause, hours in causes.items()
            if cause in REMEDIES and state in REMEDIES[cause].states and hours > 0
        }
        own, all_named = states.get(state, 0.0), sum(named.values())
        unexplained[state] = max(0.0, own - all_named)
        for cause, hours in named.items():
            back[cause] += own * hours / max(own, all_named)
    nobody_knows = unexplained.pop("unknown")
    cause = max(back, key=lambda name: back[name], default="")
    state = max(unexplained, key=lambda name: unexplained[name])
    if cause and back[cause] >= unexplained[state]:
        taken = max(REMEDIES[cause].states, key=lambda name: states.get(name, 0.0))
        verdict = f"; verdict {cause} for {number(causes[cause])} GPU hours"
        evidence = _share(taken, states) + verdict
        return Loss(taken, cause, evidence, REMEDIES[cause].do, back[cause])
    if unexplained[state] < nobody_knows:
        return Loss("unknown", "", _share("unknown", states), OF_STATES["unknown"], 0.0)
    return Loss(state, "", _share(state, states), OF_STATES[state], unexplained[state])


def _share(state: str, states: Mapping[str, float]) -> str:
    share = written(ratio(states.get(state, 0.0), held(states)), "share")
    return f"{state} for {share} of the time held ({words.STATES[state]})"
