"""The sections of the report, each a question, and the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpunode.report import history
from gpunode.report.document import Report, ReportSection
from gpunode.report.sections import (
    bills,
    changes,
    hours,
    jobs,
    nodes,
    outlook,
    queue,
    serving,
    summary,
)
from gpunode.report.sections.broke import broke
from gpunode.report.view import PeriodView
from gpunode.report.words import clock, date

SECTIONS = (
    summary.summary,
    outlook.demand,
    bills.bills,
    jobs.losers,
    jobs.idle,
    hours.groups,
    broke,
    nodes.failures,
    nodes.slow,
    jobs.training,
    serving.serving,
    changes.changed,
    queue.queue,
    hours.energy,
    outlook.change,
    nodes.coverage,
)


def report(view: PeriodView, source: str, warnings: Iterable[str]) -> Report:
    """Everything that there is to say about a period."""
    period = view.past.period
    return Report(
        title=f"GPU capacity, {date(period.start)} to {date(period.end)}",
        start=clock(period.start),
        end=clock(period.end),
        moment=period.end + history.RECORDING_DELAY,
        source=source,
        price=view.price,
        currency=view.billing.currency,
        finding=summary.finding(view),
        sections=tuple(section(view) for section in SECTIONS if not _again(section, view)),
        warnings=tuple(sorted(warnings)),
        reading="What is recorded once an hour is recorded up to four minutes after it. Where an "
        "expression has a window of a day or an hour, the figures add up its values at the end of "
        "each.",
    )


def _again(section: Callable[[PeriodView], ReportSection], view: PeriodView) -> bool:
    """Whether the bills have the same lines: each namespace is a team where none are given."""
    return section is hours.groups and view.by == "namespace" and not view.billing.teams
