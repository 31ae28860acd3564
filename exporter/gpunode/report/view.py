"""A period as the sections look at it, and what several of them compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpunode.gpu.ledger import STATES
from gpunode.report import history, sacct
from gpunode.report.billing import Billing
from gpunode.report.document import TableColumn, Value
from gpunode.report.history import (
    DAY,
    NOT_USED,
    USEFUL,
    Amounts,
    JobHours,
    JobKey,
    NodeKey,
    PeriodHours,
)
from gpunode.report.sacct import SlurmJob
from gpunode.report.words import amount, clock, hourly, number
from gpunode.text import printable

MAX_NAME = 80
WEEK = 7 * DAY
COMPARABLE = 0.5
"""Share of the hours of the period before of which there must be data to compare with it."""

TOP = 10
MAX_ROWS = 50

LOSSES = tuple(state for state in STATES if state not in (*USEFUL, "free"))


def held(states: Mapping[str, float]) -> float:
    """GPU hours that somebody held."""
    return sum(hours for state, hours in states.items() if state != "free")


def used(states: Mapping[str, float]) -> float:
    """GPU hours in which a job was running."""
    return sum(hours for state, hours in states.items() if state not in NOT_USED)


def useful(states: Mapping[str, float]) -> float:
    """GPU hours in which kernels ran."""
    return sum(states.get(state, 0.0) for state in USEFUL)


def lost(states: Mapping[str, float]) -> float:
    """GPU hours that were held without use."""
    return held(states) - useful(states)


def ratio(part: float, whole: float) -> float | None:
    """A share, where there is something to share."""
    return part / whole if whole > 0 else None


def clean(text: str) -> str:
    """A printable form of a name that a user chose."""
    return printable(text, MAX_NAME)


def owner(job: JobKey) -> str:
    """Who a job belongs to: its namespace, or else its user."""
    return clean(job.owner_namespace or job.user or "unknown")


def kind(past: JobHours) -> str:
    """The kind of work that a job did for most of its GPU hours."""
    return max(past.kinds, key=lambda kind: past.kinds[kind], default="unknown")


def totals(past: PeriodHours) -> Amounts:
    """GPU hours of a period by state."""
    return added(states for own in past.clusters.values() for states in own.values())


def added(amounts: Iterable[Mapping[str, float]]) -> Amounts:
    """Amounts added up by name."""
    total: Amounts = defaultdict(float)
    for one in amounts:
        for name, hours in one.items():
            total[name] += hours
    return dict(total)


def energy_by_day(past: PeriodHours) -> dict[int, tuple[float, float]]:
    """Kilowatt hours, and the useful GPU hours of the clusters that drew them, by the day's end."""
    hours: dict[tuple[str, int], float] = defaultdict(float)
    for cluster, own in past.clusters.items():
        for at, states in own.items():
            hours[cluster, past.day(at)] += useful(states)
    found: dict[int, tuple[float, float]] = {}
    for (cluster, day), kilowatt_hours in past.energy.items():
        if (cluster, day) in hours:
            drawn, used = found.get(day, (0.0, 0.0))
            found[day] = drawn + kilowatt_hours, used + hours[cluster, day]
    return found


class PeriodView:
    """A period and the one of the same length before, with prices and what to list hours by."""

    def __init__(
        self,
        past: PeriodHours,
        before: PeriodHours,
        billing: Billing,
        by: str,
        slurm: list[SlurmJob] | None = None,
    ) -> None:
        self.past = past
        self.before = before
        self.billing = billing
        self.by = by
        self.slurm = slurm
        self.accounts = sacct.accounts(slurm or [], {*past.clusters, *before.clusters})
        self.window = f"{past.period.hours}h"
        self.total = totals(past)
        self.price = self._mean_price()
        """Of a GPU hour, over all models and states; None where no price is given."""

        self.hours = {
            at: added(own[at] for own in past.clusters.values() if at in own)
            for at in sorted({at for own in past.clusters.values() for at in own})
        }
        """GPU hours by state of each hour, over all clusters."""

        self.several_clusters = len(past.clusters) > 1

    def _mean_price(self) -> float | None:
        known = [
            (sum(states.values()), price)
            for model, states in self.past.models.items()
            if (price := self.billing.price_of(model)) is not None
        ]
        if not self.billing.prices or not known:
            return self.billing.price
        return ratio(sum(hours * price for hours, price in known), sum(hours for hours, _ in known))

    def several_prices(self) -> bool:
        """Whether a GPU hour costs more on one model than on another."""
        return len({self.billing.price_of(model) for model in self.past.models} - {None}) > 1

    def unpriced(self) -> list[str]:
        """Models of GPUs for which the file has no price."""
        if self.price is None:
            return []
        return sorted(
            clean(model) for model in self.past.models if self.billing.price_of(model) is None
        )

    def price_of(self, past: JobHours) -> float | None:
        """The price of a GPU hour of a job, in the mean over the models that it held."""
        known = [
            (hours, price)
            for model, hours in past.models.items()
            if (price := self.billing.price_of(model)) is not None
        ]
        if not self.billing.prices or not known:
            return self.price
        return ratio(sum(hours * price for hours, price in known), sum(hours for hours, _ in known))

    def price_in(self, state: str) -> float | None:
        """The price of a GPU hour in a state, in the mean over the models that were in it."""
        known = [
            (states.get(state, 0.0), price)
            for model, states in self.past.models.items()
            if (price := self.billing.price_of(model)) is not None
        ]
        hours = sum(of for of, _ in known)
        if not self.billing.prices or hours <= 0:
            return self.price
        return sum(of * price for of, price in known) / hours

    def worth(self, states: Iterable[str]) -> float:
        """The price of all GPU hours in some states; 0 without prices."""
        return sum(self.total.get(state, 0.0) * (self.price_in(state) or 0.0) for state in states)

    def money(self, amount: float) -> str:
        """An amount in the currency of the site."""
        return f"{self.billing.currency} {number(amount)}".strip()

    def hourly(self, price: float) -> str:
        """The price of a GPU hour in the currency of the site."""
        return f"{self.billing.currency} {hourly(price)}".strip()

    def team(self, job: JobKey) -> str:
        """The team that pays for a job: its owner where no teams are given; empty for none."""
        if not self.billing.teams:
            return owner(job)
        return self.billing.team(job, self.accounts.get((job.cluster, job.workload), ""))

    def hours_before(self) -> int:
        """The hours of the period before of which any cluster has data."""
        return len({at for own in self.before.clusters.values() for at in own})

    def comparable(self) -> bool:
        """Whether so much is known of the period before that its shares stand for it."""
        return self.hours_before() >= COMPARABLE * self.before.period.hours

    def useful_change(self) -> float | None:
        """How much the useful share of what was held gained, if there is enough to compare."""
        if not self.comparable():
            return None
        before = totals(self.before)
        now, then = (ratio(useful(one), held(one)) for one in (self.total, before))
        return now - then if now is not None and then is not None else None

    def length(self) -> str:
        hours = self.past.period.hours
        whole = hours % 24 == 0 and hours > 24
        return amount(hours // 24, "day") if whole else amount(hours, "hour")

    def over(self, query: history.Query) -> str:
        """An expression over the whole period, to be asked at the report's moment."""
        late = history.RECORDING_DELAY - query.late
        expression = query.over(self.window)
        return expression.replace("])", f"] offset {late}s)") if late else expression

    def cost(self, hours: float, price: float | None = None) -> tuple[Value, ...]:
        """A cell with the price of GPU hours, at their own price or else the mean one."""
        if self.price is None:
            return ()
        return (hours * (self.price if price is None else price),)

    def cost_column(self, title: str = "Cost", name: str = "cost") -> tuple[TableColumn, ...]:
        return (TableColumn(name, self.priced(title), "price"),) if self.price is not None else ()

    def priced(self, title: str) -> str:
        """The title of a column of amounts."""
        return f"{title}, {self.billing.currency}" if self.billing.currency else title

    def ranked_jobs(self) -> list[tuple[JobKey, JobHours]]:
        jobs = [(job, past) for job, past in self.past.jobs.items() if lost(past.states) > 0]
        return sorted(jobs, key=lambda item: (-lost(item[1].states), item[0]))

    def job_columns(self) -> tuple[TableColumn, ...]:
        cluster = (TableColumn("cluster", "Cluster"),) if self.several_clusters else ()
        return (TableColumn("job", "Job"), *cluster, TableColumn("owner", "Owner"))

    def job_cells(self, job: JobKey) -> tuple[Value, ...]:
        cluster = (clean(job.cluster),) if self.several_clusters else ()
        return (clean(job.workload), *cluster, owner(job))

    def week(self, at: int) -> int:
        """The end of the week of the period to which the end of a day belongs."""
        return self.past.period.end - (self.past.period.end - at) // WEEK * WEEK

    def gpus(self, node: NodeKey) -> float | None:
        """GPUs of a node while it was seen; None for one that was not."""
        seen = self.past.nodes.get(node)
        return ratio(sum(seen.states.values()), seen.hours) if seen else None

    def node_name(self, node: NodeKey) -> str:
        cluster = f" ({clean(node.cluster)})" if self.several_clusters else ""
        return f"{clean(node.instance)}{cluster}"

    def expected_hours(self) -> int:
        """Hours of the period, each as often as there are clusters."""
        return self.past.period.hours * len(self.past.clusters)

    def hours_of(self, count: float) -> str:
        """So many hours of single clusters, and what they are."""
        return amount(count, "cluster hour" if self.several_clusters else "hour")

    def whole_hours(self) -> dict[int, Amounts]:
        """The hours of which every cluster has data that was there, by their end.

        A cluster is there from its first hour on, or from the beginning if the period before has
        it, and until its last hour, or until the end if that is less than a week later.
        """
        there = []
        for cluster, own in self.past.clusters.items():
            first, last = min(own), max(own)
            if cluster in self.before.clusters:
                first = self.past.period.start
            if self.past.period.end - last < WEEK:
                last = self.past.period.end
            there.append((first, last, own))
        return {
            at: states
            for at, states in self.hours.items()
            if all(at in own for first, last, own in there if first <= at <= last)
        }

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
