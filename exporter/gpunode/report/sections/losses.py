"""What somebody lost to what, and what would give it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.report.history import Amounts
from gpunode.report.view import (
    LOSSES,
    held,
    ratio,
)
from gpunode.report.words import REMEDIES, amount, as_text, headline, helps
from gpunode.verdict.causes.cause import GAPS


@dataclass(frozen=True, slots=True)
class Loss:
    """What a job lost to: its hours, what the verdicts say, and what would come back."""

    state: str
    cause: str
    evidence: str
    remedy: str
    given_back: float

    @property
    def name(self) -> str:
        """What took the hours: a cause, or else a state of the ledger."""
        return self.cause or self.state


def loss_of(states: Mapping[str, float], causes: Mapping[str, float]) -> Loss:
    """What would give back most hours of GPUs with this ledger and these verdicts."""
    return losses_of(states, causes)[0]


def taken(states: Mapping[str, float], causes: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Lost GPU hours by state and by the cause that took them, which is empty if none is known.

    They add up to what was lost. The hours of a state are divided among the causes that take it,
    as the verdicts named them: first those that take it above all others. No cause gets more of a
    state, or of all gaps, than it was named for.
    """
    found: dict[tuple[str, str], float] = defaultdict(float)
    left = dict(causes)
    unexplained = {state: states.get(state, 0.0) for state in LOSSES}
    for place in range(max(len(remedy.states) for remedy in REMEDIES.values())):
        for state in LOSSES:
            named = {
                cause: hours
                for cause, hours in left.items()
                if cause in REMEDIES
                and state in REMEDIES[cause].states[place : place + 1]
                and hours > 0
            }
            own, all_named = unexplained[state], sum(named.values())
            unexplained[state] = max(0.0, own - all_named)
            for cause, hours in named.items():
                given = own * hours / max(own, all_named)
                found[state, cause] += given
                if state in GAPS:  # whatever their length, a verdict was for all of them
                    left[cause] -= given
    return found | {(state, ""): hours for state, hours in unexplained.items()}


def losses_of(states: Mapping[str, float], causes: Mapping[str, float]) -> list[Loss]:
    """What would give back hours of GPUs with this ledger and these verdicts, the most first."""
    back: Amounts = defaultdict(float)
    ranked = []
    nobody_knows = 0.0
    for (state, cause), hours in taken(states, causes).items():
        if cause:
            back[cause] += hours
        elif state == "unknown":
            nobody_knows = hours
        else:
            ranked.append(Loss(state, "", share_of(state, states), helps(state), hours))
    ranked += [_cause_loss(cause, hours, states, causes[cause]) for cause, hours in back.items()]
    ranked.sort(key=lambda loss: -loss.given_back)
    unknown = Loss("unknown", "", share_of("unknown", states), helps("unknown"), 0.0)
    if not ranked[0].cause and ranked[0].given_back < nobody_knows:
        return [unknown, *ranked]
    return [*ranked, unknown]


def _cause_loss(cause: str, back: float, states: Mapping[str, float], named: float) -> Loss:
    taken = max(REMEDIES[cause].states, key=lambda name: states.get(name, 0.0))
    evidence = f"{share_of(taken, states)}; verdicts name it for {amount(named, 'GPU hour')}"
    return Loss(taken, cause, evidence, REMEDIES[cause].do, back)


def share_of(state: str, states: Mapping[str, float]) -> str:
    """For which share of the time that was held the GPUs were in a state, in words."""
    share = as_text(ratio(states.get(state, 0.0), held(states)), "share")
    return f"{headline(state)} for {share} of the time held"
