"""Whether the next step of a training run is overdue, by the steps that its client reports."""

from __future__ import annotations

from gpunode.gpu import GPU
from gpunode.gpu.activity import SECONDS
from gpunode.jobs import steps
from gpunode.metric import Metric
from gpunode.verdict.causes.cause import BOUND
from gpunode.verdict.facts import At, Facts

STEP_OVERDUE = 5.0
"""A step is overdue after this multiple of the median step time."""

STEP_OVERDUE_MIN = 30.0
"""No step is overdue before this many seconds."""

STALLS = ("collective", "input", "unknown")

TRAINING_STALLED = Metric(
    "gpunode_training_stalled",
    "gauge",
    f"Whether no step has ended for {STEP_OVERDUE:g} times the median step time and at least "
    f"{STEP_OVERDUE_MIN:g} s. `cause` is "
    "`collective` if the GPU waits for a peer, `input` if it has nothing to do, else `unknown`.",
    (*GPU, "cause"),
)

USES = (SECONDS, steps.LAST_STEP, steps.MEDIAN)
"""The metrics that tell."""


def stalled(facts: Facts, at: At) -> str | None:
    """Why the step of a training run is overdue: a cause, empty if it is not overdue.

    None if no steps are reported or expected.
    """
    last = facts.now(steps.LAST_STEP, *at)
    median = facts.now(steps.MEDIAN, *at)
    if last is None or median is None:
        return None
    if facts.time - last <= max(STEP_OVERDUE_MIN, STEP_OVERDUE * median):
        return ""
    shares = facts.recent(STEP_OVERDUE_MIN).shares(at)
    nothing_to_do = shares.get("starved", 0.0) + shares.get("idle", 0.0)
    causes = {"collective": shares.get("blocked", 0.0), "input": nothing_to_do}
    cause = max(causes, key=causes.__getitem__)
    return cause if causes[cause] >= BOUND else "unknown"
