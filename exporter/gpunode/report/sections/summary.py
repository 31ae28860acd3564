"""The first page: from what is installed to what can be had back, and the three things to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn
from gpunode.report.sections.lost_to import LostTo, lost_to, together, worth
from gpunode.report.sections.outlook import Demand, buy_or_reclaim
from gpunode.report.view import (
    LOSSES,
    PeriodView,
    held,
    lost,
    ratio,
    useful,
)
from gpunode.report.words import amount, as_text, number

ACTIONS = 3
NAMED = 6
"""Causes with a row of their own; the others share one."""


def finding(view: PeriodView) -> str:
    """The paragraph above all."""
    total = view.total
    whole = sum(total.values())
    says = [
        f"Of {amount(whole, 'GPU hour')}{_worth(view, view.worth(total), end=',')} jobs held "
        f"{as_text(ratio(held(total), whole), 'share')}, and "
        f"{as_text(ratio(useful(total), whole), 'share')} did useful work."
    ]
    if lost(total) > 0:
        all_of = together(one for one in lost_to(view) if one.lost)
        share, low, high = (as_text(ratio(one, lost(total)), "share") for one in all_of.back)
        says.append(
            f"{number(lost(total))} were held and lost{_worth(view, view.worth(LOSSES))}; about "
            f"{number(all_of.back.estimate)} of these ({share}; at least {low}, at most {high}) "
            f"can be had back{_worth(view, worth(all_of, view))}."
        )
    says.append(buy_or_reclaim(view.past.period.end, Demand.of(view)))
    rest = []
    if (change := view.useful_change()) is not None:
        rest.append(
            f"Against the {view.length()} before, the useful share of what was held "
            f"{'rose' if change >= 0 else 'fell'} by {abs(change) * 100:.1f} points, to "
            f"{as_text(ratio(useful(total), held(total)), 'share')}."
        )
    if missing := view.missing_hours():
        rest.append(
            f"For {number(missing)} of {view.hours_of(view.expected_hours())} there are no "
            "data; they are left out, not filled."
        )
    return "\n".join(filter(None, (*says, " ".join(rest))))


def _worth(view: PeriodView, price: float, end: str = "") -> str:
    return f", worth {view.money(price)}{end}" if view.price is not None else end


def summary(view: PeriodView) -> ReportSection:
    """Every GPU hour, what took those that were lost, and what brings most of them back."""
    found = lost_to(view)
    return ReportSection(
        "summary",
        "Where the GPU hours went, and what to do",
        "Useful is time in which kernels of a job computed; all other time that it held a GPU is "
        "lost. Communication and copies are lost, too, as nothing is computed meanwhile. Every "
        "parallel job has some, so only what verdicts call avoidable counts as to be had back.",
        tuple(_shares(view)),
        (
            _actions(view, found),
            _waterfall(view, found),
            _by_cause(view, found),
        ),
    )


def _state_query(view: PeriodView, selector: str) -> str:
    """The PromQL of all GPU hours in some states."""
    return f"sum (sum_over_time(cluster:{history.LEDGER}{selector}[{view.window}]))"


def _shares(view: PeriodView) -> Iterator[Figure]:
    whole = sum(view.total.values())
    everything, lost_hours = _state_query(view, ""), _state_query(view, history.IS_LOST)
    yield Figure("gpu_hours", "Installed", whole, "GPU hours", everything, "GPU hours")
    for name, title, of, states, note in (
        ("allocated", "Held", held, '{state!="free"}', "by jobs"),
        ("useful", "Useful", useful, history.IS_USEFUL, "computing"),
    ):
        share = ratio(of(view.total), whole)
        yield Figure(
            name, title, share, "share", f"{_state_query(view, states)} / {everything}", note
        )
    yield Figure("lost", "Lost", lost(view.total), "GPU hours", lost_hours, "GPU hours")
    if view.price is not None:
        yield Figure(
            "lost_cost",
            "Price of lost",
            view.worth(LOSSES),
            "price",
            "" if view.billing.prices else f"{lost_hours} * {view.price:g}",
            f"at {view.hourly(view.price)} for a GPU hour"
            + (", in the mean" if view.several_prices() else ""),
        )


def _actions(view: PeriodView, found: Sequence[LostTo]) -> Table:
    ranked = sorted(found, key=lambda one: -one.back.estimate)
    return Table(
        "actions",
        "What to do first",
        (
            TableColumn("what", "What takes the time"),
            TableColumn("given_back", "To get back", "GPU hours"),
            *view.cost_column("Worth"),
            TableColumn("sure", "How sure"),
            TableColumn("ask", "Whom to ask (what they lost to it)"),
            TableColumn("remedy", "What to do"),
        ),
        tuple(
            (
                one.what,
                one.back.estimate,
                *((worth(one, view),) if view.price is not None else ()),
                one.sure(),
                one.ask(),
                one.remedy,
            )
            for one in ranked[:ACTIONS]
            if one.back.estimate >= 1
        ),
        (view.over(history.GAINS), view.over(history.JOB_CAUSES)),
        nothing="Nothing is known that would give back GPU hours.",
    )


def _waterfall(view: PeriodView, found: Sequence[LostTo]) -> Table:
    """From installed to what can be had back: the parts of a whole add up to it."""
    total, whole = view.total, sum(view.total.values())
    of_lost = [one for one in found if one.lost > 0]
    few = [one for one in of_lost if one.name in words.REMEDIES][NAMED:]
    named = [one for one in of_lost if one not in few] + ([together(few)] if few else [])
    every = together(of_lost)
    back, price = every.back.estimate, sum(worth(one, view) for one in of_lost)
    free, all_cost = view.worth(("free",)), view.worth(total)
    useful_cost = all_cost - free - every.cost
    rows = (
        ("", "installed", "Installed", whole, all_cost),
        ("installed", "held", "Held by jobs", held(total), all_cost - free),
        ("installed", "free", "Free: no job held them", total.get("free", 0.0), free),
        ("held", "useful", "Useful", useful(total), useful_cost),
        ("held", "lost", "Lost", lost(total), every.cost),
        *(("lost by cause", one.name, one.what, one.lost, one.cost) for one in named),
        ("lost", "back", "Lost, can be had back", back, price),
        ("lost", "stays", "Lost, no way back known", every.lost - back, every.cost - price),
    )
    return Table(
        "waterfall",
        "From installed to what can be had back",
        (
            TableColumn("of", "Part of"),
            TableColumn("part", "Part"),
            TableColumn("what", "What"),
            TableColumn("gpu_hours", "GPU hours", "GPU hours"),
            TableColumn("share", "Of installed", "share"),
            *view.cost_column("Price"),
        ),
        tuple(
            (of, part, what, hours, ratio(hours, whole))
            + ((cost,) if view.price is not None else ())
            for of, part, what, hours, cost in rows
        ),
        (view.over(history.STATES), view.over(history.JOBS), view.over(history.JOB_CAUSES)),
        hidden=True,
    )


def _by_cause(view: PeriodView, found: Sequence[LostTo]) -> Table:
    """What took the lost hours, and what comes back of each."""
    return Table(
        "causes",
        "Lost, by cause",
        (
            TableColumn("what", "Cause"),
            TableColumn("cause", "Name"),
            TableColumn("gpu_hours", "Lost", "GPU hours"),
            *view.cost_column("Price of it"),
            TableColumn("given_back", "To get back", "GPU hours"),
            TableColumn("given_back_lower", "at least", "GPU hours"),
            TableColumn("given_back_upper", "at most", "GPU hours"),
            TableColumn("remedy", "What helps"),
        ),
        tuple(
            (
                one.what,
                one.name,
                one.lost or None,
                *((one.cost if one.lost else None,) if view.price is not None else ()),
                *(one.back if one.back.at_most else (None, None, None)),
                one.remedy,
            )
            for one in found
            if max(one.lost, one.back.estimate) >= 1
        ),
        (view.over(history.JOB_CAUSES), view.over(history.GAINS)),
        note="Lost: a dash where the GPU computed, but slower than it could. To get back: a dash "
        "where nothing tells how much could be avoided; bounds hold nine times in ten. Of idle "
        "GPUs, at least what jobs held that ran nothing for half of their time, and at most all.",
        nothing="Nothing was lost.",
    )
