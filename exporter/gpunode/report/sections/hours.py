"""Who held GPUs, and the energy that they took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from gpunode.report import history, words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn
from gpunode.report.history import Amounts, JobHours, JobKey
from gpunode.report.view import (
    MAX_ROWS,
    PeriodView,
    added,
    clean,
    energy_by_day,
    held,
    kind,
    lost,
    owner,
    ratio,
    used,
    useful,
)

GROUP_QUERIES = {"node": history.NODES, "model": history.MODELS}
"""What is asked for groups that are no jobs or owners."""


def groups(view: PeriodView) -> ReportSection:
    """Who held GPUs."""
    groups, costs = _grouped(view)
    ranked = sorted(groups.items(), key=lambda item: -held(item[1]))
    listed = ranked[:MAX_ROWS]
    if rest := ranked[MAX_ROWS:]:
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
                (view.over(GROUP_QUERIES.get(view.by, history.JOBS)),),
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
            _put(groups, clean(model), states)
            price = view.billing.price_of(model) if view.billing.prices else view.price
            costs[clean(model)] += lost(states) * (price or 0.0)
    else:
        of: dict[str, Callable[[JobKey, JobHours], str]] = {
            "namespace": lambda job, _: job.owner_namespace or "no namespace",
            "job": lambda job, _: f"{job.workload} ({owner(job)})",
            "user": lambda job, _: job.user or "no user",
            "kind": lambda _, past: words.KINDS.get(kind(past), kind(past)),
        }
        for job, past in view.past.jobs.items():
            name = clean(of[view.by](job, past))
            _put(groups, name, past.states)
            costs[name] += lost(past.states) * (view.price_of(past) or 0.0)
    return groups, costs


def energy(view: PeriodView) -> ReportSection:
    """Energy, and what a useful hour took."""
    days = energy_by_day(view.past).values()
    energy = sum(view.past.energy.values())
    dark = sorted(view.past.clusters.keys() - {cluster for cluster, _ in view.past.energy})
    without = f" No power is recorded of {' and '.join(map(clean, dark))}." if dark else ""
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
                ratio(sum(drawn for drawn, _ in days), sum(hours for _, hours in days)),
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
    )


def _put(groups: dict[str, Amounts], name: str, states: Mapping[str, float]) -> None:
    groups[name] = added((groups.get(name, {}), states))
