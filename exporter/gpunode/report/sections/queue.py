"""How long jobs waited in Slurm's queue, by account."""

from __future__ import annotations

import statistics
from collections import defaultdict

from gpunode.report import sacct
from gpunode.report.document import ReportSection, Table, TableColumn
from gpunode.report.history import HOUR
from gpunode.report.view import MOST_ROWS, PeriodView
from gpunode.report.words import counted, lasting

LONG = 0.9
"""The share of the jobs that waited no longer than the figure of the long waits."""


def queue(view: PeriodView) -> ReportSection:
    """Waiting time by account, of the jobs that started in the period."""
    period = view.past.period
    if view.slurm is None:
        return ReportSection(
            "queue",
            "How long jobs waited",
            f"Not known. Give `gpunode report` a file of what `{sacct.ASKED}` prints "
            "(--sacct-file) for the queue of Slurm and the accounts of its jobs.",
        )
    of: dict[str, list[float]] = defaultdict(list)
    for account, seconds in sacct.waits(view.slurm, period.start, period.end):
        of[account].append(seconds)
    every = [seconds for own in of.values() for seconds in own]
    ranked = sorted(of.items(), key=lambda item: (-sum(item[1]), item[0]))
    return ReportSection(
        "queue",
        "How long jobs waited",
        f"{counted(len(every), 'job')} of Slurm started in the period; half of them waited no "
        f"longer than {lasting(statistics.median(every))}, and one in ten longer than "
        f"{lasting(_long(every))}. Waiting begins when a job might have started."
        if every
        else "No job of Slurm in the file started in the period.",
        (),
        (
            Table(
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
                        _long(own),
                        sum(own) / HOUR,
                    )
                    for account, own in ranked[:MOST_ROWS]
                ),
                (),
                note=f"From what `{sacct.ASKED}` printed, not from Prometheus.",
            ),
        )
        if every
        else (),
    )


def _long(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(LONG * len(seconds)))]
