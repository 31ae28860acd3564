"""What broke, and what it cost: each incident of a job from its wait to the last repeated step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpunode.incidents.incident import KINDS, Kind
from gpunode.report import history
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import PARTS, Amounts, IncidentPast, JobKey, NodeKey
from gpunode.report.view import TOP, PeriodView, lost, useful
from gpunode.report.words import clock, counted, number

TOGETHER = 900
"""Seconds within which incidents of a job on several nodes are one event."""

BEGINS: tuple[Kind, ...] = ("gpu_lost", "xid", "out_of_memory", "stall", "crash_loop", "slow")
"""What an event is called by: the first of these that its incidents are."""

MOST_NAMED = 3
LEAST = 0.005
"""GPU hours that are worth a row."""


@dataclass(frozen=True, slots=True)
class Event:
    """What broke at a time, on all nodes of a job, and the GPU hours that it cost by part."""

    job: JobKey | None
    began: float
    incidents: tuple[IncidentPast, ...] = ()
    hours: Amounts = field(default_factory=dict)

    @property
    def whole(self) -> float:
        return sum(self.hours.values())


def events(view: PeriodView) -> list[Event]:
    """All events of the period, those that cost most first; no hour is in two of them."""
    past = view.past
    by_job: dict[JobKey | None, list[IncidentPast]] = defaultdict(list)
    for one in past.incidents.values():
        if past.period.start <= one.began < past.period.end:
            by_job[min(one.jobs, default=None)].append(one)
    found = []
    for job in (*by_job, *(past.repeated.keys() - by_job.keys())):
        own = list(_together(job, by_job.get(job, ())))
        rest = past.repeated.get(job, 0.0) if job else 0.0
        rest = max(0.0, rest - sum(one.hours.get("repeating", 0.0) for one in own))
        # What a node does not know of its own is known by the job's other nodes.
        starts = sum(one.hours.get("starting", 0.0) for one in own)
        if starts:
            own = [_with(one, rest * one.hours.get("starting", 0.0) / starts) for one in own]
        elif rest:
            own.append(Event(job, past.period.end, hours={"repeating": rest}))
        found += own
    worth = [one for one in found if one.whole >= LEAST]
    return sorted(worth, key=lambda one: (-_price(view, one), one.began))


def _together(job: JobKey | None, incidents: Iterable[IncidentPast]) -> Iterator[Event]:
    """Incidents of a job that began together, as one event."""
    group: list[IncidentPast] = []
    for one in sorted(incidents, key=lambda one: one.began):
        if group and (job is None or one.began - group[-1].began > TOGETHER):
            yield _event(job, group)
            group = []
        group.append(one)
    if group:
        yield _event(job, group)


def _event(job: JobKey | None, group: list[IncidentPast]) -> Event:
    """What a group cost; all ranks repeat what one does, also those of which no node can tell."""
    hours = {part: sum(one.hours.get(part, 0.0) for one in group) for part in PARTS}
    nodes: dict[NodeKey, float] = defaultdict(float)
    for one in group:
        nodes[one.node] += one.hours.get("repeating", 0.0)
    hours["repeating"] = max(nodes.values()) * len(nodes)
    return Event(job, group[0].began, tuple(group), hours)


def _with(event: Event, repeated: float) -> Event:
    hours = {**event.hours, "repeating": event.hours.get("repeating", 0.0) + repeated}
    return replace(event, hours=hours)


def _price(view: PeriodView, event: Event) -> float:
    """What an event cost; its GPU hours where no price is given."""
    own = view.price_of(view.past.jobs[event.job]) if event.job in view.past.jobs else view.price
    return event.whole * (1.0 if own is None else own)


def broke(view: PeriodView) -> ReportSection:
    """The events that cost most, with what tells of each."""
    found = events(view)
    whole = sum(one.whole for one in found)
    price = sum(_price(view, one) for one in found)
    parts = {part: sum(one.hours.get(part, 0.0) for one in found) for part in PARTS}
    worth = f", worth {view.money(price)}" if view.price is not None else ""
    says = (
        f"{counted(len(found), 'event')} cost {counted(whole, 'GPU hour')}{worth}: "
        f"{number(parts['waiting'])} without work, {number(parts['starting'])} until a new start "
        f"came to its first step, {number(parts['repeating'])} to repeat what was done since the "
        "last checkpoint. Each GPU hour is in one row."
        if found
        else "No incident is recorded that cost GPU hours, and no work that was repeated."
    )
    rest = f"{len(found) - TOP} more cost less. " if len(found) > TOP else ""
    return ReportSection(
        "broke",
        "What broke, and what it cost",
        says,
        (
            Figure("whole", "Cost of all", whole, "GPU hours", note="GPU hours"),
            Figure(
                "of_lost",
                "Without work or to start again",
                parts["waiting"] + parts["starting"],
                "GPU hours",
                note=f"of the {number(lost(view.total))} that were lost",
            ),
            Figure(
                "of_useful",
                "Repeated",
                parts["repeating"],
                "GPU hours",
                view.over(history.REPEATED),
                f"of the {number(useful(view.total))} that were useful",
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
                        TableColumn(part, title, "GPU hours")
                        for part, title in zip(
                            PARTS, ("Without work", "Starting again", "Repeated"), strict=True
                        )
                    ),
                    TableColumn("whole", "In all", "GPU hours"),
                    *view.cost_column(),
                    TableColumn("evidence", "Evidence"),
                ),
                tuple(_row(view, one) for one in found[:TOP]),
                (
                    history.INCIDENTS.over("1d"),
                    history.INCIDENT_JOBS.over("1d"),
                    history.REPEATED.over("1d"),
                ),
                note=f"{rest}`gpunode incident ID` on its node has what is kept of each.",
                nothing="None.",
            ),
        ),
    )


def _row(view: PeriodView, event: Event) -> tuple[Value, ...]:
    empty = ("not recorded",) * len(view.job_columns())
    kinds = {one.kind for one in event.incidents}
    kind = next((one for one in BEGINS if one in kinds), None)
    named = "; ".join(
        f"{one.id} on {view.node_name(one.node)}" for one in event.incidents[:MOST_NAMED]
    )
    more = len(event.incidents) - MOST_NAMED
    return (
        clock(event.began) if event.incidents else "",
        KINDS[kind] if kind else "it began again, with no incident on its nodes",
        *(view.job_cells(event.job) if event.job else empty),
        float(len({one.node for one in event.incidents})) or None,
        *(event.hours.get(part, 0.0) for part in PARTS),
        event.whole,
        *((_price(view, event),) if view.price is not None else ()),
        f"{named}{f' and {more} more' if more > 0 else ''}" or "gpunode_job_repeated_seconds_total",
    )
