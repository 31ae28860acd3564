"""What broke, and what it cost: each incident of a job from its wait to the last repeated step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpunode.incidents.incident import KINDS, PRICE_PARTS, Kind
from gpunode.report import history
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import Amounts, IncidentPast, JobKey, NodeKey
from gpunode.report.view import TOP, PeriodView, added, lost, useful
from gpunode.report.words import MIN_HOURS, amount, clock, number

TOGETHER = 900
"""Seconds within which incidents of a job on several nodes are one event."""

BEGINS: tuple[Kind, ...] = ("gpu_lost", "xid", "out_of_memory", "stall", "crash_loop", "slow")
"""What an event is called by: the first of these that its incidents are."""

MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class CostlyEvent:
    """What broke on all nodes of a job, and the GPU hours that it cost by part.

    Without incidents: what the job repeated though none is known.
    """

    job: JobKey
    incidents: tuple[IncidentPast, ...]
    hours: Amounts

    @property
    def whole(self) -> float:
        return sum(self.hours.values())


def events(view: PeriodView) -> list[CostlyEvent]:
    """All events of the period, those that cost most first; no hour is in two of them."""
    past = view.past
    by_job: dict[JobKey, list[IncidentPast]] = defaultdict(list)
    for one in past.incidents.values():
        if past.period.start <= one.began < past.period.end:
            by_job[one.job].append(one)
    found = [event for job, own in by_job.items() for event in _together(job, own)]
    for job, hours in past.repeated.items():
        told = sum(one.hours["repeating"] for one in found if one.job == job)
        found.append(CostlyEvent(job, (), {"repeating": max(0.0, hours - told)}))
    worth = [one for one in found if one.whole >= MIN_HOURS]
    return sorted(worth, key=lambda one: -_price(view, one))


def _together(job: JobKey, incidents: Iterable[IncidentPast]) -> Iterator[CostlyEvent]:
    """Incidents of a job that began together, as one event."""
    group: list[IncidentPast] = []
    for one in sorted(incidents, key=lambda one: one.began):
        if group and (not job.workload or one.began - group[-1].began > TOGETHER):
            yield _event(job, group)
            group = []
        group.append(one)
    yield _event(job, group)


def _event(job: JobKey, group: list[IncidentPast]) -> CostlyEvent:
    """What a group cost; all ranks repeat what one does, also those of which no node can tell."""
    hours = {**dict.fromkeys(PRICE_PARTS, 0.0), **added(one.hours for one in group)}
    nodes: dict[NodeKey, float] = defaultdict(float)
    for one in group:
        nodes[one.node] += one.hours.get("repeating", 0.0)
    return CostlyEvent(job, tuple(group), {**hours, "repeating": max(nodes.values()) * len(nodes)})


def _price(view: PeriodView, event: CostlyEvent) -> float:
    """What an event cost; its GPU hours where no price is given."""
    own = view.price_of(view.past.jobs[event.job]) if event.job in view.past.jobs else view.price
    return event.whole * (1.0 if own is None else own)


def broke(view: PeriodView) -> ReportSection:
    """The events that cost most, with what tells of each."""
    found = events(view)
    whole, price = sum(one.whole for one in found), sum(_price(view, one) for one in found)
    parts = {**dict.fromkeys(PRICE_PARTS, 0.0), **added(one.hours for one in found)}
    worth = f", worth {view.money(price)}" if view.price is not None else ""
    says = (
        f"{amount(len(found), 'event')} cost {amount(whole, 'GPU hour')}{worth}: "
        f"{number(parts['waiting'])} without work and {number(parts['starting'])} to start again, "
        f"of the {number(lost(view.total))} that were lost; and {number(parts['repeating'])} to "
        f"repeat what was done since the last checkpoint, of the {number(useful(view.total))} that "
        "count as useful. Each GPU hour is in one row; `gpunode incident ID` on its node has what "
        "is kept of each."
    )
    titles = ("Without work", "Starting again", "Repeated")
    return ReportSection(
        "broke",
        "What broke, and what it cost",
        says if found else "No incident is recorded that cost GPU hours.",
        (
            Figure(
                "broke",
                "Cost of all",
                whole,
                "GPU hours",
                f"sum ({view.over(history.INCIDENTS)})",
                "GPU hours",
            ),
        ),
        (
            Table(
                "events",
                "Events, the costliest first",
                (
                    TableColumn("began", "Began"),
                    TableColumn("what", "What"),
                    *view.job_columns(),
                    TableColumn("nodes", "Nodes", "count"),
                    *(
                        TableColumn(*of, "GPU hours")
                        for of in zip(PRICE_PARTS, titles, strict=True)
                    ),
                    TableColumn("whole", "In all", "GPU hours"),
                    *view.cost_column(),
                    TableColumn("evidence", "Evidence"),
                ),
                tuple(_row(view, one) for one in found[:TOP]),
                (history.INCIDENTS.over("1d"), history.REPEATED.over("1d")),
                note=f"{len(found) - TOP} more cost less." if len(found) > TOP else "",
            ),
        ),
    )


def _row(view: PeriodView, event: CostlyEvent) -> tuple[Value, ...]:
    kinds = {one.kind for one in event.incidents}
    kind = next((one for one in BEGINS if one in kinds), None)
    named = [f"{one.id} on {view.node_name(one.node)}" for one in event.incidents]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return (
        clock(event.incidents[0].began) if event.incidents else "",
        KINDS[kind] if kind else "it began again, with no incident on its nodes",
        *view.job_cells(event.job),
        float(len({one.node for one in event.incidents})),
        *(event.hours.get(part, 0.0) for part in PRICE_PARTS),
        event.whole,
        *((_price(view, event),) if view.price is not None else ()),
        f"{'; '.join(named[:MAX_NAMED])}{more}" or "gpunode_job_repeated_seconds_total",
    )
