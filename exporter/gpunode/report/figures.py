"""The figures of the report, computed from a period's past, each with the PromQL it comes from."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpunode.gpu.ledger import STATES
from gpunode.report import history, words
from gpunode.report.history import DAY, HOUR, NOT_USED, USEFUL, Amounts, Job, JobPast, Node, Past
from gpunode.report.trend import Trend, trend
from gpunode.report.words import OF_STATES, REMEDIES, Unit, clock, date, number, written
from gpunode.text import printable
from gpunode.verdict.causes import CAUSES

Value = float | str | None

TOP = 10
MOST_ROWS = 50
LONGEST_NAME = 80

WEEK = 7 * DAY
LEAST_HELD = 24.0
"""GPU hours from which on a job is worth naming."""

HALF = 0.5
SLOWER = 1.1
"""From how much longer a step takes than before it is a regression."""

LATE_SHARE = 0.05
"""From which share of their time on a node makes its peers wait for it, it is named."""

LEAST_PEERS = 3
LEAST_HOURS_TOGETHER = 12.0
FULL = 0.995
"""Share of the GPUs from which on they are all held."""

NEARLY_ALL = 20
"""Hours of a day from which on its busiest one is known."""

LOST = tuple(state for state in STATES if state not in (*USEFUL, "free"))


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``promql`` gives it, asked at the report's ``moment``."""

    name: str
    title: str
    value: float | None
    unit: Unit
    promql: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """What a column of a table holds."""

    name: str
    title: str
    unit: Unit = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures, and the PromQL behind them. A ``hidden`` one is behind a chart."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    promql: tuple[str, ...]
    note: str = ""
    nothing: str = "None."
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A question that the report answers: in words, in figures and in tables."""

    name: str
    title: str
    says: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the report says, whatever its format."""

    title: str
    start: str
    end: str
    moment: int
    """When to ask the PromQL of a figure, in Unix seconds."""

    source: str
    price: float | None
    finding: str
    sections: tuple[Section, ...]
    warnings: tuple[str, ...]


def held(states: Mapping[str, float]) -> float:
    return sum(hours for state, hours in states.items() if state != "free")


def used(states: Mapping[str, float]) -> float:
    return sum(hours for state, hours in states.items() if state not in NOT_USED)


def useful(states: Mapping[str, float]) -> float:
    return sum(states.get(state, 0.0) for state in USEFUL)


def lost(states: Mapping[str, float]) -> float:
    return held(states) - useful(states)


def ratio(part: float, whole: float) -> float | None:
    """A share, where there is something to share."""
    return part / whole if whole > 0 else None


def _name(text: str) -> str:
    return printable(text, LONGEST_NAME)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a job lost most to: its hours, what the verdicts say, and what would come back."""

    state: str
    cause: str
    evidence: str
    remedy: str
    given_back: float


def loss_of(states: Mapping[str, float], causes: Mapping[str, float]) -> Loss:
    """The cause that would give back most hours of GPUs with this ledger and these verdicts.

    The hours of the states that a cause takes are divided among the causes that take them, as the
    verdicts named them. For what no verdict explains, no cause is made up.
    """
    back: Amounts = defaultdict(float)
    for state in LOST:
        named = {
            cause: hours
            for cause, hours in causes.items()
            if cause in REMEDIES and state in REMEDIES[cause].states and hours > 0
        }
        for cause, hours in named.items():
            own = states.get(state, 0.0)
            back[cause] += own * hours / max(own, sum(named.values()))
    worst = max(LOST, key=lambda state: states.get(state, 0.0))
    cause = max(back, key=lambda name: back[name], default="")
    share = written(ratio(states.get(worst, 0.0), held(states)), "share")
    evidence = f"{worst} for {share} of the time held ({words.STATES[worst]})"
    if not cause or back[cause] < states.get(worst, 0.0) / 2:
        return Loss(worst, "", evidence, OF_STATES[worst], states.get(worst, 0.0))
    evidence += f"; verdict {cause} for {number(causes[cause])} GPU hours"
    return Loss(worst, cause, evidence, REMEDIES[cause].do, back[cause])


class Figures:
    """Computes the sections; ``before`` is the period of the same length before."""

    def __init__(self, past: Past, before: Past, price: float | None, by: str) -> None:
        self.past = past
        self.before = before
        self.price = price
        self.by = by
        self.window = f"{past.period.hours}h"
        self.total = _totals(past)
        self.hours = {
            at: _sum(own[at] for own in past.clusters.values() if at in own)
            for at in sorted({at for own in past.clusters.values() for at in own})
        }
        """GPU hours by state of each hour, over all clusters."""

        self.several_clusters = len(past.clusters) > 1

    def report(self, source: str, warnings: Iterable[str]) -> Report:
        period = self.past.period
        sections = (
            self._summary(),
            self._causes(),
            self._losers(),
            self._groups(),
            self._idle(),
            self._training(),
            self._energy(),
            self._slow(),
            self._failures(),
            self._demand(),
            self._change(),
            self._coverage(),
        )
        return Report(
            title=f"GPU capacity, {date(period.start)} to {date(period.end)}",
            start=clock(period.start),
            end=clock(period.end),
            moment=period.end + history.LATE,
            source=source,
            price=self.price,
            finding=self._finding(),
            sections=sections,
            warnings=tuple(sorted(warnings)),
        )

    # What is said first

    def _finding(self) -> str:
        total, period = self.total, self.past.period
        all_hours = sum(total.values())
        known = len(self.hours)
        says = [
            f"Between {clock(period.start)} and {clock(period.end)} UTC there were "
            f"{number(all_hours)} GPU hours, on {number(all_hours / known)} GPUs on average. "
            f"Jobs held {written(ratio(held(total), all_hours), 'share')} of them, and "
            f"{written(ratio(useful(total), all_hours), 'share')} did useful work."
        ]
        if lost(total) > 0:
            worst = max(LOST, key=lambda state: total.get(state, 0.0))
            price = f", worth {number(lost(total) * self.price)}" if self.price else ""
            says.append(
                f"Jobs held {number(lost(total))} GPU hours without use{price}; most of it went "
                f"to {words.STATES[worst]} "
                f"({written(ratio(total[worst], lost(total)), 'share')})."
            )
        ranked = self._ranked_jobs()
        if ranked:
            job, past = ranked[0]
            loss = loss_of(past.states, past.causes)
            says.append(
                f"{_name(job.workload)} lost most, {number(lost(past.states))} GPU hours. "
                f"{loss.remedy} That would give back up to {number(loss.given_back)}."
            )
        if (change := self._useful_change()) is not None:
            word = "rose" if change >= 0 else "fell"
            says.append(
                f"Against the {self._length()} before, the useful share of what was held {word} "
                f"by {abs(change) * 100:.1f} points."
            )
        missing = self._missing_hours()
        if missing:
            says.append(
                f"For {number(missing)} of {number(self._expected_hours())} hours there are no "
                "data; they are left out, not filled."
            )
        return " ".join(says)

    def _useful_change(self) -> float | None:
        before = _totals(self.before)
        now, then = (ratio(useful(one), held(one)) for one in (self.total, before))
        return now - then if now is not None and then is not None else None

    def _length(self) -> str:
        hours = self.past.period.hours
        return f"{hours // 24} days" if hours % 24 == 0 and hours > 24 else f"{hours} hours"

    def _over(self, query: history.Query) -> str:
        """An expression over the whole period, to be asked at the report's moment."""
        late = history.LATE - query.late
        expression = query.over(self.window)
        return expression.replace("])", f"] offset {late}s)") if late else expression

    def _cost(self, hours: float) -> tuple[Value, ...]:
        return (hours * self.price,) if self.price is not None else ()

    def _cost_column(self, title: str = "Cost") -> tuple[Column, ...]:
        return (Column("cost", title, "price"),) if self.price is not None else ()

    # The sections

    def _summary(self) -> Section:
        total = self.total
        whole = sum(total.values())
        ledger = f"cluster:{history.LEDGER}"

        def asked(states: str) -> str:
            return f"sum (sum_over_time({ledger}{states}[{self.window}]))"

        everything = asked("")
        is_held, is_used = '{state!="free"}', '{state!~"free|idle|unknown"}'
        is_useful, is_lost = '{state=~"compute|memory"}', '{state!~"compute|memory|free"}'
        figures = [
            Figure("gpu_hours", "GPU hours", whole, "GPU hours", everything, "that there were"),
            *(
                Figure(
                    name,
                    title,
                    ratio(of(total), whole),
                    "share",
                    f"{asked(states)} / {everything}",
                    note,
                )
                for name, title, of, states, note in (
                    ("allocated", "Allocated", held, is_held, "held by jobs"),
                    ("used", "Used", used, is_used, "a job was running"),
                    ("useful", "Useful", useful, is_useful, "arithmetic and memory traffic"),
                )
            ),
            Figure(
                "lost", "Held without use", lost(total), "GPU hours", asked(is_lost), "GPU hours"
            ),
        ]
        if self.price is not None:
            figures.append(
                Figure(
                    "lost_cost",
                    "Price of it",
                    lost(total) * self.price,
                    "price",
                    f"{asked(is_lost)} * {self.price:g}",
                    f"at {self.price:g} for a GPU hour",
                )
            )
        rows = tuple(
            (state, words.STATES[state], hours, ratio(hours, whole), *self._cost(hours))
            for state in STATES
            if (hours := total.get(state, 0.0)) or state in total
        )
        days: dict[int, list[Amounts]] = defaultdict(list)
        for at, states in self.hours.items():
            days[self.past.day(at)].append(states)
        by_day = tuple(
            (
                clock(end - DAY),
                float(len(of)),
                *(sum(one.get(s, 0.0) for one in of) for s in STATES),
            )
            for end, of in sorted(days.items())
        )
        return Section(
            "summary",
            "Where the GPU hours went",
            "Every GPU second is in one state of the ledger. Useful is arithmetic and memory "
            "traffic; all other time of a GPU that a job holds is lost.",
            tuple(figures),
            (
                Table(
                    "states",
                    "GPU hours by state",
                    (
                        Column("state", "State"),
                        Column("meaning", "What the GPU did"),
                        Column("gpu_hours", "GPU hours", "GPU hours"),
                        Column("share", "Share", "share"),
                        *self._cost_column(),
                    ),
                    rows,
                    (f"sum by (state) (sum_over_time({ledger}[{self.window}]))",),
                ),
                Table(
                    "days",
                    "GPU hours by day",
                    (
                        Column("day", "Begins"),
                        Column("hours", "Hours with data", "count"),
                        *(Column(state, state, "GPU hours") for state in STATES),
                    ),
                    by_day,
                    (history.STATES.over("1d"),),
                    hidden=True,
                ),
            ),
        )

    def _causes(self) -> Section:
        causes = {cause: hours for cause, hours in self.past.causes.items() if hours > 0}
        rows = tuple(
            (cause, hours, *self._cost(hours), CAUSES.get(cause, ""), _remedy(cause))
            for cause, hours in sorted(causes.items(), key=lambda item: -item[1])
        )
        return Section(
            "causes",
            "What held GPUs up",
            "The verdict names, for every GPU at any time, the one resource that costs it most. A "
            "GPU that is held up is not wholly lost, so these hours are more than those above."
            if rows
            else "No verdict named a cause.",
            (),
            (
                Table(
                    "causes",
                    "GPU hours by cause",
                    (
                        Column("cause", "Cause"),
                        Column("gpu_hours", "GPU hours", "GPU hours"),
                        *self._cost_column(),
                        Column("meaning", "What it means"),
                        Column("remedy", "What helps"),
                    ),
                    rows,
                    (self._over(history.CAUSES),),
                ),
            ),
        )

    def _ranked_jobs(self) -> list[tuple[Job, JobPast]]:
        jobs = [(job, past) for job, past in self.past.jobs.items() if lost(past.states) > 0]
        return sorted(jobs, key=lambda item: (-lost(item[1].states), item[0]))

    def _job_columns(self) -> tuple[Column, ...]:
        cluster = (Column("cluster", "Cluster"),) if self.several_clusters else ()
        return (*cluster, Column("job", "Job"), Column("owner", "Owner"))

    def _job_cells(self, job: Job) -> tuple[Value, ...]:
        cluster = (_name(job.cluster),) if self.several_clusters else ()
        return (*cluster, _name(job.workload), _owner(job))

    def _losers(self) -> Section:
        owners: dict[str, JobPast] = defaultdict(JobPast)
        for job, past in self.past.jobs.items():
            _merge(owners[_owner(job)], past)
        by_owner = sorted(owners.items(), key=lambda item: -lost(item[1].states))
        columns = (
            Column("held", "Held", "GPU hours"),
            Column("lost", "Lost", "GPU hours"),
            *self._cost_column("Cost of it"),
            Column("cause", "Cause"),
            Column("evidence", "Evidence"),
            Column("remedy", "What helps"),
            Column("given_back", "Gives back, at most", "GPU hours"),
        )

        def cells(past: JobPast) -> tuple[Value, ...]:
            loss = loss_of(past.states, past.causes)
            lost_hours = lost(past.states)
            return (
                held(past.states),
                lost_hours,
                *self._cost(lost_hours),
                loss.cause or loss.state,
                loss.evidence,
                loss.remedy,
                loss.given_back,
            )

        asked = (self._over(history.JOBS), self._over(history.JOB_CAUSES))
        jobs = tuple(
            (*self._job_cells(job), *cells(past)) for job, past in self._ranked_jobs()[:TOP]
        )
        return Section(
            "losers",
            "Who lost most",
            "Hours that a job held without use. What a remedy gives back at most are the hours of "
            "the states that the cause takes, divided among the causes that were named."
            if jobs
            else "No job held GPUs.",
            (),
            (
                Table("jobs", "Jobs that lost most", (*self._job_columns(), *columns), jobs, asked),
                Table(
                    "owners",
                    "Owners that lost most",
                    (Column("owner", "Owner"), *columns),
                    tuple(
                        (name, *cells(past))
                        for name, past in by_owner[:TOP]
                        if lost(past.states) > 0
                    ),
                    asked,
                ),
            ),
        )

    def _groups(self) -> Section:
        groups: dict[str, Amounts] = {}
        asked = self._over(history.JOBS)
        if self.by == "node":
            asked = self._over(history.NODES)
            for node, seen in self.past.nodes.items():
                _put(groups, self._node_name(node), seen.states)
        elif self.by == "model":
            asked = self._over(history.MODELS)
            for model, states in self.past.models.items():
                _put(groups, _name(model), states)
        else:
            of: dict[str, Callable[[Job, JobPast], str]] = {
                "namespace": lambda job, _: job.owner_namespace or "no namespace",
                "job": lambda job, _: f"{job.workload} ({_owner(job)})",
                "user": lambda job, _: job.user or "no user",
                "kind": lambda _, past: words.KINDS.get(_kind(past), _kind(past)),
            }
            for job, past in self.past.jobs.items():
                _put(groups, _name(of[self.by](job, past)), past.states)
        ranked = sorted(groups.items(), key=lambda item: -held(item[1]))
        shown = ranked[:MOST_ROWS]
        if rest := ranked[MOST_ROWS:]:
            shown.append((f"{len(rest)} others", _sum(states for _, states in rest)))
        rows = tuple(
            (
                name,
                held(states),
                ratio(used(states), held(states)),
                ratio(useful(states), held(states)),
                lost(states),
                *self._cost(lost(states)),
            )
            for name, states in shown
        )
        note = {
            "kind": "A job counts as the kind of work that it did for most of its hours.",
            "node": "",
            "model": "A slice of MIG counts as a GPU.",
        }.get(self.by, "A GPU with several owners is divided among them.")
        return Section(
            "groups",
            f"Who held GPUs, by {self.by}",
            f"{note} Used and useful are shares of what was held.".strip(),
            (),
            (
                Table(
                    "groups",
                    f"GPU hours by {self.by}",
                    (
                        Column("name", self.by.capitalize()),
                        Column("held", "Held", "GPU hours"),
                        Column("used", "Used", "share"),
                        Column("useful", "Useful", "share"),
                        Column("lost", "Lost", "GPU hours"),
                        *self._cost_column("Cost of it"),
                    ),
                    rows,
                    (asked,),
                ),
            ),
        )

    def _idle(self) -> Section:
        jobs = [(job, past) for job, past in self.past.jobs.items() if held(past.states) > 0]
        idle = sorted(jobs, key=lambda item: -item[1].states.get("idle", 0.0))[:TOP]
        notebooks = [item for item in jobs if _kind(item[1]) == "interactive"]
        notebooks.sort(key=lambda item: -lost(item[1].states))
        half = [
            item
            for item in jobs
            if held(item[1].states) >= LEAST_HELD
            and 0 < used(item[1].states) / held(item[1].states) < HALF
        ]
        half.sort(key=lambda item: used(item[1].states) - held(item[1].states))
        columns = (
            *self._job_columns(),
            Column("held", "Held", "GPU hours"),
            Column("used", "Used", "share"),
            Column("idle", "Idle", "GPU hours"),
            *self._cost_column("Cost of idling"),
        )

        def row(job: Job, past: JobPast) -> tuple[Value, ...]:
            idle_hours = past.states.get("idle", 0.0)
            share = ratio(used(past.states), held(past.states))
            return (
                *self._job_cells(job),
                held(past.states),
                share,
                idle_hours,
                *self._cost(idle_hours),
            )

        asked = (self._over(history.JOBS),)
        kinds = self.past.kinds
        distribution = sorted(
            (float(share), gpus) for share, gpus in self.past.by_useful_share.items() if share
        )
        total_idle = self.total.get("idle", 0.0)
        return Section(
            "idle",
            "Held but idle",
            f"Jobs held {number(total_idle)} GPU hours in which nothing had run for ten seconds or "
            f"more; notebooks held {number(kinds.get('interactive', 0.0))} GPU hours in all.",
            (
                Figure(
                    "idle",
                    "Idle",
                    total_idle,
                    "GPU hours",
                    f'sum (sum_over_time(cluster:{history.LEDGER}{{state="idle"}}[{self.window}]))',
                    "held, nothing running",
                ),
                *(
                    Figure(
                        f"held_{kind}",
                        f"Held by {words.KINDS.get(kind, kind)}",
                        hours,
                        "GPU hours",
                        self._over(history.KINDS),
                        "GPU hours",
                    )
                    for kind, hours in sorted(kinds.items())
                ),
            ),
            (
                Table(
                    "useful_shares",
                    "GPUs by the share of the last 30 days that was useful",
                    (Column("share", "Useful", "share"), Column("gpus", "GPUs", "GPUs")),
                    tuple(distribution),
                    (history.BY_USEFUL_SHARE,),
                    note="Of the 30 days up to the end, whatever the period. Time in which a GPU "
                    "was not there counts as none.",
                    hidden=True,
                ),
                Table(
                    "idle",
                    "Jobs that held idle GPUs",
                    columns,
                    tuple(row(*item) for item in idle if item[1].states.get("idle", 0.0) >= 1),
                    asked,
                ),
                Table(
                    "notebooks",
                    "Notebooks",
                    columns,
                    tuple(row(*item) for item in notebooks[:TOP]),
                    (*asked, self._over(history.JOB_KINDS)),
                ),
                Table(
                    "half_used",
                    "Jobs that used less than half of what they held",
                    columns,
                    tuple(row(*item) for item in half[:TOP]),
                    asked,
                    note=f"Of jobs with {LEAST_HELD:g} GPU hours or more.",
                ),
            ),
        )

    def _training(self) -> Section:
        weeks: dict[int, Amounts] = defaultdict(lambda: defaultdict(float))
        mfu_hours = mfu_weighted = 0.0
        for past in self.past.jobs.values():
            if _kind(past) == "training":
                for at, hours in past.held.items():
                    weeks[self._week(at)]["held"] += hours
                for at, hours in past.useful.items():
                    weeks[self._week(at)]["useful"] += hours
            for at, phases in past.phases.items():
                week = weeks[self._week(at)]
                week["step"] += phases.get("step", 0.0)
                week["all"] += sum(phases.values())
                if at in past.mfu:
                    week["mfu_hours"] += sum(phases.values())
                    week["mfu"] += past.mfu[at] * sum(phases.values())
        for week in weeks.values():
            mfu_hours += week["mfu_hours"]
            mfu_weighted += week["mfu"]
        total = _sum(weeks.values())
        rows = tuple(
            (
                clock(max(end - WEEK, self.past.period.start)),
                ratio(week["useful"], week["held"]),
                ratio(week["step"], week["all"]),
                ratio(week["mfu"], week["mfu_hours"]),
                week["held"],
            )
            for end, week in sorted(weeks.items())
        )
        slower = sorted(self._regressions(), key=lambda found: -found[3])
        return Section(
            "training",
            "Training",
            "Useful is the share of the time that training jobs held GPUs. Goodput is the share of "
            "their own time that they gave to steps, and MFU what they reached of the GPUs' peak, "
            "of jobs that report it."
            if rows
            else "No job trained, as far as is recorded.",
            (
                Figure(
                    "training_useful",
                    "Useful in training",
                    ratio(total.get("useful", 0.0), total.get("held", 0.0)),
                    "share",
                    self._over(history.JOBS),
                    "of what training held",
                ),
                Figure(
                    "goodput",
                    "Goodput",
                    ratio(total.get("step", 0.0), total.get("all", 0.0)),
                    "share",
                    self._over(history.PHASES),
                    "of jobs that report steps",
                ),
                Figure(
                    "mfu",
                    "MFU",
                    ratio(mfu_weighted, mfu_hours),
                    "share",
                    history.MFU.over("1d"),
                    "each job by its GPU hours",
                ),
            ),
            (
                Table(
                    "weeks",
                    "Training by week",
                    (
                        Column("week", "Begins"),
                        Column("useful", "Useful", "share"),
                        Column("goodput", "Goodput", "share"),
                        Column("mfu", "MFU", "share"),
                        Column("held", "Held", "GPU hours"),
                    ),
                    rows,
                    (
                        history.JOBS.over("1d"),
                        history.PHASES.over("1d"),
                        history.MFU.over("1d"),
                    ),
                ),
                Table(
                    "step_regressions",
                    "Jobs whose steps take longer than before",
                    (
                        *self._job_columns(),
                        Column("before", "Step in its first days", "seconds"),
                        Column("after", "Step in its last days", "seconds"),
                        Column("ratio", "Slower", "times"),
                        Column("since", "Since"),
                    ),
                    tuple((*self._job_cells(found[0]), *found[1:]) for found in slower[:TOP]),
                    (history.STEPS.over("1d"),),
                    note="The median of the last third of a job's days against that of the first "
                    f"third, of jobs with six days or more, from {SLOWER:g} times on. Runs of one name "
                    "count as one job.",
                ),
            ),
        )

    def _regressions(self) -> Iterator[tuple[Job, float, float, float, str]]:
        """Jobs with their step times before and after, the ratio and the first slow day."""
        for job, past in self.past.jobs.items():
            days = sorted(past.steps)
            third = len(days) // 3
            if third < 2:
                continue
            before = statistics.median(past.steps[day] for day in days[:third])
            after = statistics.median(past.steps[day] for day in days[-third:])
            if before > 0 and after / before >= SLOWER:
                middle = (before + after) / 2
                since = next(
                    day
                    for at, day in enumerate(days)
                    if all(past.steps[later] > middle for later in days[at : at + third])
                )
                yield job, before, after, after / before, clock(since - DAY)

    def _energy(self) -> Section:
        weeks: dict[int, Amounts] = defaultdict(lambda: defaultdict(float))
        useful_hours: Amounts = defaultdict(float)
        days: dict[int, float] = defaultdict(float)
        for at, states in self.hours.items():
            days[self.past.day(at)] += useful(states)
        for at, hours in days.items():
            if at in self.past.energy:
                weeks[self._week(at)]["useful"] += hours
                weeks[self._week(at)]["energy"] += self.past.energy[at]
        useful_hours = _sum(weeks.values())
        energy = sum(self.past.energy.values())
        asked = self._over(history.ENERGY)
        return Section(
            "energy",
            "Energy",
            "What the GPUs drew, divided by the GPU hours that were useful."
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
                    f'{{state=~"compute|memory"}}[{self.window}]))',
                    "kWh",
                ),
            ),
            (
                Table(
                    "weeks",
                    "Energy by week",
                    (
                        Column("week", "Begins"),
                        Column("energy", "Energy", "kWh"),
                        Column("per_useful_hour", "kWh for a useful GPU hour", "kWh"),
                    ),
                    tuple(
                        (
                            clock(max(end - WEEK, self.past.period.start)),
                            week["energy"],
                            ratio(week["energy"], week["useful"]),
                        )
                        for end, week in sorted(weeks.items())
                    ),
                    (history.ENERGY.over("1d"),),
                ),
            ),
        )

    def _slow(self) -> Section:
        behind: dict[Node, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        jobs: dict[Node, set[Job]] = defaultdict(set)
        for (job, _), nodes in self.past.blocked.items():
            waits = {node: sums[0] / sums[1] for node, sums in nodes.items() if sums[1] > 0}
            if len(waits) < LEAST_PEERS:
                continue
            for node, own in waits.items():
                peers = statistics.median(wait for other, wait in waits.items() if other != node)
                hours = nodes[node][1]
                gpus = sum(self._gpus(other) or 0.0 for other in waits if other != node)
                sums = behind[node]
                sums[0] += (peers - own) * hours
                sums[1] += hours
                sums[2] += max(0.0, peers - own) * hours * gpus
                jobs[node].add(job)
        found = [
            (node, gap / hours, hours, waited)
            for node, (gap, hours, waited) in behind.items()
            if hours >= LEAST_HOURS_TOGETHER and gap / hours >= LATE_SHARE
        ]
        found.sort(key=lambda one: -one[3])
        return Section(
            "slow_nodes",
            "Nodes slower than their peers",
            "In a collective everyone waits for the slowest. A node that waits less than the "
            "others of the same job, on the same day, is the one they wait for. If that is so in "
            "several jobs, it is the node.",
            (),
            (
                Table(
                    "slow_nodes",
                    "Nodes for which others wait",
                    (
                        Column("node", "Node"),
                        Column("behind", "Waits less than its peers by", "share"),
                        Column("jobs", "In jobs", "count"),
                        Column("hours", "Hours together", "hours"),
                        Column("waited", "Others waited", "GPU hours"),
                    ),
                    tuple(
                        (self._node_name(node), gap, float(len(jobs[node])), hours, waited)
                        for node, gap, hours, waited in found[:TOP]
                    ),
                    (history.BLOCKED.over("1d"), history.BLOCKED_HOURS.over("1d")),
                    note=f"Of jobs on {LEAST_PEERS} nodes or more, from {LATE_SHARE:.0%} on.",
                ),
            ),
        )

    def _failures(self) -> Section:
        classes: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        affected: dict[str, set[Node]] = defaultdict(set)
        worst: dict[Node, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (uuid, node, fault), windows in self.past.faults.items():
            gpus = 1.0 if uuid else (self._gpus(node) or 0.0)
            count = _episodes(windows)
            hours = sum(windows.values()) * gpus
            for sums in (classes[fault], worst[node]):
                sums[0] += count
                sums[1] += hours
            affected[fault].add(node)
        node_hours = sum(seen.hours for seen in self.past.nodes.values())
        failures = sum(count for count, _ in classes.values())
        asked = (self._over(history.NODE_FAULTS), self._over(history.GPU_FAULTS))
        rows = tuple(
            (
                _name(fault),
                count,
                float(len(affected[fault])),
                hours,
                *self._cost(hours),
                ratio(len(self.hours), count),
            )
            for fault, (count, hours) in sorted(classes.items(), key=lambda item: -item[1][1])
        )
        return Section(
            "failures",
            "Failures",
            "Faults that are worth waking somebody. Lost are the hours of the GPU, or of all GPUs "
            "of the node, while the fault was there. One failure may show as several faults."
            if rows
            else "No fault was recorded that is worth waking somebody.",
            (
                Figure("failures", "Faults", failures, "count", "", "that began"),
                Figure(
                    "node_hours_between",
                    "Between two faults of a node",
                    _days(ratio(node_hours, failures)),
                    "days",
                    "",
                    "days on average",
                ),
            ),
            (
                Table(
                    "faults",
                    "GPU hours lost by kind of fault",
                    (
                        Column("fault", "Fault"),
                        Column("count", "Times", "count"),
                        Column("nodes", "Nodes", "count"),
                        Column("lost", "Lost", "GPU hours"),
                        *self._cost_column(),
                        Column("between", "Hours between two, in the fleet", "hours"),
                    ),
                    rows,
                    asked,
                ),
                Table(
                    "nodes",
                    "Nodes that failed most",
                    (
                        Column("node", "Node"),
                        Column("count", "Times", "count"),
                        Column("lost", "Lost", "GPU hours"),
                    ),
                    tuple(
                        (self._node_name(node), count, hours)
                        for node, (count, hours) in sorted(
                            worst.items(), key=lambda item: -item[1][1]
                        )[:TOP]
                    ),
                    asked,
                ),
            ),
        )

    def _demand(self) -> Section:
        by_hour: dict[int, list[Amounts]] = defaultdict(list)
        for at, states in self.hours.items():
            by_hour[_hour_of_week(at - HOUR)].append(states)
        rows = tuple(
            (
                WEEKDAYS[hour // 24],
                float(hour % 24),
                sum(held(one) for one in of) / len(of),
                sum(sum(one.values()) for one in of) / len(of),
                ratio(sum(held(one) for one in of), sum(sum(one.values()) for one in of)),
            )
            for hour, of in sorted(by_hour.items())
        )
        busiest: dict[int, list[tuple[float, float]]] = defaultdict(list)
        full = 0
        for at, states in self.hours.items():
            supply = sum(states.values())
            busiest[self.past.day(at)].append((held(states), supply))
            full += supply > 0 and held(states) / supply >= FULL
        days = {
            end: (max(gpus for gpus, _ in of), max(supply for _, supply in of))
            for end, of in sorted(busiest.items())
            if len(of) >= NEARLY_ALL
        }
        end = self.past.period.end
        line = trend({(at - end) / DAY: gpus for at, (gpus, _) in days.items()})
        lately = [supply for at, (_, supply) in days.items() if end - at < WEEK]
        supply_now = statistics.fmean(lately) if lately else None
        return Section(
            "demand",
            "Demand and supply",
            self._forecast(line, supply_now, full),
            (
                Figure("supply", "GPUs", supply_now, "GPUs", "", "in the last week"),
                Figure(
                    "full_hours", "Hours with every GPU held", float(full), "count", "", "of them"
                ),
                Figure(
                    "demand_gain",
                    "Demand grows",
                    line.gain * 7 if line else None,
                    "GPUs",
                    "",
                    "GPUs a week"
                    + (
                        f" (80 %: {line.gains()[0] * 7:+.0f} to {line.gains()[1] * 7:+.0f})"
                        if line
                        else ""
                    ),
                ),
                Figure(
                    "days_until_full",
                    "Supply runs out in",
                    line.reaches(supply_now)[0] if line and supply_now else None,
                    "days",
                    "",
                    "days, if the trend goes on",
                ),
            ),
            (
                Table(
                    "week",
                    "Demand by hour of the week, UTC",
                    (
                        Column("weekday", "Day"),
                        Column("hour", "Hour", "count"),
                        Column("held", "GPUs held", "GPUs"),
                        Column("supply", "GPUs", "GPUs"),
                        Column("share", "Held", "share"),
                    ),
                    rows,
                    (history.STATES.over("1h"),),
                    hidden=True,
                ),
                Table(
                    "trend",
                    "Busiest hour of each day, and the trend",
                    (
                        Column("day", "Day"),
                        Column("busiest", "GPUs held", "GPUs"),
                        Column("supply", "GPUs", "GPUs"),
                        Column("trend", "Trend", "GPUs"),
                        Column("low", "Trend, low", "GPUs"),
                        Column("high", "Trend, high", "GPUs"),
                    ),
                    tuple(self._trend_rows(days, line, supply_now)),
                    (history.STATES.over("1h"),),
                    note="A straight line by least squares through the busiest hour of each day; "
                    "its 80 % interval from 400 samples of the residuals in blocks of a week. "
                    "Supply is taken to stay as it was in the last week.",
                    hidden=True,
                ),
            ),
        )

    def _trend_rows(
        self, days: Mapping[int, tuple[float, float]], line: Trend | None, supply: float | None
    ) -> Iterator[tuple[Value, ...]]:
        end = self.past.period.end
        for at, (gpus, there) in days.items():
            beside = line.at((at - end) / DAY) if line else (None, None, None)
            yield (clock(at - DAY), gpus, there, *beside)
        if line:
            for day in range(7, max(7, len(days) // 2) + 1, 7):
                yield (clock(end + (day - 1) * DAY), None, supply, *line.at(day))

    def _forecast(self, line: Trend | None, supply: float | None, full: int) -> str:
        says = f"In {number(full)} of {number(len(self.hours))} hours every GPU was held. "
        if line is None or supply is None:
            return says + "There are too few days of data for a trend; it takes two weeks of them."
        likely, early, late = line.reaches(supply)
        low, high = (gain * 7 for gain in line.gains())
        says += (
            f"The busiest hour of a day gains {line.gain * 7:+.0f} GPUs a week "
            f"(80 % interval {low:+.0f} to {high:+.0f}). "
        )
        end = self.past.period.end
        if likely == 0:
            return says + "Demand has reached supply already."
        if early is None:
            return says + "If this goes on, supply does not run out within two years."
        latest = f"{date(end + late * DAY)}" if late is not None else "not within two years"
        middle = date(end + likely * DAY) if likely is not None else "not within two years"
        return says + (
            f"If this goes on, the busiest hour takes every GPU around {middle}; "
            f"with 80 % confidence between {date(end + early * DAY)} and {latest}."
            if likely is not None
            else f"Supply may run out from {date(end + early * DAY)} on, "
            "but more likely not within two years."
        )

    def _change(self) -> Section:
        before = self.before
        then, now = _totals(before), self.total
        rows: list[tuple[Value, ...]] = []

        def compare(
            what: str, new: float | None, old: float | None, *, more_is_better: bool
        ) -> None:
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
        compare("Goodput of training", _goodput(self.past), _goodput(before), more_is_better=True)
        shares = [
            {
                name: (ratio(lost(states), held(states)), held(states))
                for name, states in past.namespaces.items()
                if held(states) >= LEAST_HELD
            }
            for past in (self.past, before)
        ]
        largest = sorted(shares[0].keys() & shares[1].keys(), key=lambda name: -shares[0][name][1])[
            :TOP
        ]
        for name in largest:
            compare(
                f"Lost by {_name(name) or 'no namespace'}, of what it held",
                shares[0][name][0],
                shares[1][name][0],
                more_is_better=False,
            )
        kilowatt_hours = [
            ratio(sum(past.energy.values()), useful(total))
            for past, total in ((self.past, now), (before, then))
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
            f"Compared with the {self._length()} before, of which "
            f"{number(known)} of {number(before.period.hours)} hours have data.{energy}"
            if rows
            else f"There are no data of the {self._length()} before to compare with."
        )
        return Section(
            "change",
            "Better or worse than before",
            says,
            (),
            (
                Table(
                    "change",
                    "Shares, now and before",
                    (
                        Column("what", "What"),
                        Column("now", "Now", "share"),
                        Column("before", "Before", "share"),
                        Column("change", "Change, points", "points"),
                        Column("verdict", "So it is"),
                    ),
                    tuple(rows),
                    (
                        self._over(history.STATES),
                        self._over(history.STATES).replace(
                            f"[{self.window}]", f"[{self.window}] offset {self.window}"
                        ),
                    ),
                ),
            ),
        )

    def _coverage(self) -> Section:
        period = self.past.period
        gaps = tuple(
            (_name(cluster) or "the only one", clock(first - HOUR), clock(last), float(hours))
            for cluster, own in sorted(self.past.clusters.items())
            for first, last, hours in _gaps(own, period)
        )
        joined = [
            (node, seen)
            for node, seen in self.past.nodes.items()
            if seen.hours < self._seen_at_most(node)
        ]
        joined.sort(key=lambda item: item[1].hours)
        rows = tuple(
            (
                self._node_name(node),
                clock(seen.first - DAY),
                clock(seen.last),
                seen.hours,
                self._gpus(node),
            )
            for node, seen in joined[:MOST_ROWS]
        )
        missing = self._missing_hours()
        expected = self._expected_hours()
        return Section(
            "coverage",
            "What is not known",
            f"Of {number(expected)} hours, {number(missing)} have no data. "
            f"{number(len(self.past.nodes))} nodes were seen, {number(len(joined))} of them for "
            "part of the time. What was not seen is not counted anywhere."
            + (
                f" {number(self.total['unknown'])} GPU hours are unknown because sensors were "
                "missing; they count as held and as lost."
                if self.total.get("unknown", 0.0) >= 1
                else ""
            ),
            (
                Figure("hours", "Hours", float(expected), "count", "", "in the period"),
                Figure("hours_missing", "Without data", float(missing), "count", "", "hours"),
                Figure(
                    "nodes",
                    "Nodes",
                    float(len(self.past.nodes)),
                    "count",
                    f"count ({self._over(history.NODE_HOURS)})",
                    "seen at some time",
                ),
            ),
            (
                Table(
                    "gaps",
                    "Hours without data",
                    (
                        Column("cluster", "Cluster"),
                        Column("from", "From"),
                        Column("to", "To"),
                        Column("hours", "Hours", "count"),
                    ),
                    gaps[:MOST_ROWS],
                    (history.STATES.over("1h"),),
                ),
                Table(
                    "nodes",
                    "Nodes that came, went or were not seen",
                    (
                        Column("node", "Node"),
                        Column("first", "First day"),
                        Column("last", "Last day until"),
                        Column("hours", "Hours seen", "count"),
                        Column("gpus", "GPUs", "GPUs"),
                    ),
                    rows,
                    (history.NODE_HOURS.over("1d"),),
                    note=f"The {MOST_ROWS} seen least." if len(joined) > MOST_ROWS else "",
                ),
            ),
        )

    # What several sections need

    def _week(self, at: int) -> int:
        """The end of the week of the period to which the end of a day belongs."""
        return self.past.period.end - (self.past.period.end - at) // WEEK * WEEK

    def _gpus(self, node: Node) -> float | None:
        """GPUs of a node while it was seen; None for one that was not."""
        seen = self.past.nodes.get(node)
        return ratio(sum(seen.states.values()), seen.hours) if seen else None

    def _node_name(self, node: Node) -> str:
        cluster = f" ({_name(node.cluster)})" if self.several_clusters else ""
        return f"{_name(node.instance)}{cluster}"

    def _expected_hours(self) -> int:
        return self.past.period.hours * len(self.past.clusters)

    def _missing_hours(self) -> int:
        return self._expected_hours() - sum(len(own) for own in self.past.clusters.values())

    def _seen_at_most(self, node: Node) -> int:
        """The hours for which a node's cluster has data."""
        return len(self.past.clusters.get(node.cluster, {}))


WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _hour_of_week(at: int) -> int:
    """Hours since Monday, 00:00 UTC; the epoch began on a Thursday."""
    return (at // HOUR + 3 * 24) % (7 * 24)


def _remedy(cause: str) -> str:
    return REMEDIES[cause].do if cause in REMEDIES else ""


def _owner(job: Job) -> str:
    return _name(job.owner_namespace or job.user or "unknown")


def _kind(past: JobPast) -> str:
    """The kind of work that a job did for most of its GPU hours."""
    return max(past.kinds, key=lambda kind: past.kinds[kind], default="unknown")


def _totals(past: Past) -> Amounts:
    return _sum(states for own in past.clusters.values() for states in own.values())


def _sum(amounts: Iterable[Mapping[str, float]]) -> Amounts:
    total: Amounts = defaultdict(float)
    for one in amounts:
        for name, hours in one.items():
            total[name] += hours
    return dict(total)


def _put(groups: dict[str, Amounts], name: str, states: Mapping[str, float]) -> None:
    groups[name] = _sum((groups.get(name, {}), states))


def _merge(into: JobPast, past: JobPast) -> None:
    for state, hours in past.states.items():
        into.states[state] += hours
    for cause, hours in past.causes.items():
        into.causes[cause] += hours


def _goodput(past: Past) -> float | None:
    phases = _sum(phases for job in past.jobs.values() for phases in job.phases.values())
    return ratio(phases.get("step", 0.0), sum(phases.values()))


def _episodes(windows: Mapping[int, float]) -> int:
    """How often a fault began: windows that follow one another are one time."""
    ends = sorted(windows)
    return sum(
        after - before > history.FAULT_WINDOW
        for before, after in zip([-history.FAULT_WINDOW * 9, *ends], ends, strict=False)
    )


def _gaps(own: Mapping[int, Amounts], period: history.Period) -> Iterator[tuple[int, int, int]]:
    """Hours of a period without data that follow one another: ends of the first and last."""
    first = last = 0
    for at in range(period.start + HOUR, period.end + HOUR, HOUR):
        if at in own:
            if first:
                yield first, last, (last - first) // HOUR + 1
            first = 0
        else:
            first, last = first or at, at
    if first:
        yield first, last, (last - first) // HOUR + 1


def _days(hours: float | None) -> float | None:
    return hours / 24 if hours is not None else None
