"""What the report says first, what demand will be, and what has changed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping

from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import DAY, HOUR, Amounts, Past
from gpunode.report.sections.losses import loss_of
from gpunode.report.sections.trend import Trend, trend
from gpunode.report.view import (
    LEAST_HELD,
    LOST,
    TOP,
    WEEK,
    PeriodView,
    added,
    held,
    lost,
    owner,
    ratio,
    shown,
    totals,
    used,
    useful,
)
from gpunode.report.words import clock, counted, date, number, written

FULL = 0.995
"""Share of the GPUs from which on they are all held."""

NEARLY_ALL = 20
"""Hours of a day from which on its busiest one is known."""

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def finding(view: PeriodView) -> str:
    """The paragraph above all."""
    total = view.total
    all_hours = sum(total.values())
    says = [
        f"Of {number(all_hours)} GPU hours, jobs held "
        f"{written(ratio(held(total), all_hours), 'share')}, and "
        f"{written(ratio(useful(total), all_hours), 'share')} did useful work."
    ]
    if lost(total) > 0:
        worst = max(LOST, key=lambda state: total.get(state, 0.0))
        price = f", worth {number(lost(total) * view.price)}" if view.price else ""
        says.append(
            f"Jobs held {number(lost(total))} of them without use{price}; the largest part, "
            f"{written(ratio(total[worst], lost(total)), 'share')}, went to "
            f"{words.STATES[worst]} ({worst})."
        )
    ranked = view.ranked_jobs()
    if ranked:
        job, past = ranked[0]
        loss = loss_of(past.states, past.causes)
        back = f", of which up to {number(loss.given_back)} can be had back"
        says.append(
            f"The job {shown(job.workload)} of {owner(job)} lost most: "
            f"{counted(lost(past.states), 'GPU hour')}{back if loss.given_back else ''}. "
            f"{loss.remedy}"
        )
    if (change := view.useful_change()) is not None:
        word = "rose" if change >= 0 else "fell"
        says.append(
            f"Against the {view.length()} before, the useful share of what was held {word} "
            f"by {abs(change) * 100:.1f} points."
        )
    missing = view.missing_hours()
    if missing:
        says.append(
            f"For {number(missing)} of {counted(view.expected_hours(), 'hour')} there are no "
            "data; they are left out, not filled."
        )
    return " ".join(says)


def demand(view: PeriodView) -> ReportSection:
    """When GPUs are held, and when they run out."""
    of_week: dict[int, list[Amounts]] = defaultdict(list)
    for at, states in view.hours.items():
        of_week[_hour_of_week(at - HOUR)].append(states)
    rows = tuple(
        (
            WEEKDAYS[hour // 24],
            float(hour % 24),
            sum(held(one) for one in of) / len(of),
            sum(sum(one.values()) for one in of) / len(of),
            ratio(sum(held(one) for one in of), sum(sum(one.values()) for one in of)),
        )
        for hour, of in sorted(of_week.items())
    )
    by_hour = history.STATES.over("1h")
    busiest: dict[int, list[tuple[float, float]]] = defaultdict(list)
    full = 0
    for at, states in view.hours.items():
        supply = sum(states.values())
        busiest[view.past.day(at)].append((held(states), supply))
        full += supply > 0 and held(states) / supply >= FULL
    days = {
        end: (max(gpus for gpus, _ in of), max(supply for _, supply in of))
        for end, of in sorted(busiest.items())
        if len(of) >= NEARLY_ALL
    }
    end = view.past.period.end
    line = trend({(at - end) / DAY: gpus for at, (gpus, _) in days.items()})
    lately = [supply for at, (_, supply) in days.items() if end - at < WEEK]
    supply_now = statistics.fmean(lately) if lately else None
    return ReportSection(
        "demand",
        "Demand and supply",
        _forecast(view, line, supply_now, full),
        (
            Figure("supply", "GPUs", supply_now, "GPUs", by_hour, "in the last week"),
            Figure(
                "full_hours", "Hours with every GPU held", float(full), "count", by_hour, "of them"
            ),
            Figure(
                "demand_gain",
                "Demand grows",
                line.gain * 7 if line else None,
                "GPUs",
                by_hour,
                "GPUs a week"
                + (
                    f" (80\u202f%: {line.gains()[0] * 7:+,.1f} to {line.gains()[1] * 7:+,.1f})"
                    if line
                    else ""
                ),
            ),
            Figure(
                "days_until_full",
                "Supply runs out in",
                line.reaches(supply_now)[0] if line and supply_now else None,
                "days",
                by_hour,
                "days, if the trend goes on",
            ),
        ),
        (
            Table(
                "week",
                "Demand by hour of the week, UTC",
                (
                    TableColumn("weekday", "Day"),
                    TableColumn("hour", "Hour", "count"),
                    TableColumn("held", "GPUs held", "GPUs"),
                    TableColumn("supply", "GPUs", "GPUs"),
                    TableColumn("share", "Held", "share"),
                ),
                rows,
                (history.STATES.over("1h"),),
                hidden=True,
            ),
            Table(
                "trend",
                "Busiest hour of each day, and the trend",
                (
                    TableColumn("day", "Day"),
                    TableColumn("busiest", "GPUs held", "GPUs"),
                    TableColumn("supply", "GPUs", "GPUs"),
                    TableColumn("trend", "Trend", "GPUs"),
                    TableColumn("low", "Trend, low", "GPUs"),
                    TableColumn("high", "Trend, high", "GPUs"),
                ),
                tuple(_trend_rows(view, days, line, supply_now)),
                (history.STATES.over("1h"),),
                note="A straight line by least squares through the busiest hour of each day; "
                "its 80\u202f% interval from 400 samples of the residuals in blocks of a week. "
                "Supply is taken to stay as it was in the last week.",
                hidden=True,
            ),
        ),
    )


def _trend_rows(
    view: PeriodView,
    days: Mapping[int, tuple[float, float]],
    line: Trend | None,
    supply: float | None,
) -> Iterator[tuple[Value, ...]]:
    """Each day of the period, whether or not it is known, and half as many days ahead."""
    end = view.past.period.end
    for at in view.days():
        beside = line.at((at - end) / DAY) if line else (None, None, None)
        yield (view.begin(at), *days.get(at, (None, None)), *beside)
    if line:
        for day in range(1, len(view.days()) // 2 + 1):
            yield (clock(end + (day - 1) * DAY), None, supply, *line.at(day))


def _forecast(view: PeriodView, line: Trend | None, supply: float | None, full: int) -> str:
    says = f"In {number(full)} of {counted(len(view.hours), 'hour')} every GPU was held. "
    if line is None or supply is None:
        return says + "There are too few days of data for a trend; it takes two weeks of them."
    likely, early, late = line.reaches(supply)
    low, high = (gain * 7 for gain in line.gains())
    says += (
        f"The busiest hour of a day gains {line.gain * 7:+,.1f} GPUs a week "
        f"(80\u202f% interval {low:+,.1f} to {high:+,.1f}). "
    )
    end = view.past.period.end
    if likely == 0:
        return says + "Demand has reached supply already."
    if early is None:
        return says + "If this goes on, supply does not run out within two years."
    latest = f"{date(end + late * DAY)}" if late is not None else "not within two years"
    middle = date(end + likely * DAY) if likely is not None else "not within two years"
    return says + (
        f"If this goes on, the busiest hour takes every GPU around {middle}; "
        f"with 80\u202f% confidence between {date(end + early * DAY)} and {latest}."
        if likely is not None
        else f"Supply may run out from {date(end + early * DAY)} on, "
        "but more likely not within two years."
    )


def change(view: PeriodView) -> ReportSection:
    """Now and before."""
    before = view.before
    then, now = totals(before), view.total
    rows: list[tuple[Value, ...]] = []

    def compare(what: str, new: float | None, old: float | None, *, more_is_better: bool) -> None:
        if new is None or old is None:
            return
        difference = new - old
        verdict = "as before"
        if abs(difference) >= 0.001:
            verdict = "better" if (difference > 0) == more_is_better else "worse"
        rows.append((what, new, old, difference, verdict))

    for what, of, whole, more_is_better in (
        ("Held, of all GPU hours", held, lambda one: sum(one.values()), True),
        ("Used, of what was held", used, held, True),
        ("Useful, of what was held", useful, held, True),
    ):
        compare(
            what,
            ratio(of(now), whole(now)),
            ratio(of(then), whole(then)),
            more_is_better=more_is_better,
        )
    for state in LOST:
        if now.get(state, 0.0) or then.get(state, 0.0):
            compare(
                f"{words.STATES[state]} ({state}), of what was held".capitalize(),
                ratio(now.get(state, 0.0), held(now)),
                ratio(then.get(state, 0.0), held(then)),
                more_is_better=False,
            )
    compare("Goodput of training", _goodput(view.past), _goodput(before), more_is_better=True)
    shares = [
        {
            name: (ratio(lost(states), held(states)), held(states))
            for name, states in past.namespaces.items()
            if held(states) >= LEAST_HELD
        }
        for past in (view.past, before)
    ]
    largest = sorted(shares[0].keys() & shares[1].keys(), key=lambda name: -shares[0][name][1])[
        :TOP
    ]
    for name in largest:
        compare(
            f"Lost by {shown(name) or 'no namespace'}, of what it held",
            shares[0][name][0],
            shares[1][name][0],
            more_is_better=False,
        )
    kilowatt_hours = [
        ratio(sum(past.energy.values()), useful(total))
        for past, total in ((view.past, now), (before, then))
    ]
    new, old = kilowatt_hours
    energy = ""
    if new is not None and old is not None and old > 0:
        energy = (
            f" A useful GPU hour took {number(new)} kWh, before {number(old)}."
            if new and old
            else ""
        )
    known = len({at for own in before.clusters.values() for at in own})
    says = (
        f"Compared with the {view.length()} before, of which "
        f"{number(known)} of {counted(before.period.hours, 'hour')} have data.{energy}"
        if rows
        else f"There are no data of the {view.length()} before to compare with."
    )
    return ReportSection(
        "change",
        "Better or worse than before",
        says,
        (),
        (
            Table(
                "change",
                "Shares, now and before",
                (
                    TableColumn("what", "What"),
                    TableColumn("now", "Now", "share"),
                    TableColumn("before", "Before", "share"),
                    TableColumn("change", "Change, points", "points"),
                    TableColumn("verdict", "So it is"),
                ),
                tuple(rows),
                (
                    view.over(history.STATES),
                    view.over(history.STATES).replace(
                        f"[{view.window}]", f"[{view.window}] offset {view.window}"
                    ),
                ),
            ),
        ),
    )


def _hour_of_week(at: int) -> int:
    """Hours since Monday, 00:00 UTC; the epoch began on a Thursday."""
    return (at // HOUR + 3 * 24) % (7 * 24)


def _goodput(past: Past) -> float | None:
    phases = added(phases for job in past.jobs.values() for phases in job.phases.values())
    return ratio(phases.get("step", 0.0), sum(phases.values()))
