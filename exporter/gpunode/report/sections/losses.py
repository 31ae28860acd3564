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
    """The cause that would give back most hours of GPUs with this ledger and these verdicts.

    The hours of the states that a cause takes are divided among the causes that take them, as the
    verdicts named them. For what no verdict explains, no cause is made up.
    """
    back: Amounts = defaultdict(float)
    for state in LOST:
        named = {
            cause: hours
            for cause, hours in causes.items()
            if cause in REMEDIES and state in REMEDIES[cause].states and hours > 0
        }
        for cause, hours in named.items():
            own = states.get(state, 0.0)
            back[cause] += own * hours / max(own, sum(named.values()))
    worst = max(LOST, key=lambda state: states.get(state, 0.0))
    cause = max(back, key=lambda name: back[name], default="")
    share = written(ratio(states.get(worst, 0.0), held(states)), "share")
    evidence = f"{worst} for {share} of the time held ({words.STATES[worst]})"
    if not cause or back[cause] < states.get(worst, 0.0) / 2:
        back_at_most = states.get(worst, 0.0) if worst != "unknown" else 0.0
        return Loss(worst, "", evidence, OF_STATES[worst], back_at_most)
    evidence += f"; verdict {cause} for {number(causes[cause])} GPU hours"
    return Loss(worst, cause, evidence, REMEDIES[cause].do, back[cause])
