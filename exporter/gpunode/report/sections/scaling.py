"""What twice the GPUs are worth to a job, by the sizes at which it ran."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from gpunode.report import history
from gpunode.report.document import Table, TableColumn
from gpunode.report.history import JobHours
from gpunode.report.view import TOP, PeriodView, ratio

MIN_DAYS = 3
"""Days at a size from which on its pace stands for it."""

EXACT = 0.01
"""By which share of them the GPUs of a day may differ from a whole number of them."""

SHORTER = 0.95
"""Times as long as on half the GPUs up to which a step does the same work on more of them."""


class JobSize(NamedTuple):
    """How a job ran on a number of GPUs."""

    gpus: int
    step: float
    mfu: float | None


def twice_the_gpus(view: PeriodView) -> Table:
    """The jobs that ran on N and on 2N GPUs, and how much of the second half of them came back."""
    rows = [
        (
            *view.job_cells(job),
            float(small.gpus),
            small.step,
            float(large.gpus),
            large.step,
            efficiency,
            2 * efficiency,
            "MFU" if small.mfu and large.mfu else "time of a step",
        )
        for job, past in sorted(view.past.jobs.items())
        for small, large, efficiency in _doublings(past)
    ]
    return Table(
        "scaling",
        "What twice the GPUs are worth",
        (
            *view.job_columns(),
            TableColumn("gpus", "GPUs", "count"),
            TableColumn("step", "Step", "seconds"),
            TableColumn("gpus_twice", "Twice the GPUs", "count"),
            TableColumn("step_twice", "Step on these", "seconds"),
            TableColumn("efficiency", "Efficiency", "share"),
            TableColumn("faster", "Faster", "times"),
            TableColumn("seen_from", "Seen from"),
        ),
        tuple(rows[:TOP]),
        (history.STEPS.over("1d"), history.JOBS.over("1d"), history.JOB_HOURS.over("1d")),
        note="Of jobs that ran under one name on both sizes for "
        f"{MIN_DAYS} days or more. Efficiency is the MFU on twice the GPUs over that on the GPUs "
        "or, without MFU, the GPU time of a step, where steps became shorter. The next doubling "
        "seldom gives more than the last one.",
    )


def _doublings(past: JobHours) -> Iterator[tuple[JobSize, JobSize, float]]:
    sizes = {size.gpus: size for size in _sizes(past)}
    for small in sizes.values():
        large = sizes.get(2 * small.gpus)
        if large is None:
            continue
        if small.mfu and large.mfu:
            yield small, large, large.mfu / small.mfu
        elif large.step <= SHORTER * small.step:
            yield small, large, small.step / (2 * large.step)


def _sizes(past: JobHours) -> Iterator[JobSize]:
    days: dict[int, list[int]] = defaultdict(list)
    for day in past.steps:
        gpus = ratio(past.held.get(day, 0.0), past.hours.get(day, 0.0))
        if gpus and abs(gpus - round(gpus)) <= EXACT * gpus:
            days[round(gpus)].append(day)
    for number, own in sorted(days.items()):
        if len(own) >= MIN_DAYS:
            reached = [past.mfu[day] for day in own if day in past.mfu]
            yield JobSize(
                number,
                statistics.median(past.steps[day] for day in own),
                statistics.median(reached) if reached else None,
            )
