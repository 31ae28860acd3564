"""What jobs lost, to what, and how training goes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping

from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import Amounts, JobHours, JobKey
from gpunode.report.sections.losses import loss_of
from gpunode.report.sections.scaling import twice_the_gpus
from gpunode.report.view import (
    TOP,
    WEEK,
    PeriodView,
    added,
    held,
    kind,
    lost,
    ratio,
    used,
)
from gpunode.report.words import clock, number

SLOWER_RATIO = 1.1
"""From how much longer a step takes than before it is a regression."""


def losers(view: PeriodView) -> ReportSection:
    """The jobs that lost most."""
    columns = (
        *view.job_columns(),
        TableColumn("held", "Held", "GPU hours"),
        TableColumn("lost", "Lost", "GPU hours"),
        *view.cost_column("Price of what was lost"),
        TableColumn("given_back", "To get back at most", "GPU hours"),
        TableColumn("cause", "Cause"),
        TableColumn("evidence", "Evidence"),
        TableColumn("remedy", "What helps"),
    )
    asked = (view.over(history.JOBS), view.over(history.JOB_CAUSES))
    rows = []
    for job, past in view.ranked_jobs()[:TOP]:
        loss = loss_of(past.states, past.causes)
        hours = lost(past.states)
        price = view.price_of(past)
        rows.append(
            (
                *view.job_cells(job),
                held(past.states),
                hours,
                *view.cost(hours, price),
                loss.given_back,
                words.headline(loss.name),
                loss.evidence,
                loss.remedy,
            )
        )
    return ReportSection(
        "losers",
        "Jobs that lost most",
        "To get back at most are the hours that the largest loss of the job took."
        if rows
        else "No job lost any.",
        (),
        (Table("jobs", "Jobs by what they lost", columns, tuple(rows), asked),) if rows else (),
    )


def idle(view: PeriodView) -> ReportSection:
    """What was held and not used."""
    kinds = view.past.kinds
    total_idle = view.total.get("idle", 0.0)
    return ReportSection(
        "idle",
        "Held but idle",
        f"Jobs held {number(total_idle)} GPU hours in which nothing had run for ten seconds or "
        f"more; notebooks held {number(kinds.get('interactive', 0.0))} GPU hours in all. A GPU "
        "with several owners counts for no kind of work.",
        (
            Figure(
                "idle",
                "Idle",
                total_idle,
                "GPU hours",
                f'sum (sum_over_time(cluster:{history.LEDGER}{{state="idle"}}[{view.window}]))',
                "held, with nothing running",
            ),
            *(
                Figure(
                    f"held_{kind}",
                    f"Held by {words.KINDS.get(kind, kind)}",
                    hours,
                    "GPU hours",
                    view.over(history.KINDS),
                    "GPU hours",
                )
                for kind, hours in sorted(kinds.items())
            ),
        ),
        (_idle_jobs(view),),
    )


def _idle_jobs(view: PeriodView) -> Table:
    """Jobs that held GPUs on which nothing ran, notebooks among them."""
    jobs = [item for item in view.past.jobs.items() if item[1].states.get("idle", 0.0) >= 1]
    jobs.sort(key=lambda item: (-item[1].states["idle"], item[0]))
    return Table(
        "idle",
        "Jobs that held idle GPUs",
        (
            *view.job_columns(),
            TableColumn("kind", "Work"),
            TableColumn("held", "Held", "GPU hours"),
            TableColumn("used", "Used", "share"),
            TableColumn("idle", "Idle", "GPU hours"),
            *view.cost_column("Price of idle"),
            TableColumn("now", "Idle in the last week", "GPUs"),
        ),
        tuple(_use(view, *item) for item in jobs[:TOP]),
        (view.over(history.JOBS), view.over(history.JOB_KINDS)),
    )


def _use(view: PeriodView, job: JobKey, past: JobHours) -> tuple[Value, ...]:
    idle_hours = past.states.get("idle", 0.0)
    return (
        *view.job_cells(job),
        words.KINDS.get(kind(past), kind(past)),
        held(past.states),
        ratio(used(past.states), held(past.states)),
        idle_hours,
        *view.cost(idle_hours, view.price_of(past)),
        _idle_now(view, job, past),
    )


def _idle_now(view: PeriodView, job: JobKey, past: JobHours) -> float | None:
    """Idle GPUs in the mean of the last week; None for a job that holds none any more."""
    end = view.past.period.end
    hours = sum(end - at < WEEK for at in view.past.clusters.get(job.cluster, {}))
    idle = sum(gpus for at, gpus in past.idle.items() if end - at < WEEK)
    return ratio(idle, hours) if past.held.get(end, 0.0) > 0 else None


def training(view: PeriodView) -> ReportSection:
    """Goodput, MFU and steps."""
    weeks = _trained(view)
    total = added(weeks.values())
    return ReportSection(
        "training",
        "Training",
        "Useful is the share of the time that training jobs held GPUs. Goodput is the share of "
        "their own time that they gave to steps, and MFU what they reached of the GPUs' peak, "
        "of jobs that report it."
        if weeks
        else "No job trained, as far as is recorded.",
        (
            Figure(
                "training_useful",
                "Useful in training",
                ratio(total.get("useful", 0.0), total.get("held", 0.0)),
                "share",
                view.over(history.JOBS),
                "of what training held",
            ),
            Figure(
                "goodput",
                "Goodput",
                ratio(total.get("step", 0.0), total.get("all", 0.0)),
                "share",
                view.over(history.PHASES),
                "of jobs that report steps",
            ),
            Figure(
                "mfu",
                "MFU",
                ratio(total.get("mfu", 0.0), total.get("mfu_hours", 0.0)),
                "share",
                history.MFU.over("1d"),
                "each job by its GPU hours",
            ),
        ),
        (_by_week(view, weeks), twice_the_gpus(view), _slower_steps(view)),
    )


def _trained(view: PeriodView) -> dict[int, Amounts]:
    """By the week's end: what training held and used, and of jobs that report them, steps and MFU.

    MFU is weighted with the hours of those that report it.
    """
    weeks: dict[int, Amounts] = defaultdict(lambda: defaultdict(float))
    for past in view.past.jobs.values():
        if kind(past) == "training":
            for at, hours in past.held.items():
                weeks[view.week(at)]["held"] += hours
            for at, hours in past.useful.items():
                weeks[view.week(at)]["useful"] += hours
        for at, phases in past.phases.items():
            week = weeks[view.week(at)]
            week["step"] += phases.get("step", 0.0)
            week["all"] += sum(phases.values())
            if at in past.mfu:
                week["mfu_hours"] += sum(phases.values())
                week["mfu"] += past.mfu[at] * sum(phases.values())
    return weeks


def _by_week(view: PeriodView, weeks: Mapping[int, Amounts]) -> Table:
    return Table(
        "weeks",
        "Training by week",
        (
            TableColumn("week", "Begins"),
            TableColumn("useful", "Useful", "share"),
            TableColumn("goodput", "Goodput", "share"),
            TableColumn("mfu", "MFU", "share"),
            TableColumn("held", "Held", "GPU hours"),
        ),
        tuple(
            (
                clock(max(end - WEEK, view.past.period.start)),
                ratio(week["useful"], week["held"]),
                ratio(week["step"], week["all"]),
                ratio(week["mfu"], week["mfu_hours"]),
                week["held"],
            )
            for end, week in sorted(weeks.items())
        ),
        (
            history.JOBS.over("1d"),
            history.PHASES.over("1d"),
            history.MFU.over("1d"),
        ),
    )


def _slower_steps(view: PeriodView) -> Table:
    slower = sorted(_regressions(view), key=lambda found: -found[3])
    return Table(
        "step_regressions",
        "Jobs whose steps take longer than before",
        (
            *view.job_columns(),
            TableColumn("before", "Step in its first days", "seconds"),
            TableColumn("after", "Step in its last days", "seconds"),
            TableColumn("ratio", "Slower", "times"),
            TableColumn("since", "Since"),
        ),
        tuple((*view.job_cells(found[0]), *found[1:]) for found in slower[:TOP]),
        (history.STEPS.over("1d"),),
        note="The median of the last third of a job's days against that of the first "
        f"third, of jobs with six days or more, from {SLOWER_RATIO:g} times on. Runs of one "
        "name count as one job.",
    )


def _regressions(view: PeriodView) -> Iterator[tuple[JobKey, float, float, float, str]]:
    """Jobs with their step times before and after, the ratio and the first slow day."""
    for job, past in view.past.jobs.items():
        days = sorted(past.steps)
        third = len(days) // 3
        if third < 2:
            continue
        before = statistics.median(past.steps[day] for day in days[:third])
        after = statistics.median(past.steps[day] for day in days[-third:])
        if before > 0 and after / before >= SLOWER_RATIO:
            middle = (before + after) / 2
            since = next(
                day
                for at, day in enumerate(days)
                if all(past.steps[later] > middle for later in days[at : at + third])
            )
            yield job, before, after, after / before, view.begin(since)
