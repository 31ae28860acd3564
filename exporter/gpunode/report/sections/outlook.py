"""What demand will be, whether to buy or to reclaim, and what has changed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpunode.gpu.ledger import STATES
from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import DAY, Amounts, PeriodHours
from gpunode.report.sections.lost_to import lost_to
from gpunode.report.sections.trend import MIN_DAYS, MIN_INTERVAL_DAYS, Trend, trend
from gpunode.report.view import (
    LOSSES,
    WEEK,
    PeriodView,
    added,
    energy_by_day,
    held,
    ratio,
    totals,
    used,
    useful,
)
from gpunode.report.words import amount, clock, date, format_gain, number

FULL_SHARE = 0.995
"""Share of the GPUs from which on they are all held."""

NEARLY_ALL = 20
"""Hours of a day from which on its busiest one is known."""

WORTH_WAITING = 14.0
"""Days by which supply lasts longer from which on it is worth to reclaim before one buys."""


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
class Demand:
    """The busiest hours of the days, the line through them, and what there is to reclaim."""

    days: Mapping[int, _Day]
    line: Trend | None
    supply: float | None
    """GPUs in the last week."""

    back: float
    """GPUs that would have done the same work with what can be had back, in the mean."""

    @classmethod
    def of(cls, view: PeriodView) -> Demand:
        days = _busiest(view, view.whole_hours())
        back = sum(one.back.estimate for one in lost_to(view) if one.lost)
        end = view.past.period.end
        lately = [day.supply for at, day in days.items() if end - at < WEEK]
        return cls(
            days,
            trend({(at - end) / DAY: day.held for at, day in days.items()}),
            statistics.fmean(lately) if lately else None,
            back / len(view.hours) if view.hours else 0.0,
        )


def demand(view: PeriodView) -> ReportSection:
    """When GPUs are held, and whether more of them are needed."""
    found, whole = Demand.of(view), view.whole_hours()
    end = view.past.period.end
    lately = [day for at, day in found.days.items() if end - at < WEEK]
    full = sum(
        sum(states.values()) > 0 and held(states) / sum(states.values()) >= FULL_SHARE
        for states in whole.values()
    )
    full_days = sum(day.supply > 0 and day.held / day.supply >= FULL_SHARE for day in lately)
    by_hour = history.STATES.over("1h")
    gains = found.line.gains() if found.line else None
    return ReportSection(
        "demand",
        "Buy or reclaim",
        _full_text(full, len(whole), full_days, len(lately)) + buy_or_reclaim(end, found),
        (
            Figure("supply", "GPUs", found.supply, "GPUs", by_hour, "in the last week"),
            Figure(
                "full_hours",
                "Hours with every GPU held",
                float(full),
                "count",
                by_hour,
                f"of {amount(len(whole), 'hour')}",
            ),
            Figure(
                "demand_gain",
                "Demand grows",
                found.line.gain * 7 if found.line else None,
                "GPUs",
                by_hour,
                "GPUs a week"
                + (
                    f" (80\u202f%: {format_gain(gains[0] * 7)} to {format_gain(gains[1] * 7)})"
                    if gains
                    else ""
                ),
            ),
        ),
        (_trend_of_days(view, found.days, found.line, found.supply),),
    )


def _busiest(view: PeriodView, whole: Mapping[int, Amounts]) -> dict[int, _Day]:
    """The days of which enough hours are known to tell the busiest, by their ends."""
    hours: dict[int, list[Amounts]] = defaultdict(list)
    for at, states in whole.items():
        hours[view.past.day(at)].append(states)
    return {end: _Day.of(of) for end, of in sorted(hours.items()) if len(of) >= NEARLY_ALL}


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


def _full_text(full: int, hours: int, full_days: int, days: int) -> str:
    """For how long every GPU was held, and whether the supply hides demand of late."""
    says = f"In {number(full)} of {amount(hours, 'hour')} every GPU was held. "
    if not full_days:
        return says
    return says + (
        f"In the last week, that was so in the busiest hour of {full_days} of "
        f"{amount(days, 'day')}: what was wanted beyond it is not seen. "
    )


def buy_or_reclaim(end: int, of: Demand) -> str:
    """What to do about supply, in one sentence; ``end`` is that of the period."""
    worth = f"the time that can be had back is worth {amount(round(of.back), 'GPU')}"
    reclaim = of.back >= 1
    if of.line is None or of.supply is None:
        also = f"; {worth}" if reclaim else ""
        return f"Whether to buy GPUs cannot be told: it takes {MIN_DAYS} days of data{also}."
    every = f"all {number(round(of.supply))} GPUs in the busiest hour"
    likely, early, late = of.line.reaches(of.supply)
    if likely is None and early is None:
        also = f", and {worth}" if reclaim else ""
        return (
            f"Buy nothing: at this trend jobs do not come to hold {every} within two years{also}."
        )
    if likely != 0 and (of.line.gains() is None or late is None):
        when = f"from {_day(end, early)} on, perhaps not within two years"
        why = (
            f"it takes {MIN_INTERVAL_DAYS} days of data"
            if of.line.gains() is None
            else f"with 80\u202f% confidence it is {when}"
        )
        first = f"Reclaim before you buy: {worth}, and" if reclaim else "Do not buy yet:"
        return f"{first} when jobs come to hold {every} cannot be told, as {why}."
    when = (
        f"jobs hold {every} already"
        if likely == 0
        else f"jobs come to hold {every} around {_day(end, likely)} (80\u202f% interval: "
        f"{_day(end, early)} to {_day(end, late)})"
    )
    later = of.line.reaches(of.supply, of.back)[0]
    if not reclaim or (later is not None and later - (likely or 0.0) < WORTH_WAITING):
        by_days = f", and {worth}, which moves that by days only" if reclaim else ""
        return f"Buy: {when}{by_days}."
    until = f"to {_day(end, later)}" if later is not None else "beyond two years"
    return f"Reclaim before you buy: {when}; {worth}, which moves that {until}."


def _day(end: int, days: float | None) -> str:
    return date(end + days * DAY) if days else "now"


def change(view: PeriodView) -> ReportSection:
    """Now and before."""
    before = view.before
    known = amount(before.period.hours, "hour")
    known = f"{number(view.hours_before())} of {known}"
    if not view.comparable():
        return _change_section(
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
    return _change_section(view, says, tuple(_shares_of_all(view)))


def _by_day(view: PeriodView) -> Table:
    days: dict[int, list[Amounts]] = {end: [] for end in view.days()}
    for at, states in view.hours.items():
        days[view.past.day(at)].append(states)
    return Table(
        "days",
        "GPU hours by day",
        (
            TableColumn("day", "Begins"),
            TableColumn("hours", "Hours with data", "count"),
            *(TableColumn(state, state, "GPU hours") for state in STATES),
        ),
        tuple(
            (
                view.begin(end),
                float(len(seen)),
                *(sum(one.get(s, 0.0) for one in seen) if seen else None for s in STATES),
            )
            for end, seen in days.items()
        ),
        (history.STATES.over("1d"),),
        hidden=True,
    )


def _comparison(
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
        yield from _comparison(
            what,
            ratio(of(now), whole(now)),
            ratio(of(then), whole(then)),
            more_is_better=more_is_better,
        )
    for state in LOSSES:
        if now.get(state, 0.0) or then.get(state, 0.0):
            yield from _comparison(
                f"{words.headline(state)}, of what was held",
                ratio(now.get(state, 0.0), held(now)),
                ratio(then.get(state, 0.0), held(then)),
                more_is_better=False,
            )
    goodput, before = _goodput(view.past), _goodput(view.before)
    yield from _comparison("Goodput of training", goodput, before, more_is_better=True)


def _change_section(
    view: PeriodView, says: str, rows: tuple[tuple[Value, ...], ...]
) -> ReportSection:
    return ReportSection(
        "change",
        "Better or worse than before",
        says
        + (" A day with hours without data has a shorter bar." if view.missing_hours() else ""),
        (),
        (
            _by_day(view),
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


def _goodput(past: PeriodHours) -> float | None:
    phases = added(phases for job in past.jobs.values() for phases in job.phases.values())
    return ratio(phases.get("step", 0.0), sum(phases.values()))


def _energy_of_useful_hour(past: PeriodHours) -> float | None:
    days = energy_by_day(past).values()
    return ratio(sum(day[0] for day in days), sum(day[1] for day in days))
