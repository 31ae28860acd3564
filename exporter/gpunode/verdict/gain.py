"""What mending a cause would give: how many times as fast the job would be, with an interval.

The remedy of a cause says what is left of the time (``Remedy.left``). The interval has nine tenths
of what was measured: it is made of how much the windows differ, and of how well the model held on
pairs of jobs without and with the remedy (``bench/truth/pairs.py``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpunode.gpu import GPU
from gpunode.metric import Metric, Sample
from gpunode.verdict.case import Case
from gpunode.verdict.causes.cause import Cause, Remedy, share_without
from gpunode.verdict.facts import At

GAIN = Metric(
    "gpunode_gpu_verdict_gain_ratio",
    "gauge",
    "How many times as fast the job would be without the cause of the verdict: `estimate`, and "
    "the bounds of the 90 % interval, `lower` and `upper`. Absent where no time is lost, or the "
    "job stands still.",
    (*GPU, "cause", "bound"),
)

BOUNDS = ("lower", "estimate", "upper")

Z_90 = 1.645
"""Standard errors on each side of an estimate that hold nine tenths of what is measured."""

LEDGER = 0.01
"""Standard error of a share of time in the ledger, over a verdict's seconds."""

MAX_UNCERTAINTY = 2.0
"""How many times the lower bound the upper one may be for an estimate to be told."""

MIN_TIME_LEFT = 0.04
"""Of a job that would take less than this share of its time, nobody knows how fast it may be."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast a job would be, with bounds that hold nine times in ten."""

    lower: float
    estimate: float
    upper: float

    @property
    def words(self) -> str:
        """The gain, for people; empty if it rounds to none.

        Of bounds that are more than twofold apart, only the lower one says anything.
        """
        none, unsure = _times(1.0), self.upper > MAX_UNCERTAINTY * self.lower
        if none == _times(self.lower if unsure else self.estimate):
            return ""
        if unsure:
            return f"at least {_times(self.lower)} times as fast"
        bounds = f"{_times(self.lower)} to {_times(self.upper)}"
        return f"{_times(self.estimate)} times as fast ({bounds})"

    def samples(self, at: At, cause: Cause) -> Iterator[Sample]:
        """The series of a GPU whose verdict names a cause."""
        for bound in BOUNDS:
            yield Sample(GAIN, (*at, cause.name, bound), getattr(self, bound))


def gain(case: Case, cause: Cause) -> Gain | None:
    """What mending the cause of a verdict would give."""
    remedy = cause.remedy
    if remedy is None or cause.stands_still:
        return None
    left = _time_left(remedy, case)
    if left is None or not MIN_TIME_LEFT <= left <= 1.0 - LEDGER:
        return None
    windows = [_time_left(remedy, replace(case, shares=shares)) for shares in case.windows()]
    known = [one for one in windows if one is not None]
    varies = _standard_error(known) if len(known) > 1 else 0.0
    error = Z_90 * math.hypot(varies, remedy.unsure * (1.0 - left), LEDGER)
    return Gain(1.0 / min(1.0, left + error), 1.0 / left, 1.0 / max(MIN_TIME_LEFT, left - error))


def _standard_error(values: Sequence[float]) -> float:
    """That of the mean of at least two values: ``statistics.stdev`` takes ninety times as long."""
    many, mean = len(values), statistics.fmean(values)
    return math.dist(values, [mean] * many) / math.sqrt(many * (many - 1))


def _time_left(remedy: Remedy, case: Case) -> float | None:
    """The share of its time in which the job would do the same; at most all of it."""
    left = remedy.left(case) if remedy.left else share_without(remedy.states, case)
    return None if left is None else min(1.0, left)


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
