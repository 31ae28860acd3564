"""The whole answer, as a report."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.report.document import Report
from gpunode.report.job import RunRecord
from gpunode.report.why.finding import finding
from gpunode.report.why.sections import alerts, causes, changes, others, runs, seconds
from gpunode.report.why.view import JobView
from gpunode.report.words import clock


def answer(past: RunRecord, price: float | None, source: str, warnings: Iterable[str]) -> Report:
    """Everything that there is to say about a run."""
    view = JobView(past, price)
    every = (seconds, causes, alerts, runs, others, changes)
    sections = (alerts,) if view.short else every
    return Report(
        title=f"Why is it slow: {view.name}",
        start=clock(past.run.first),
        end=clock(past.run.last),
        moment=past.run.end,
        source=source,
        price=price,
        finding=finding(view),
        sections=tuple(section(view) for section in sections),
        warnings=tuple(sorted(warnings)),
        reading="What a rule records every 30 s is the mean of five minutes, so the first and last "
        "minutes of a run are blurred.",
    )
