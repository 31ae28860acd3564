"""The verdict that stands on each GPU: a change of it needs more evidence than staying does.

Where two causes lose about as much, or one is near its threshold, noise alone would name now this
and now that one. So a verdict stands for ``HOLD_SECONDS`` seconds while the GPU does what it
usually does, and after that until another loss is clearly larger or has been the larger one for
long. What stands still, a new job, and a GPU that does something else are told at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpunode.holders.owner import Started
from gpunode.verdict.case import Case
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.facts import LATEST_SECONDS, At
from gpunode.verdict.judge import Verdict

HOLD_SECONDS = 30.0
"""Seconds for which a verdict stands at least on a GPU that does what it usually does."""

LARGER = 1.5
"""From this multiple of the standing loss, another is clearly larger."""

CONFIRMATIONS = 2
"""Verdicts in a row that name another cause before it is believed of such a GPU."""

EXPLAINED = 20.0
"""Seconds within which all is known that explains time without work: its sources are read every
10 s. Meanwhile one explanation may follow another; and what says more of the same loss may follow
what says less for ``HOLD_SECONDS`` seconds, as its evidence may be changes that must be seen."""

EVIDENCE_SECONDS = 300.0
"""Seconds for which a cause is named for a loss that stays the same, after the last evidence for
it: a disk or a CPU that is at its limit in bursts is about its threshold between them."""

MIN_EVIDENCE_SHARE = 0.2
"""Share of the verdicts that need evidence meanwhile: what a job does while it starts is no cause
of what it lacks later."""

MOVED = 0.25
CHANGE_RATIO = 3.0
"""Share of its time that a GPU must spend otherwise than usual to do something else: at least the
first, and at least this multiple of what it differs from the usual on average."""

RESTS = ("idle", "free")
"""States that a GPU enters when its work has ended, however much it varied before."""

FORGETS = 1.0 / 15.0
"""Weight of the last windows in what is usual: that of half a minute of verdicts."""


@dataclass(slots=True)
class Standing:
    """The verdict on one GPU, and what the GPU usually does while it stands."""

    verdict: Verdict
    processes: frozenset[tuple[int, float]]
    """The processes on the GPU, each a PID and when it started."""

    kind: str
    """Their kind of work."""

    usual: Mapping[str, float]
    """Mean share of time by state."""

    rests_on: Mapping[str, float]
    """The shares that were judged when it fell: of a GPU that had just begun to do something else,
    they are partly those of before."""

    began: float
    """When (monotonic) the GPU began to do this."""

    since: float = -math.inf
    """When (monotonic) it took the place of another; the first of a job may be mended soon."""

    varies: float = 0.0
    """The mean distance between the last windows and the usual."""

    evidence: float = -math.inf
    """When (monotonic) it was last found."""

    shown: int = 1
    looks: int = 1
    """In how many of its verdicts there was evidence, and how many there were."""

    doubted: int = 0
    doubted_since: float = math.inf
    """Verdicts in a row that named another cause, and when the first of them fell."""

    def is_over(self, shares: Mapping[str, float]) -> bool:
        """Whether what the verdict rested on is gone."""
        return distance(shares, self.rests_on) >= MOVED

    def moved(self, latest: Mapping[str, float]) -> bool:
        """Whether the GPU does something else than usual."""
        if any(latest.get(s, 0.0) >= BOUND > self.usual.get(s, 0.0) for s in RESTS):
            return True
        return distance(latest, self.usual) >= max(MOVED, CHANGE_RATIO * self.varies)

    def learn(self, latest: Mapping[str, float]) -> None:
        """Add the last windows to what is usual."""
        self.varies += FORGETS * (distance(latest, self.usual) - self.varies)
        self.usual = {
            state: (1.0 - FORGETS) * self.usual.get(state, 0.0) + FORGETS * share
            for state, share in latest.items()
        }


class Standings:
    """Remembers the verdict on each GPU."""

    def __init__(self) -> None:
        self._standing: dict[At, Standing] = {}

    def after(self, case: Case, found: Sequence[Verdict], started: Iterable[Started]) -> Verdict:
        """The verdict on a GPU, once these were found: at least one, the foremost first."""
        now = case.facts.snapshots[-1].moment
        latest = case.facts.recent(LATEST_SECONDS).shares(case.at) or case.shares
        processes = frozenset((process.pid, process.start) for process in started)
        standing = self._standing.get(case.at)
        if (
            standing is None
            or standing.kind != case.kind
            or _changed_hands(standing.processes, processes)
        ):
            self._standing[case.at] = Standing(
                found[0], processes, case.kind, latest, case.shares, now, evidence=now
            )
            return found[0]
        standing.processes = processes
        cause = standing.verdict.cause
        same = next((verdict for verdict in found if verdict.cause is cause), None)
        standing.looks += 1
        if same is not None:
            standing.verdict, standing.evidence = same, now
            standing.shown += 1
        elif found[0].cause.uncertain and _is_remembered(standing, latest, now):
            standing.verdict = replace(standing.verdict, share=found[0].share)
            standing.learn(latest)
            return standing.verdict
        if found[0].cause is cause:
            standing.doubted, standing.doubted_since = 0, math.inf
        else:
            standing.doubted += 1
            standing.doubted_since = min(standing.doubted_since, now)
            if _gives_way(standing, same, found[0], latest, case.shares, now):
                usual, began = standing.usual, standing.began
                if standing.moved(latest):
                    usual, began = latest, now
                self._standing[case.at] = Standing(
                    *(found[0], processes, case.kind, usual, case.shares, began, now),
                    varies=standing.varies,
                    evidence=now,
                )
                return found[0]
        standing.learn(latest)
        return standing.verdict

    def forget_others(self, gpus: Iterable[At]) -> None:
        """Forget all GPUs but these."""
        self._standing = {at: self._standing[at] for at in gpus if at in self._standing}


def _is_remembered(standing: Standing, latest: Mapping[str, float], now: float) -> bool:
    """Whether a cause still explains the same loss, though nothing shows it at this moment."""
    cause = standing.verdict.cause
    of_limits = cause.explains and not (cause.uncertain or cause.ends_by_itself)
    seldom = standing.shown < MIN_EVIDENCE_SHARE * standing.looks
    recent = now - standing.evidence < EVIDENCE_SECONDS
    return of_limits and recent and not seldom and not standing.moved(latest)


def distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Share of the time that is spent otherwise: half the sum of the differences by state."""
    return sum(abs(one.get(s, 0.0) - other.get(s, 0.0)) for s in {*one, *other}) / 2


def _changed_hands(before: frozenset[tuple[int, float]], now: frozenset[tuple[int, float]]) -> bool:
    """Whether none of the processes that were on the GPU still is."""
    return before != now and before.isdisjoint(now)


def _gives_way(
    standing: Standing,
    same: Verdict | None,
    other: Verdict,
    latest: Mapping[str, float],
    shares: Mapping[str, float],
    now: float,
) -> bool:
    """Whether another verdict takes the place of the standing one, of which ``same`` is left."""
    before = standing.verdict.cause
    if other.cause.stands_still or before.stands_still:
        return True
    if now - standing.doubted_since >= HOLD_SECONDS:
        return True
    refined = before.name in other.cause.refines and now - standing.began < HOLD_SECONDS
    if refined and standing.doubted >= CONFIRMATIONS:
        return True
    if same is not None and other.share < LARGER * same.share:
        return False
    if standing.moved(latest) or (same is None and standing.is_over(shares)):
        return True
    still_open = now - standing.began < EXPLAINED and before.explains and other.cause.explains
    return (
        still_open or now - standing.since >= HOLD_SECONDS
    ) and standing.doubted >= CONFIRMATIONS
