"""How long jobs waited in Slurm's queue, by account."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from gpunode.report import history, sacct
from gpunode.report.document import ReportSection, Table, TableColumn
from gpunode.report.history import HOUR
from gpunode.report.sacct import SlurmJob
from gpunode.report.view import MAX_ROWS, PeriodView, clean
from gpunode.report.words import amount, lasting, number

LONG_WAIT_QUANTILE = 0.9
"""The share of the jobs that waited no longer than the figure of the long waits."""


def queue(view: PeriodView) -> ReportSection:
    """Waiting time of the jobs that started in the period, and how many waited at a time."""
    says: list[str] = []
    tables: list[Table] = []
    if view.slurm is not None:
        said, found = _wait_tables(view, view.slurm)
        says.append(said)
        tables += found
    if view.past.queue_hours:
        said, found = _waiting(view)
        says.append(said)
        tables += found
    if not says:
        says.append(
            f"Not known. Give `gpunode report` a file of what `{sacct.SACCT_COMMAND}` prints "
            "(--sacct-file) for the queue of Slurm and the accounts of its jobs, or have "
            "Prometheus scrape Slurm or an exporter for it."
        )
    return ReportSection("queue", "How long jobs waited", " ".join(says), (), tuple(tables))


def _wait_tables(view: PeriodView, jobs: Sequence[SlurmJob]) -> tuple[str, list[Table]]:
    """What the file of ``sacct`` says of each job."""
    period = view.past.period
    of: dict[str, list[float]] = defaultdict(list)
    for account, seconds in sacct.job_waits(jobs, period.start, period.end):
        of[account].append(seconds)
    every = [seconds for own in of.values() for seconds in own]
    if not every:
        return "No job of Slurm in the file started in the period.", []
    ranked = sorted(of.items(), key=lambda item: (-sum(item[1]), item[0]))
    table = Table(
        "queue",
        "Time in the queue, by account",
        (
            TableColumn("account", "Account"),
            TableColumn("jobs", "Jobs", "count"),
            TableColumn("median", "Half waited up to", "duration"),
            TableColumn("long", "Nine in ten up to", "duration"),
            TableColumn("sum", "In all", "hours"),
        ),
        tuple(
            (
                account or "no account",
                float(len(own)),
                statistics.median(own),
                _long_wait(own),
                sum(own) / HOUR,
            )
            for account, own in ranked[:MAX_ROWS]
        ),
        (),
        note=f"From what `{sacct.SACCT_COMMAND}` printed, not from Prometheus.",
    )
    says = (
        f"{amount(len(every), 'job')} of Slurm started in the period; half of them waited no "
        f"longer than {lasting(statistics.median(every))}, and one in ten longer than "
        f"{lasting(_long_wait(every))}. Waiting begins when a job might have started."
    )
    return says, [table]


def _waiting(view: PeriodView) -> tuple[str, list[Table]]:
    """How many jobs waited in the mean, as Slurm or an exporter for it says."""
    past = view.past
    known = past.queue_hours
    queued = {account: hours for account, hours in past.queued.items() if hours > 0}
    says = (
        f"{number(sum(queued.values()) / known)} jobs of Slurm waited at a time, in the mean of "
        f"the {number(known)} of {amount(past.period.hours, 'hour')} of which the queue is known."
    )
    table = Table(
        "queued",
        "Jobs in the queue, by account",
        (
            TableColumn("account", "Account"),
            TableColumn("jobs", "Jobs at a time", "jobs"),
            TableColumn("sum", "Hours in all", "hours"),
        ),
        tuple(
            (clean(account) or "no account", hours / known, hours)
            for account, hours in sorted(queued.items(), key=lambda item: (-item[1], item[0]))
        )[:MAX_ROWS],
        (view.over(history.QUEUED), view.over(history.QUEUE_HOURS)),
        note="All jobs that Slurm calls pending, also those that need no GPU, and those that wait "
        "for another job or are held.",
    )
    return says, [table] if queued else []


def _long_wait(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(LONG_WAIT_QUANTILE * len(seconds)))]
