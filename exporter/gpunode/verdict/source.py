"""Reports every few seconds the bottleneck of each GPU over the last minute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpunode.gpu import GPU
from gpunode.gpu.activity import SECONDS
from gpunode.metric import Metric, Sample
from gpunode.source import Reading, Readings
from gpunode.verdict.causes import CAUSES, USED, Evidence, judge, stalled
from gpunode.verdict.facts import Facts, Snapshot
from gpunode.verdict.limits import STEP_OVERDUE, STEP_OVERDUE_LEAST

BOTTLENECK = Metric(
    "gpunode_gpu_bottleneck",
    "gauge",
    "Whether this was the bottleneck of the GPU over the last minute. Exactly one cause is 1; the "
    "evidence is at /api/v1/verdict.",
    (*GPU, "cause"),
)

STALLS = ("collective", "input", "unknown")

TRAINING_STALLED = Metric(
    "gpunode_training_stalled",
    "gauge",
    f"Whether no training step has ended for {STEP_OVERDUE:g} times the median step time and at "
    f"least {STEP_OVERDUE_LEAST:g} s. The cause is `collective` if the GPU spins for a peer, "
    "`input` if it has nothing to do, else `unknown`.",
    (*GPU, "cause"),
)

PERIOD = 60.0
"""Seconds that a verdict covers."""

EVERY = 5.0
"""Seconds between verdicts."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one GPU: a cause, its meaning, the share of time affected, and why."""

    gpu: str
    uuid: str
    cause: str
    meaning: str
    share: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts on all GPUs."""

    verdicts: tuple[Judgement, ...]


class Verdicts:
    """Derives the bottleneck of each GPU from the readings of all sources."""

    name = "verdict"
    every = EVERY
    metrics = (BOTTLENECK, TRAINING_STALLED)

    def __init__(self) -> None:
        self._history: deque[Snapshot] = deque(maxlen=round(PERIOD / EVERY) + 1)

    def read(self, readings: Readings) -> Reading:
        """The verdict on every GPU whose ledger reaches back far enough."""
        clock = readings.clock
        self._history.append(Snapshot(clock.monotonic(), readings.values(USED)))
        facts = Facts(tuple(self._history), USED, clock.time())
        found = {
            (labels[0], labels[1]): verdict
            for labels in facts.series(SECONDS)
            if labels[2] == "unknown" and (verdict := judge(facts, (labels[0], labels[1])))
        }
        samples = (
            Sample(BOTTLENECK, (*at, cause), float(cause == verdict.cause))
            for at, verdict in found.items()
            for cause in CAUSES
        )
        overdue = {at: cause for at in found if (cause := stalled(facts, at)) is not None}
        stalls = (
            Sample(TRAINING_STALLED, (*at, cause), float(cause == found_cause))
            for at, found_cause in overdue.items()
            for cause in STALLS
        )
        judged = (
            Judgement(*at, verdict.cause, CAUSES[verdict.cause], verdict.share, verdict.evidence)
            for at, verdict in found.items()
        )
        return Reading((*samples, *stalls), Judged(tuple(judged)))
