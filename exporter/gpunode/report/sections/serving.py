"""What the tokens of services cost, and how many of their replicas had nothing to do."""

from __future__ import annotations

from gpunode.report import history
from gpunode.report.document import ReportSection, Table, TableColumn, Value
from gpunode.report.history import JobKey, ServiceUse
from gpunode.report.view import TOP, PeriodView, held, ratio
from gpunode.report.words import number

MILLION = 1e6


def serving(view: PeriodView) -> ReportSection:
    """Cost of a million tokens, and how long replicas had nothing to do."""
    services = sorted(view.past.services.items(), key=lambda item: -_hours(view, item[0]))
    tokens = sum(one.tokens for _, one in services)
    idle = sum(one.replicas - one.busy for _, one in services)
    return ReportSection(
        "serving",
        "Serving",
        f"Services generated {number(tokens)} tokens. Their replicas had no request in "
        f"{number(idle)} of {number(sum(one.replicas for _, one in services))} replica hours."
        if services
        else "No inference engine told its figures, as far as is recorded.",
        (),
        (
            Table(
                "services",
                "Services by the GPU hours that they held",
                (
                    *view.job_columns(),
                    TableColumn("held", "Held", "GPU hours"),
                    TableColumn("tokens", "Tokens", "count"),
                    *view.cost_column("Cost per million tokens", "cost_per_million"),
                    TableColumn("replicas", "Replicas", "GPUs"),
                    TableColumn("idle", "Without requests", "share"),
                ),
                tuple(_row(view, job, one) for job, one in services[:TOP]),
                tuple(
                    view.over(query)
                    for query in (
                        history.SERVED,
                        history.REPLICAS,
                        history.BUSY_REPLICAS,
                        history.JOBS,
                    )
                ),
                note="Of generated tokens, by the engines' own counts; the cost is that of all "
                "time in which the GPUs were held.",
            ),
        ),
    )


def _hours(view: PeriodView, job: JobKey) -> float:
    past = view.past.jobs.get(job)
    return held(past.states) if past is not None else 0.0


def _row(view: PeriodView, job: JobKey, one: ServiceUse) -> tuple[Value, ...]:
    past = view.past.jobs.get(job)
    hours, millions = _hours(view, job), one.tokens / MILLION
    price = view.price_of(past) if past is not None else None
    cost = ratio(hours * price, millions) if price is not None else None
    return (
        *view.job_cells(job),
        hours,
        one.tokens,
        *((cost,) if view.price is not None else ()),
        one.replicas / view.past.period.hours,
        ratio(one.replicas - one.busy, one.replicas),
    )
