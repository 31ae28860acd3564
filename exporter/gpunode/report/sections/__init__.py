"""The sections of the report, each a question, and the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.report import history
from gpunode.report.document import Report
from gpunode.report.sections import bills, changes, hours, jobs, nodes, outlook, queue, serving
from gpunode.report.sections.broke import broke
from gpunode.report.view import PeriodView
from gpunode.report.words import clock, date

SECTIONS = (
    hours.summary,
    bills.bills,
    hours.causes,
    jobs.losers,
    hours.groups,
    jobs.idle,
    jobs.training,
    serving.serving,
    hours.energy,
    changes.changed,
    nodes.slow,
    broke,
    nodes.failures,
    outlook.demand,
    queue.queue,
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
        moment=period.end + history.LATE,
        source=source,
        price=view.price,
        currency=view.billing.currency,
        finding=outlook.finding(view),
        sections=tuple(section(view) for section in SECTIONS),
        warnings=tuple(sorted(warnings)),
        reading="What is recorded once an hour is recorded up to four minutes after it. Where an "
        "expression has a window of a day or an hour, the figures add up its values at the end of "
        "each.",
    )
