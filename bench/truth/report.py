"""The report of the outcomes on one kind of GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from bench.report import Report, Result, span
from bench.truth.outcome import Outcome
from bench.truth.workloads import WORKLOADS

CLOSE, NEAR = 0.05, 0.10
"""Errors of a state: on most GPUs, and on all."""

SHOWN = 0.02
"""The least share that the table shows."""

COLUMNS = {
    "compute": "compute",
    "communication": "comm.",
    "blocked": "blocked",
    "copy": "copy",
    "starved": "starved",
}
"""The states of the table, and what its head calls them."""

HEAD = ("workload", "GPU", *COLUMNS.values(), "error", "verdict", "after", "kempnerpulse", "util.")

TEXT = (
    "Every workload runs beside the daemon for 18 s, or 24 s if a rank stops joining. In the last "
    "seconds every kernel is traced (CUPTI); states are compared over the daemon's windows within "
    "them. A collective is blocked until its last rank has started it; while no kernel runs it is "
    "starved, but for the time that copy engines need for the bytes that PCIe moved. Where a rank "
    "stalls or compiles, the workload itself says what its GPUs do. A verdict is right if it names "
    "one of the workload's causes in the end and for most of the time from 12 s on. The table has "
    "percent of time as truth/ledger, the largest "
    "error of a state, the last verdict, the seconds until it was first right, how kempnerpulse "
    "0.5.0 classifies the GPU from the same daemon's page, and the utilization that nvidia-smi "
    "shows."
)


def report(model: str, outcomes: Sequence[Outcome]) -> Report:
    """What was measured on the GPUs of a model, against the targets."""
    return Report(
        f"The ledger and the verdicts on real jobs, {model.upper()}",
        max(outcomes, key=lambda outcome: outcome.at).machine,
        TEXT,
        [*_accuracy(outcomes), *_stalls(outcomes), *_extent(outcomes)],
        list(_apart(_table(outcomes), _waits(outcomes), _not_right(outcomes))),
        span(outcome.version for outcome in outcomes),
    )


def _apart(*parts: Iterable[str]) -> Iterator[str]:
    """The lines of all parts, with a blank one before all but the first."""
    for number, part in enumerate(parts):
        lines = list(part)
        if number and lines:
            yield ""
        yield from lines


def _accuracy(outcomes: Sequence[Outcome]) -> Iterator[Result]:
    count = len(outcomes)
    close = sum(outcome.error <= CLOSE for outcome in outcomes)
    near = sum(outcome.error <= NEAR for outcome in outcomes)
    right = sum(outcome.right for outcome in outcomes)
    yield _share(f"GPUs with every state within {CLOSE}", close, count, 0.80)
    yield _share(f"GPUs with every state within {NEAR:.2f}", near, count, 1.0)
    yield _share("GPUs with the right verdict", right, count, 0.95)
    yield _slowest("a wrong cause was named for", outcomes, lambda outcome: outcome.wrong_for, 15.0)


def _stalls(outcomes: Sequence[Outcome]) -> Iterator[Result]:
    waiting = [outcome for outcome in outcomes if outcome.must_be_called]
    if waiting:
        yield _slowest("a stall was called so after", waiting, lambda o: o.called_after, 15.0)
    awaited = [outcome for outcome in outcomes if outcome.awaited]
    if awaited:
        yield _slowest("the GPU waited for was named after", awaited, lambda o: o.named_after, 20.0)


def _extent(outcomes: Sequence[Outcome]) -> Iterator[Result]:
    kinds = [o for o in outcomes if o.kind in o.of_workload.kinds.split()]
    yield Result("GPUs with the right kind of workload", f"{len(kinds)} of {len(outcomes)}")
    ran = {outcome.workload for outcome in outcomes}
    failed = {outcome.workload for outcome in outcomes if outcome.failed}
    yield Result("workloads that ran", f"{len(ran)} of {len(WORKLOADS)}")
    yield Result("workloads that failed", f"{len(failed)}", "0", not failed)


def _share(what: str, count: int, of: int, target: float) -> Result:
    wanted = "all" if target == 1.0 else f"≥ {target * 100:.0f} %"
    return Result(what, f"{count} of {of} ({count / of:.0%})", wanted, count >= target * of)


def _slowest(
    what: str, outcomes: Sequence[Outcome], seconds: Callable[[Outcome], float | None], limit: float
) -> Result:
    """The longest of some times; None is never."""

    def known(outcome: Outcome) -> float:
        found = seconds(outcome)
        return math.inf if found is None else found

    worst = max(outcomes, key=known)
    measured = f"{_seconds(seconds(worst))} ({worst.workload}, GPU {worst.gpu})"
    return Result(f"{what}, at most", measured, f"≤ {limit:g} s", known(worst) <= limit)


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A row for each GPU of each workload."""
    rows = [HEAD, *(_row(outcome) for outcome in outcomes)]
    cells = [row for row in rows if len(row) == len(HEAD)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield " ".join(padded).rstrip()


def _row(outcome: Outcome) -> tuple[str, ...]:
    """The cells of a row; fewer if there is nothing to compare."""
    if outcome.failed:
        return outcome.workload, str(outcome.gpu), f"failed: {outcome.failed}"
    worst, error = max(outcome.errors.items(), key=lambda item: abs(item[1]))
    return (
        outcome.workload,
        str(outcome.gpu),
        *(_cell(outcome, state) for state in COLUMNS),
        f"{error:+.2f} {COLUMNS.get(worst, worst)}",
        outcome.verdict,
        _seconds(outcome.right_after),
        outcome.peer or "-",
        f"{outcome.utilization:.0%}",
    )


def _cell(outcome: Outcome, state: str) -> str:
    truth, ledger = outcome.truth.get(state, 0.0), outcome.ledger.get(state, 0.0)
    return f"{100 * truth:.0f}/{100 * ledger:.0f}" if max(truth, ledger) > SHOWN else ""


def _waits(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """When each stall was called so, and for whom the others were said to wait."""
    for outcome in outcomes:
        if outcome.awaited:
            waiting = [o for o in outcomes if o.workload == outcome.workload and o.must_be_called]
            said = [f"called a stall: {_after(other.called_after)}" for other in waiting]
            reasons = dict.fromkeys(reason for _, reason in outcome.waited_for if reason)
            words = f" ({', '.join(reasons)})" if reasons else ""
            said.append(f"GPU {outcome.gpu} named: {_after(outcome.named_after)}{words}")
            yield f"{outcome.workload}: {', '.join(said)}"


def _not_right(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What was said where the verdict was not right, and from when on."""
    for outcome in outcomes:
        if not outcome.right and not outcome.failed:
            said = ", ".join(f"{cause} from {at:.1f} s on" for at, cause in outcome.verdicts)
            right = " or ".join(outcome.causes)
            yield f"{outcome.workload}, GPU {outcome.gpu}: {said}; right: {right}"
