"""Where the GPU hours went: by state, by cause, by who held them, and their energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from gpunode.gpu.ledger import STATES
from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import Amounts, JobKey, JobPast
from gpunode.report.view import (
    LOST,
    MOST_ROWS,
    WEEK,
    PeriodView,
    added,
    energy_by_day,
    held,
    kind,
    lost,
    owner,
    ratio,
    shown,
    used,
    useful,
)
from gpunode.report.words import REMEDIES, clock
from gpunode.words import CAUSES as WORDS

ASKED_BY = {"node": history.NODES, "model": history.MODELS}
"""What is asked for groups that are no jobs or owners."""


def summary(view: PeriodView) -> ReportSection:
    """Every GPU hour by state, and by day."""
    return ReportSection(
        "summary",
        "Where the GPU hours went",
        "Every GPU second is in one state of the ledger. Useful is time in which "
        "kernels ran; all other time of a GPU that a job holds is lost."
        + (" A day with hours without data has a shorter bar." if view.missing_hours() else ""),
        tuple(_shares(view)),
        (_by_state(view), _by_day(view)),
    )


def _asked(view: PeriodView, selector: str) -> str:
    """The PromQL of all GPU hours in some states."""
    return f"sum (sum_over_time(cluster:{history.LEDGER}{selector}[{view.window}]))"


def _shares(view: PeriodView) -> Iterator[Figure]:
    """What was held, used, useful and lost, and what that cost."""
    whole = sum(view.total.values())
    everything = _asked(view, "")
    is_held, is_used = '{state!="free"}', '{state!~"free|idle|unknown"}'
    yield Figure("gpu_hours", "GPU hours", whole, "GPU hours", everything, "that there were")
    for name, title, of, states, note in (
        ("allocated", "Allocated", held, is_held, "held by jobs"),
        ("used", "Used", used, is_used, "a job was running"),
        ("useful", "Useful", useful, history.IS_USEFUL, "kernels ran"),
    ):
        share = ratio(of(view.total), whole)
        yield Figure(name, title, share, "share", f"{_asked(view, states)} / {everything}", note)
    lost_hours = _asked(view, history.IS_LOST)
    yield Figure("lost", "Held without use", lost(view.total), "GPU hours", lost_hours, "GPU hours")
    if view.price is not None:
        yield Figure(
            "lost_cost",
            "Price of it",
            view.worth(LOST),
            "price",
            "" if view.billing.prices else f"{lost_hours} * {view.price:g}",
            f"at {view.hourly(view.price)} for a GPU hour"
            + (", in the mean" if view.several_prices() else ""),
        )


def _by_state(view: PeriodView) -> Table:
    total = view.total
    return Table(
        "states",
        "GPU hours by state",
        (
            TableColumn("state", "State"),
            TableColumn("meaning", "What the GPU did"),
            TableColumn("gpu_hours", "GPU hours", "GPU hours"),
            TableColumn("share", "Share", "share"),
            *view.cost_column(),
        ),
        tuple(
            (
                state,
                words.STATES[state],
                total[state],
                ratio(total[state], sum(total.values())),
                *view.cost(total[state], view.price_in(state)),
            )
            for state in STATES
            if state in total
        ),
        (f"sum by (state) (sum_over_time(cluster:{history.LEDGER}[{view.window}]))",),
    )


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


def causes(view: PeriodView) -> ReportSection:
    """What held GPUs up."""
    causes = {cause: hours for cause, hours in view.past.causes.items() if hours > 0}
    rows = tuple(
        (
            cause,
            hours,
            *(gains.get(bound) for bound in ("estimate", "lower", "upper")),
            *_cost_of_gain(view, gains.get("estimate")),
            *(_meaning(cause), _remedy(cause)),
        )
        for cause, hours in sorted(causes.items(), key=lambda item: -item[1])
        for gains in (view.past.gains.get(cause, {}),)
    )
    return ReportSection(
        "causes",
        "What held GPUs up",
        "For every GPU at any time, its node names the one thing that holds it up. A "
        "GPU that is held up is not wholly lost, and one that loses little has no cause: these "
        "hours do not add up to those that were lost. To get back are the hours that the same work "
        "would not take without the cause, with bounds that hold nine times in ten."
        if rows
        else "No verdict named a cause.",
        (),
        (
            Table(
                "causes",
                "GPU hours by cause",
                (
                    TableColumn("cause", "Cause"),
                    TableColumn("gpu_hours", "GPU hours", "GPU hours"),
                    TableColumn("given_back", "To get back", "GPU hours"),
                    TableColumn("given_back_lower", "at least", "GPU hours"),
                    TableColumn("given_back_upper", "at most", "GPU hours"),
                    *view.cost_column("Price of what would come back"),
                    TableColumn("meaning", "What it means"),
                    TableColumn("remedy", "What helps"),
                ),
                rows,
                (view.over(history.CAUSES), view.over(history.GAINS)),
            ),
        ),
    )


def groups(view: PeriodView) -> ReportSection:
    """Who held GPUs."""
    groups, costs = _grouped(view)
    ranked = sorted(groups.items(), key=lambda item: -held(item[1]))
    listed = ranked[:MOST_ROWS]
    if rest := ranked[MOST_ROWS:]:
        others = f"{len(rest)} others"
        listed.append((others, added(states for _, states in rest)))
        costs[others] = sum(costs[name] for name, _ in rest)
    rows = tuple(
        (
            name,
            held(states),
            ratio(used(states), held(states)),
            ratio(useful(states), held(states)),
            lost(states),
            *((costs[name],) if view.price is not None else ()),
        )
        for name, states in listed
    )
    note = {
        "kind": "A job counts as the kind of work that it did for most of its hours.",
        "node": "",
        "model": "A slice of MIG counts as a GPU.",
    }.get(view.by, "A GPU that several jobs share belongs to none of them.")
    return ReportSection(
        "groups",
        f"Who held GPUs, by {view.by}",
        f"{note} Used and useful are shares of what was held.".strip(),
        (),
        (
            Table(
                "groups",
                f"GPU hours by {view.by}",
                (
                    TableColumn("name", view.by.capitalize()),
                    TableColumn("held", "Held", "GPU hours"),
                    TableColumn("used", "Used", "share"),
                    TableColumn("useful", "Useful", "share"),
                    TableColumn("lost", "Lost", "GPU hours"),
                    *view.cost_column("Price of what was lost"),
                ),
                rows,
                (view.over(ASKED_BY.get(view.by, history.JOBS)),),
            ),
        ),
    )


def _grouped(view: PeriodView) -> tuple[dict[str, Amounts], dict[str, float]]:
    """The GPU hours of each group by state, and what those cost that it lost."""
    groups: dict[str, Amounts] = {}
    costs: dict[str, float] = defaultdict(float)
    if view.by == "node":
        for node, seen in view.past.nodes.items():
            _put(groups, view.node_name(node), seen.states)
            costs[view.node_name(node)] += lost(seen.states) * (view.price or 0.0)
    elif view.by == "model":
        for model, states in view.past.models.items():
            _put(groups, shown(model), states)
            price = view.billing.price_of(model) if view.billing.prices else view.price
            costs[shown(model)] += lost(states) * (price or 0.0)
    else:
        of: dict[str, Callable[[JobKey, JobPast], str]] = {
            "namespace": lambda job, _: job.owner_namespace or "no namespace",
            "job": lambda job, _: f"{job.workload} ({owner(job)})",
            "user": lambda job, _: job.user or "no user",
            "kind": lambda _, past: words.KINDS.get(kind(past), kind(past)),
        }
        for job, past in view.past.jobs.items():
            name = shown(of[view.by](job, past))
            _put(groups, name, past.states)
            costs[name] += lost(past.states) * (view.price_of(past) or 0.0)
    return groups, costs


def energy(view: PeriodView) -> ReportSection:
    """Energy, and what a useful hour took."""
    weeks: dict[int, Amounts] = defaultdict(lambda: defaultdict(float))
    for at, (drawn, hours) in energy_by_day(view.past).items():
        weeks[view.week(at)]["useful"] += hours
        weeks[view.week(at)]["energy"] += drawn
    useful_hours = added(weeks.values())
    energy = sum(view.past.energy.values())
    dark = sorted(view.past.clusters.keys() - {cluster for cluster, _ in view.past.energy})
    without = f" No power is recorded of {' and '.join(map(shown, dark))}." if dark else ""
    by_state = view.past.energy_by_state
    by_cluster = view.over(history.ENERGY)
    asked = f"sum ({by_cluster})"
    return ReportSection(
        "energy",
        "Energy",
        f"What the GPUs drew, divided by the GPU hours that were useful.{without}"
        if energy
        else "No power is recorded.",
        (
            Figure("energy", "Energy", energy or None, "kWh", asked, "kWh"),
            Figure(
                "energy_per_useful_hour",
                "For a useful GPU hour",
                ratio(useful_hours.get("energy", 0.0), useful_hours.get("useful", 0.0)),
                "kWh",
                f"{asked} / sum (sum_over_time(cluster:{history.LEDGER}"
                f"{history.IS_USEFUL}[{view.window}]) and on (cluster) {by_cluster})",
                "kWh",
            ),
            Figure(
                "energy_blocked",
                "Burnt while blocked",
                by_state.get("blocked", 0.0) if by_state else None,
                "kWh",
                view.over(history.ENERGY_BLOCKED),
                "while a peer was late",
            ),
            Figure(
                "energy_waiting",
                "Burnt while waiting",
                sum(by_state.get(state, 0.0) for state in history.WAITING) if by_state else None,
                "kWh",
                view.over(history.ENERGY_WAITING),
                "starved and idle",
            ),
        ),
        (_by_week(view, weeks),),
    )


def _by_week(view: PeriodView, weeks: Mapping[int, Amounts]) -> Table:
    return Table(
        "weeks",
        "Energy by week",
        (
            TableColumn("week", "Begins"),
            TableColumn("energy", "Energy", "kWh"),
            TableColumn("per_useful_hour", "kWh for a useful GPU hour", "kWh"),
        ),
        tuple(
            (
                clock(max(end - WEEK, view.past.period.start)),
                week["energy"],
                ratio(week["energy"], week["useful"]),
            )
            for end, week in sorted(weeks.items())
        ),
        (history.ENERGY.over("1d"),),
    )


def _cost_of_gain(view: PeriodView, hours: float | None) -> tuple[Value, ...]:
    """What would come back is worth its price; what a cause was named for is not all lost."""
    if view.price is None:
        return ()
    return (hours * view.price if hours is not None else None,)


def _meaning(cause: str) -> str:
    return WORDS[cause].sentence if cause in WORDS else ""


def _remedy(cause: str) -> str:
    return REMEDIES[cause].do if cause in REMEDIES else ""


def _put(groups: dict[str, Amounts], name: str, states: Mapping[str, float]) -> None:
    groups[name] = added((groups.get(name, {}), states))
