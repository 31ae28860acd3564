"""A period as the sections look at it, and what several of them compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpunode.gpu.ledger import STATES
from gpunode.report import history
from gpunode.report.document import TableColumn, Value
from gpunode.report.history import DAY, NOT_USED, USEFUL, Amounts, JobKey, JobPast, NodeKey, Past
from gpunode.report.words import clock, counted
from gpunode.text import printable

LONGEST_NAME = 80
WEEK = 7 * DAY
LEAST_HELD = 24.0
"""GPU hours from which on a job is worth naming."""

TOP = 10
MOST_ROWS = 50

LOST = tuple(state for state in STATES if state not in (*USEFUL, "free"))


def held(states: Mapping[str, float]) -> float:
    """GPU hours that somebody held."""
    return sum(hours for state, hours in states.items() if state != "free")


def used(states: Mapping[str, float]) -> float:
    """GPU hours in which a job was running."""
    return sum(hours for state, hours in states.items() if state not in NOT_USED)


def useful(states: Mapping[str, float]) -> float:
    """GPU hours of arithmetic and memory traffic."""
    return sum(states.get(state, 0.0) for state in USEFUL)


def lost(states: Mapping[str, float]) -> float:
    """GPU hours that were held without use."""
    return held(states) - useful(states)


def ratio(part: float, whole: float) -> float | None:
    """A share, where there is something to share."""
    return part / whole if whole > 0 else None


def shown(text: str) -> str:
    """A name that somebody chose, fit to be printed."""
    return printable(text, LONGEST_NAME)


def owner(job: JobKey) -> str:
    """Who a job belongs to: its namespace, or else its user."""
    return shown(job.owner_namespace or job.user or "unknown")


def kind(past: JobPast) -> str:
    """The kind of work that a job did for most of its GPU hours."""
    return max(past.kinds, key=lambda kind: past.kinds[kind], default="unknown")


def totals(past: Past) -> Amounts:
    """GPU hours of a period by state."""
    return added(states for own in past.clusters.values() for states in own.values())


def added(amounts: Iterable[Mapping[str, float]]) -> Amounts:
    """Amounts added up by name."""
    total: Amounts = defaultdict(float)
    for one in amounts:
        for name, hours in one.items():
            total[name] += hours
    return dict(total)


class PeriodView:
    """A period and the one of the same length before, with a price and what to list hours by."""

    def __init__(self, past: Past, before: Past, price: float | None, by: str) -> None:
        self.past = past
        self.before = before
        self.price = price
        self.by = by
        self.window = f"{past.period.hours}h"
        self.total = totals(past)
        self.hours = {
            at: added(own[at] for own in past.clusters.values() if at in own)
            for at in sorted({at for own in past.clusters.values() for at in own})
        }
        """GPU hours by state of each hour, over all clusters."""

        self.several_clusters = len(past.clusters) > 1

    def useful_change(self) -> float | None:
        before = totals(self.before)
        now, then = (ratio(useful(one), held(one)) for one in (self.total, before))
        return now - then if now is not None and then is not None else None

    def length(self) -> str:
        hours = self.past.period.hours
        whole = hours % 24 == 0 and hours > 24
        return counted(hours // 24, "day") if whole else counted(hours, "hour")

    def over(self, query: history.Query) -> str:
        """An expression over the whole period, to be asked at the report's moment."""
        late = history.LATE - query.late
        expression = query.over(self.window)
        return expression.replace("])", f"] offset {late}s)") if late else expression

    def cost(self, hours: float) -> tuple[Value, ...]:
        return (hours * self.price,) if self.price is not None else ()

    def cost_column(self, title: str = "Cost") -> tuple[TableColumn, ...]:
        return (TableColumn("cost", title, "price"),) if self.price is not None else ()

    def ranked_jobs(self) -> list[tuple[JobKey, JobPast]]:
        jobs = [(job, past) for job, past in self.past.jobs.items() if lost(past.states) > 0]
        return sorted(jobs, key=lambda item: (-lost(item[1].states), item[0]))

    def job_columns(self) -> tuple[TableColumn, ...]:
        cluster = (TableColumn("cluster", "Cluster"),) if self.several_clusters else ()
        return (*cluster, TableColumn("job", "Job"), TableColumn("owner", "Owner"))

    def job_cells(self, job: JobKey) -> tuple[Value, ...]:
        cluster = (shown(job.cluster),) if self.several_clusters else ()
        return (*cluster, shown(job.workload), owner(job))

    def week(self, at: int) -> int:
        """The end of the week of the period to which the end of a day belongs."""
        return self.past.period.end - (self.past.period.end - at) // WEEK * WEEK

    def gpus(self, node: NodeKey) -> float | None:
        """GPUs of a node while it was seen; None for one that was not."""
        seen = self.past.nodes.get(node)
        return ratio(sum(seen.states.values()), seen.hours) if seen else None

    def node_name(self, node: NodeKey) -> str:
        cluster = f" ({shown(node.cluster)})" if self.several_clusters else ""
        return f"{shown(node.instance)}{cluster}"

    def expected_hours(self) -> int:
        return self.past.period.hours * len(self.past.clusters)

    def missing_hours(self) -> int:
        return self.expected_hours() - sum(len(own) for own in self.past.clusters.values())

    def seen_at_most(self, node: NodeKey) -> int:
        """The hours for which a node's cluster has data."""
        return len(self.past.clusters.get(node.cluster, {}))

    def days(self) -> range:
        """The ends of the period's days; the first may be shorter than the others."""
        period = self.past.period
        return range(self.past.day(period.start + 1), period.end + 1, DAY)

    def begin(self, end: int) -> str:
        """When the day began that ends then; the first begins with the period."""
        return clock(max(end - DAY, self.past.period.start))
