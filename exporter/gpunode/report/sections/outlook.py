"""What the report says first, what demand will be, and what has changed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import DAY, HOUR, Amounts, JobKey, Past
from gpunode.report.sections.losses import loss_of
from gpunode.report.sections.trend import LEAST_DAYS, LEAST_FOR_INTERVAL, Trend, trend
from gpunode.report.view import (
    LEAST_HELD,
    LOST,
    TOP,
    WEEK,
    PeriodView,
    added,
    energy_by_day,
    held,
    lost,
    owner,
    ratio,
    shown,
    totals,
    used,
    useful,
)
from gpunode.report.words import clock, counted, date, gained, number, written

FULL = 0.995
"""Share of the GPUs from which on they are all held."""

NEARLY_ALL = 20
"""Hours of a day from which on its busiest one is known."""

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


IDLE_SHARE = 0.5
"""Share of a job's GPUs from which on, if they are idle, its holding might be reclaimed."""

RECLAIMED = 3


@dataclass(frozen=True, slots=True)
class _Day:
    """GPUs in the busiest hour of a day: held, of them used, and all that there were that day."""

    held: float
    used: float
    supply: float

    @classmethod
    def of(cls, hours: Sequence[Amounts]) -> _Day:
        busiest = max(hours, key=held)
        return cls(held(busiest), used(busiest), max(sum(one.values()) for one in hours))


@dataclass(frozen=True, slots=True)
class Holding:
    """What a job held in the last week, in the mean: its GPUs, and those of them that idled."""

    job: JobKey
    held: float
    idle: float


def finding(view: PeriodView) -> str:
    """The paragraph above all."""
    total = view.total
    all_hours = sum(total.values())
    every = view.whole_price()
    price = f", worth {view.money(every)}," if every is not None else ","
    says = [
        f"Of {number(all_hours)} GPU hours{price} jobs held "
        f"{written(ratio(held(total), all_hours), 'share')}, and "
        f"{written(ratio(useful(total), all_hours), 'share')} did useful work."
    ]
    if view.price is not None and view.worth(("free",)) > view.worth(LOST):
        says.append(
            "What costs most is GPUs that nobody held: "
            f"{number(total.get('free', 0.0))} GPU hours, worth "
            f"{view.money(view.worth(('free',)))}."
        )
    if lost(total) > 0:
        worst = max(LOST, key=lambda state: total.get(state, 0.0))
        price = f", worth {view.money(view.worth(LOST))}" if view.price is not None else ""
        says.append(
            f"Jobs held {number(lost(total))} of them without use{price}; the largest part, "
            f"{written(ratio(total.get(worst, 0.0), lost(total)), 'share')}, went to "
            f"{words.STATES[worst]} ({worst})."
        )
    if gives_back := _gives_back_most(view):
        says.append(f"Over all jobs, most comes back by {', then by '.join(gives_back)}.")
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
            f"by {abs(change) * 100:.1f} points, to "
            f"{written(ratio(useful(total), held(total)), 'share')}."
        )
    missing = view.missing_hours()
    if missing:
        says.append(
            f"For {number(missing)} of {view.hours_of(view.expected_hours())} there are no "
            "data; they are left out, not filled."
        )
    return " ".join(says)


def _gives_back_most(view: PeriodView) -> list[str]:
    """The two of idle GPUs and all causes that cost most, as what to do and what that gives.

    A cause of GPUs that idle is not told apart: its hours are among those of idle GPUs.
    """
    idle = view.total.get("idle", 0.0)
    found = [("giving back GPUs that idle (up to", idle, view.price_in("idle"))]
    for cause, of in sorted(view.past.gains.items()):
        if cause not in words.REMEDIES or "idle" not in words.REMEDIES[cause].states:
            found.append((f"mending {cause} (about", of.get("estimate", 0.0), view.price))
    ranked = sorted((one for one in found if one[1] >= 1), key=lambda one: -one[1])
    return [
        f"{what} {counted(hours, 'GPU hour')}"
        + (f", worth {view.money(hours * price)})" if price is not None else ")")
        for what, hours, price in ranked[:2]
    ]


def demand(view: PeriodView) -> ReportSection:
    """When GPUs are held, and when they run out."""
    whole = view.whole_hours()
    days = _busiest(view, whole)
    end = view.past.period.end
    line = trend({(at - end) / DAY: day.held for at, day in days.items()})
    lately = [day for at, day in days.items() if end - at < WEEK]
    supply_now = statistics.fmean(day.supply for day in lately) if lately else None
    merely = statistics.fmean(day.held - day.used for day in lately) if lately else None
    full = sum(
        sum(states.values()) > 0 and held(states) / sum(states.values()) >= FULL
        for states in whole.values()
    )
    full_days = sum(day.supply > 0 and day.held / day.supply >= FULL for day in lately)
    holdings = reclaimable(view)
    by_hour = history.STATES.over("1h")
    return ReportSection(
        "demand",
        "Demand and supply",
        _full(full, len(whole), full_days, len(lately))
        + _forecast(view, line, supply_now)
        + _reclaim(view, line, supply_now, holdings),
        (
            Figure("supply", "GPUs", supply_now, "GPUs", by_hour, "in the last week"),
            Figure(
                "full_hours",
                "Hours with every GPU held",
                float(full),
                "count",
                by_hour,
                f"of {counted(len(whole), 'hour')}",
            ),
            Figure(
                "merely_held",
                "Held but not used",
                merely,
                "GPUs",
                by_hour,
                "GPUs in the busiest hour of a day, in the last week",
            ),
            *_outlook(line, supply_now),
        ),
        (
            _by_hour_of_week(whole),
            _reclaimable(view, holdings),
            _trend_of_days(view, days, line, supply_now),
        ),
    )


def _busiest(view: PeriodView, whole: Mapping[int, Amounts]) -> dict[int, _Day]:
    """The days of which enough hours are known to tell the busiest, by their ends."""
    hours: dict[int, list[Amounts]] = defaultdict(list)
    for at, states in whole.items():
        hours[view.past.day(at)].append(states)
    return {end: _Day.of(of) for end, of in sorted(hours.items()) if len(of) >= NEARLY_ALL}


def _outlook(line: Trend | None, supply: float | None) -> tuple[Figure, Figure]:
    """How demand grows, and when that takes all there is."""
    by_hour = history.STATES.over("1h")
    gains = line.gains() if line else None
    return (
        Figure(
            "demand_gain",
            "Demand grows",
            line.gain * 7 if line else None,
            "GPUs",
            by_hour,
            "GPUs a week"
            + (f" (80\u202f%: {gained(gains[0] * 7)} to {gained(gains[1] * 7)})" if gains else ""),
        ),
        Figure(
            "days_until_full",
            "Supply runs out in",
            line.reaches(supply)[0] if line and supply else None,
            "days",
            by_hour,
            f"days, if the trend goes on{_sure(line, supply)}",
        ),
    )


def _by_hour_of_week(whole: Mapping[int, Amounts]) -> Table:
    of_week: dict[int, list[Amounts]] = defaultdict(list)
    for at, states in whole.items():
        of_week[_hour_of_week(at - HOUR)].append(states)
    return Table(
        "week",
        "Demand by hour of the week, UTC",
        (
            TableColumn("weekday", "Day"),
            TableColumn("hour", "Hour", "count"),
            TableColumn("held", "GPUs held", "GPUs"),
            TableColumn("used", "GPUs used", "GPUs"),
            TableColumn("supply", "GPUs", "GPUs"),
            TableColumn("share", "Held", "share"),
        ),
        tuple(
            (
                WEEKDAYS[hour // 24],
                float(hour % 24),
                sum(held(one) for one in of) / len(of),
                sum(used(one) for one in of) / len(of),
                sum(sum(one.values()) for one in of) / len(of),
                ratio(sum(held(one) for one in of), sum(sum(one.values()) for one in of)),
            )
            for hour, of in sorted(of_week.items())
        ),
        (history.STATES.over("1h"),),
        hidden=True,
    )


def _reclaimable(view: PeriodView, holdings: Sequence[Holding]) -> Table:
    return Table(
        "reclaimable",
        "Holdings that might be reclaimed",
        (
            *view.job_columns(),
            TableColumn("held", "GPUs held", "GPUs"),
            TableColumn("idle", "of them idle", "GPUs"),
            *view.cost_column("Price of a week of it"),
        ),
        tuple(
            (
                *view.job_cells(one.job),
                one.held,
                one.idle,
                *view.cost(one.idle * WEEK / HOUR, view.price_of(view.past.jobs[one.job])),
            )
            for one in holdings
        ),
        (history.JOBS.over("1d"),),
        note="The jobs that held most idle GPUs in the last week, in the mean over it, and "
        f"held some on its last day: {IDLE_SHARE:.0%} of them idle or more.",
    )


def _trend_of_days(
    view: PeriodView, days: Mapping[int, _Day], line: Trend | None, supply: float | None
) -> Table:
    return Table(
        "trend",
        "Busiest hour of each day, and the trend",
        (
            TableColumn("day", "Day"),
            TableColumn("busiest", "GPUs held", "GPUs"),
            TableColumn("used", "of them used", "GPUs"),
            TableColumn("supply", "GPUs", "GPUs"),
            TableColumn("trend", "Trend", "GPUs"),
            TableColumn("low", "Trend, low", "GPUs"),
            TableColumn("high", "Trend, high", "GPUs"),
        ),
        tuple(_trend_rows(view, days, line, supply)),
        (history.STATES.over("1h"),),
        note="A straight line through the busiest hour of each day, without the hours of "
        "which a cluster has no data. Its 80\u202f% interval takes into account that jobs "
        "last: a busy day follows another. It is of the line, not of a single day. Supply "
        "is taken to stay as it was in the last week.",
        hidden=True,
    )


def _trend_rows(
    view: PeriodView,
    days: Mapping[int, _Day],
    line: Trend | None,
    supply: float | None,
) -> Iterator[tuple[Value, ...]]:
    """Each day of the period, whether or not it is known, and half as many days ahead."""
    end = view.past.period.end
    for at in view.days():
        beside = line.at((at - end) / DAY) if line else (None, None, None)
        day = days.get(at)
        known = (day.held, day.used, day.supply) if day else (None, None, None)
        yield (view.begin(at), *known, *beside)
    if line:
        for ahead in range(1, len(view.days()) // 2 + 1):
            yield (clock(end + (ahead - 1) * DAY), None, None, supply, *line.at(ahead))


def _sure(line: Trend | None, supply: float | None) -> str:
    """Between which days supply runs out with 80 % confidence; empty for a short history."""
    if line is None or supply is None or line.gains() is None:
        return ""
    early, late = (
        number(round(days)) if days is not None else "more than two years"
        for days in line.reaches(supply)[1:]
    )
    return f" (80\u202f%: {early} to {late})"


def _full(full: int, hours: int, full_days: int, days: int) -> str:
    """For how long every GPU was held, and whether the supply hides demand of late."""
    says = f"In {number(full)} of {counted(hours, 'hour')} every GPU was held. "
    if not full_days:
        return says
    return says + (
        f"In the last week, that was so in the busiest hour of {full_days} of "
        f"{counted(days, 'day')}: what was wanted beyond it is not seen. "
    )


def _forecast(view: PeriodView, line: Trend | None, supply: float | None) -> str:
    if line is None or supply is None:
        return f"There are too few days of data for a trend; it takes {LEAST_DAYS} of them."
    gains = line.gains()
    says = f"The busiest hour of a day gains {gained(line.gain * 7)} GPUs a week"
    says += (
        f" (80\u202f% interval {gained(gains[0] * 7)} to {gained(gains[1] * 7)}). "
        if gains
        else f". How sure that is cannot be said: it takes {LEAST_FOR_INTERVAL} days of data. "
    )
    if line.reaches(supply)[0] == 0:
        return says + "Demand has reached supply already."
    return says + f"If this goes on, {_runs_out(view, line, supply)}."


def _runs_out(view: PeriodView, line: Trend, supply: float, less: float = 0.0) -> str:
    """When the busiest hour takes every GPU, with its interval where there is one."""
    likely, early, late = line.reaches(supply, less)
    end = view.past.period.end

    def day(days: float | None) -> str:
        return date(end + days * DAY) if days is not None else "not within two years"

    if line.gains() is None:
        takes = "the busiest hour takes every GPU"
        return (
            f"{takes} around {day(likely)}, which may be far off"
            if likely is not None
            else "supply does not run out within two years, as far as so short a time tells"
        )
    if early is None:
        return "supply does not run out within two years"
    if likely is None:
        return f"supply may run out from {day(early)} on, but more likely not within two years"
    begin = "now" if early == 0 else day(early)
    return f"the busiest hour takes every GPU around {day(likely)}; with 80\u202f% confidence " + (
        f"between {begin} and {day(late)}"
        if late is not None
        else f"at any time from {begin} on, perhaps not within two years"
    )


def reclaimable(view: PeriodView) -> list[Holding]:
    """The three jobs that lately held most idle GPUs and still hold them."""
    end = view.past.period.end
    found = []
    for job, past in view.past.jobs.items():
        hours = sum(end - at < WEEK for at in view.past.clusters.get(job.cluster, {}))
        lately = sum(gpus for at, gpus in past.held.items() if end - at < WEEK)
        idle = sum(gpus for at, gpus in past.idle.items() if end - at < WEEK)
        if hours and past.held.get(end, 0.0) > 0 and idle >= IDLE_SHARE * lately:
            found.append(Holding(job, lately / hours, idle / hours))
    found.sort(key=lambda one: (-one.idle, one.job))
    return [one for one in found if one.idle >= 1][:RECLAIMED]


def _reclaim(
    view: PeriodView, line: Trend | None, supply: float | None, holdings: Sequence[Holding]
) -> str:
    """What it would change to take back what is merely held."""
    if not holdings:
        return ""
    names = " and ".join(
        ", ".join(
            f"{shown(one.job.workload)} of {owner(one.job)} ({counted(one.idle, 'GPU')})"
            for one in part
        )
        for part in (holdings[:-1], holdings[-1:])
        if part
    )
    what = "this holding" if len(holdings) == 1 else f"these {len(holdings)} holdings"
    says = (
        f" Reclaim {what}, idle as they are, {names}"
        if len(holdings) > 1
        else (f" Reclaim {what}, idle as it is, {names}")
    )
    back = sum(one.idle for one in holdings)
    if line is None or supply is None:
        return f"{says}, and {counted(back, 'GPU')} come free."
    return f"{says}, and {_runs_out(view, line, supply, back)}."


def change(view: PeriodView) -> ReportSection:
    """Now and before."""
    before = view.before
    known = counted(before.period.hours, "hour")
    known = f"{number(view.hours_before())} of {known}"
    if not view.comparable():
        return _changed(
            view,
            f"Of the {view.length()} before, {known} have data: too few to compare with."
            if before.clusters
            else f"There are no data of the {view.length()} before to compare with.",
            (),
        )
    new, old = (_energy_of_useful_hour(past) for past in (view.past, before))
    energy = (
        f" A useful GPU hour took {number(new)} kWh, before {number(old)}." if new and old else ""
    )
    says = f"Compared with the {view.length()} before, of which {known} have data.{energy}"
    return _changed(view, says, (*_shares_of_all(view), *_shares_of_namespaces(view)))


def _compared(
    what: str, new: float | None, old: float | None, *, more_is_better: bool | None
) -> Iterator[tuple[Value, ...]]:
    """A row if both are known; None is for what is neither good nor bad by itself."""
    if new is None or old is None:
        return
    difference = new - old
    verdict = "as before"
    if abs(difference) >= 0.001:
        verdict = (
            ("more" if difference > 0 else "less")
            if more_is_better is None
            else ("better" if (difference > 0) == more_is_better else "worse")
        )
    yield what, new, old, difference, verdict


def _shares_of_all(view: PeriodView) -> Iterator[tuple[Value, ...]]:
    """What was held, used and useful, what was lost to each state, and goodput."""
    now, then = view.total, totals(view.before)
    for what, of, whole, more_is_better in (
        ("Held, of all GPU hours", held, lambda one: sum(one.values()), None),
        ("Used, of all GPU hours", used, lambda one: sum(one.values()), True),
        ("Useful, of all GPU hours", useful, lambda one: sum(one.values()), True),
        ("Used, of what was held", used, held, True),
        ("Useful, of what was held", useful, held, True),
    ):
        yield from _compared(
            what,
            ratio(of(now), whole(now)),
            ratio(of(then), whole(then)),
            more_is_better=more_is_better,
        )
    for state in LOST:
        if now.get(state, 0.0) or then.get(state, 0.0):
            yield from _compared(
                f"{words.STATES[state]} ({state}), of what was held".capitalize(),
                ratio(now.get(state, 0.0), held(now)),
                ratio(then.get(state, 0.0), held(then)),
                more_is_better=False,
            )
    goodput, before = _goodput(view.past), _goodput(view.before)
    yield from _compared("Goodput of training", goodput, before, more_is_better=True)


def _shares_of_namespaces(view: PeriodView) -> Iterator[tuple[Value, ...]]:
    """What the largest owners of both periods lost."""
    now, then = (
        {
            name: (ratio(lost(states), held(states)), held(states))
            for name, states in past.namespaces.items()
            if held(states) >= LEAST_HELD
        }
        for past in (view.past, view.before)
    )
    for name in sorted(now.keys() & then.keys(), key=lambda name: -now[name][1])[:TOP]:
        what = f"Lost by {shown(name) or 'no namespace'}, of what it held"
        yield from _compared(what, now[name][0], then[name][0], more_is_better=False)


def _changed(view: PeriodView, says: str, rows: tuple[tuple[Value, ...], ...]) -> ReportSection:
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
                rows,
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


def _energy_of_useful_hour(past: Past) -> float | None:
    days = energy_by_day(past).values()
    return ratio(sum(day[0] for day in days), sum(day[1] for day in days))
