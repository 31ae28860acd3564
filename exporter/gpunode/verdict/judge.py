"""The bottleneck of one GPU: a cause, and the evidence for it.

A verdict names one cause. The largest loss of time wins; only if almost none was lost does the
verdict name what bounds the work itself. Each verdict keeps its evidence: exported series, with the
value that counted and the threshold that it passed, so that anyone can check it in Prometheus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpunode.gpu.activity import SHORT_GAPS
from gpunode.gpu.units import PCIE_BYTES
from gpunode.jobs.processes import UNREADABLE
from gpunode.loop import complaints
from gpunode.loop.complaints import isolated
from gpunode.metric import Metric, Sample
from gpunode.verdict.case import Case, Evidence
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.cause import MIN_LOSS, Bounds, Cause, Explanation, OwnLoss
from gpunode.verdict.causes.host import UNEXPLAINED, unread_evidence

T = TypeVar("T")

USES = (PCIE_BYTES, SHORT_GAPS, UNREADABLE)
"""The metrics that a verdict rests on beside those of the causes."""

FAILURES = Metric(
    "gpunode_verdict_failures_total",
    "counter",
    "Times that the check for this cause failed, by a defect of gpunode; the log has it. The "
    "verdict was made of the other causes. Absent while there is none.",
    ("cause",),
)

LOSSES = tuple(
    (cause, one) for cause in CAUSES.values() for one in cause.looks if isinstance(one, OwnLoss)
)
BOUNDS = tuple(
    (cause, one) for cause in CAUSES.values() for one in cause.looks if isinstance(one, Bounds)
)
EXPLANATIONS = tuple(
    sorted(
        (
            (cause, one)
            for cause in CAUSES.values()
            for one in cause.looks
            if isinstance(one, Explanation)
        ),
        key=lambda pair: pair[1].rank,
    )
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, the share of time that it affects, and the evidence."""

    cause: Cause
    share: float
    evidence: tuple[Evidence, ...] = ()


class Judge:
    """Makes the verdicts. A look that raises costs its cause on that GPU, and nothing else."""

    def __init__(self) -> None:
        self._failures = Counter(dict.fromkeys(CAUSES, 0))
        self._logged: set[tuple[str, type[BaseException]]] = set()

    def verdicts(self, case: Case) -> list[Verdict]:
        """All losses of one GPU, the largest first; if nothing was lost, what bounds the work.

        Empty if its ledger does not reach back far enough.
        """
        if not case.shares:
            return []
        starved = self._starved(case)
        lost = [*([starved] if starved else []), *self._verdicts(LOSSES, case)]
        if lost:
            return sorted(lost, key=lambda verdict: -verdict.share)
        return [next(self._verdicts(BOUNDS, case), Verdict(NONE, case.shares["compute"]))]

    def failures(self) -> Iterator[Sample]:
        """How often each look has failed since the start."""
        return (
            Sample(FAILURES, (name,), float(many)) for name, many in self._failures.items() if many
        )

    def _starved(self, case: Case) -> Verdict | None:
        """Time without work, put down to the first explanation that has evidence."""
        results = case.results
        share = case.without_work + results
        if share < MIN_LOSS:
            return None
        wanted = (
            case.without_work - case.shares["idle"] + results >= MIN_LOSS
            or case.waited_for is not None
            or case.kind == "training"
        )
        state = max(("starved", "idle", "copy"), key=lambda state: case.shares[state])
        of_peers = case.shares["blocked"] if case.peers_starve else 0.0
        for cause, explains in EXPLANATIONS:
            if not (wanted or explains.of_idle):
                continue
            evidence = self._run_look(cause, case, explains.evidence)
            if evidence:
                ledger = case.state(state, MIN_LOSS)
                return Verdict(cause, share + of_peers, (ledger, *evidence))
        share = case.without_work  # copies explain themselves: DATA_LOADING_COPY
        if not wanted or share < MIN_LOSS:
            return None
        state = max(("starved", "idle"), key=lambda state: case.shares[state])
        evidence = (case.state(state, MIN_LOSS), *unread_evidence(case))
        return Verdict(UNEXPLAINED, share + of_peers, evidence)

    def _verdicts(
        self, looks: Iterable[tuple[Cause, OwnLoss | Bounds]], case: Case
    ) -> Iterator[Verdict]:
        for cause, one in looks:
            found = self._run_look(cause, case, one.look)
            if found is not None:
                yield Verdict(cause, found.share, found.evidence)

    def _run_look(self, cause: Cause, case: Case, look: Callable[[Case], T]) -> T | None:
        """What a look of a cause says; None if it fails."""
        found = isolated(partial(look, case))
        if not isinstance(found, BaseException):
            return found
        self._failures[cause.name] += 1
        kind = cause.name, type(found)
        if kind not in self._logged:
            self._logged.add(kind)
            where = f"verdict, GPU {case.at[0]}"
            complaints.complain(where, f"cannot look for {cause.name}", found)
        return None
