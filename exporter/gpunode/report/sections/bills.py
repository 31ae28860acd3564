"""What each team held, used and lost, and what that costs; together it is all that there was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.report import history, words
from gpunode.report.document import Figure, Report, ReportSection, Table, TableColumn, Value
from gpunode.report.history import Amounts, JobHours, JobKey
from gpunode.report.sections.losses import losses_of
from gpunode.report.view import (
    TOP,
    PeriodView,
    added,
    clean,
    held,
    lost,
    owner,
    ratio,
    useful,
)
from gpunode.report.words import amount, as_text, clock, date, number

NO_TEAM = "no team"
UNKNOWN_OWNER = "owner not recorded"
NOBODY = "held by nobody"
"""Lines of the bill that are no team's."""

MAX_LOSSES = 3
MIN_SHARE = 0.0005
"""Of all GPU hours; what is less is within the blur of an hour in which a job begins."""

MAX_NAMES = 10


@dataclass(frozen=True, slots=True)
class Bill:
    """A line of the bill: GPU hours by state, and the price of those held, useful and lost."""

    name: str
    states: Mapping[str, float]
    held: float
    useful: float
    jobs: tuple[tuple[JobKey, JobHours], ...] = ()

    @property
    def lost(self) -> float:
        """The price of what was held without use."""
        return self.held - self.useful


def team_bills(view: PeriodView) -> list[Bill]:
    """The bill of each team, the largest first; jobs of no team have the last one."""
    jobs: dict[str, list[tuple[JobKey, JobHours]]] = defaultdict(list)
    for job, past in sorted(view.past.jobs.items()):
        if held(past.states) > 0:
            jobs[view.team(job)].append((job, past))
    found = []
    for team, own in jobs.items():
        prices = [(past, view.price_of(past) or 0.0) for _, past in own]
        found.append(
            Bill(
                clean(team) or NO_TEAM,
                added(past.states for _, past in own),
                sum(held(past.states) * price for past, price in prices),
                sum(useful(past.states) * price for past, price in prices),
                tuple(own),
            )
        )
    return sorted(found, key=lambda bill: (bill.name == NO_TEAM, -held(bill.states), bill.name))


def unbilled(view: PeriodView, teams: list[Bill]) -> list[Bill]:
    """What is on no team's bill: GPUs of jobs whose owner is not recorded, and free ones."""
    of_teams = added(bill.states for bill in teams)
    left = {
        state: hours - of_teams.get(state, 0.0)
        for state, hours in view.total.items()
        if state != "free"
    }
    found = []
    if abs(held(left)) >= MIN_SHARE * sum(view.total.values()):
        found.append(
            Bill(
                UNKNOWN_OWNER,
                left,
                view.worth(state for state in view.total if state != "free")
                - sum(bill.held for bill in teams),
                view.worth(history.USEFUL) - sum(bill.useful for bill in teams),
            )
        )
    free = view.total.get("free", 0.0)
    if free > 0:
        found.append(Bill(NOBODY, {"idle": free}, view.worth(("free",)), 0.0))
    return found


def bills(view: PeriodView) -> ReportSection:
    """What each team pays."""
    teams = team_bills(view)
    rows = tuple(_row(view, bill) for bill in (*teams, *unbilled(view, teams)))
    says = "What each team held, what of it was useful and what was lost, each priced. "
    says += (
        "The lines add up to all GPU hours that there were."
        if view.billing.teams
        else "Each owner is a team, as no teams are given; the lines add up to all GPU hours."
    )
    if view.price is None:
        says += " No price is given, so that there are hours only."
    if models := view.unpriced():
        says += (
            f" There is no price for {', '.join(models[:MAX_NAMES])}: these GPUs are taken to "
            "cost the mean of the others."
        )
    strangers = sorted({owner(job) for job, _ in _jobs_of(teams, NO_TEAM)})
    if strangers and view.billing.teams:
        more = f" and {len(strangers) - MAX_NAMES} more" if len(strangers) > MAX_NAMES else ""
        says += f" Jobs of {', '.join(strangers[:MAX_NAMES])}{more} belong to no team."
    return ReportSection(
        "bills",
        "What each team pays",
        says,
        (),
        (
            Table(
                "bills",
                "The bill of each team",
                (
                    TableColumn("team", "Team"),
                    TableColumn("held", "Held", "GPU hours"),
                    TableColumn("useful", "Useful", "GPU hours"),
                    TableColumn("lost", "Lost", "GPU hours"),
                    TableColumn("share", "Useful of it", "share"),
                    *view.cost_column("Price of held", "held_cost"),
                    *view.cost_column("of useful", "useful_cost"),
                    *view.cost_column("of lost", "lost_cost"),
                ),
                rows,
                (view.over(history.JOBS), view.over(history.STATES)),
                note="GPUs that nobody held are on the last line, as held and lost. Without it, "
                "the lines are what jobs held and lost. A job's GPU hours are priced by the models "
                "that it held.",
            ),
        ),
    )


def team_report(view: PeriodView, bill: Bill, source: str) -> Report:
    """What a team is sent: its bill, its three largest losses and what helps, and its jobs."""
    period = view.past.period
    price = f", worth {view.money(bill.held)}" if view.price is not None else ""
    lost_price = f", worth {view.money(bill.lost)}" if view.price is not None else ""
    hours = held(bill.states)
    finding = (
        f"{bill.name} held {amount(hours, 'GPU hour')}{price}. "
        f"{as_text(ratio(useful(bill.states), hours), 'share')} of them did useful work; "
        f"{number(lost(bill.states))} were lost{lost_price}."
    )
    return Report(
        title=f"GPU bill of {bill.name}, {date(period.start)} to {date(period.end)}",
        start=clock(period.start),
        end=clock(period.end),
        moment=period.end + history.RECORDING_DELAY,
        source=source,
        price=view.price,
        finding=finding,
        sections=(_team_section(view, bill), _losses(view, bill), _jobs(view, bill)),
        warnings=(),
        currency=view.billing.currency,
    )


def _team_section(view: PeriodView, bill: Bill) -> ReportSection:
    figures = []
    for name, title, hours, cost in (
        ("held", "Held", held(bill.states), bill.held),
        ("useful", "Useful", useful(bill.states), bill.useful),
        ("lost", "Lost", lost(bill.states), bill.lost),
    ):
        note = f"GPU hours, {view.money(cost)}" if view.price is not None else "GPU hours"
        figures.append(Figure(name, title, hours, "GPU hours", note=note))
    return ReportSection(
        "bill",
        "The bill",
        "Useful is time in which kernels run; all other time of a GPU that a job holds is "
        "lost, also while it waits for data or for other GPUs.",
        tuple(figures),
    )


def _losses(view: PeriodView, bill: Bill) -> ReportSection:
    found = [
        (job, past, loss)
        for job, past in bill.jobs
        for loss in losses_of(past.states, past.causes)
        if loss.given_back >= 1
    ]
    found.sort(key=lambda one: (-one[2].given_back, one[0]))
    rows = tuple(
        (
            *view.job_cells(job),
            words.headline(loss.name),
            loss.given_back,
            *view.cost(loss.given_back, view.price_of(past)),
            loss.evidence,
            loss.remedy,
        )
        for job, past, loss in found[:MAX_LOSSES]
    )
    return ReportSection(
        "losses",
        "Its largest losses, and what helps",
        "What would come back at most if the cause were mended."
        if rows
        else "Nothing of note was lost.",
        (),
        (
            Table(
                "losses",
                f"The {MAX_LOSSES} largest losses",
                (
                    *view.job_columns(),
                    TableColumn("cause", "Cause"),
                    TableColumn("given_back", "To get back at most", "GPU hours"),
                    *view.cost_column("Worth"),
                    TableColumn("evidence", "Evidence"),
                    TableColumn("remedy", "What helps"),
                ),
                rows,
                (view.over(history.JOBS), view.over(history.JOB_CAUSES)),
            ),
        )
        if rows
        else (),
    )


def _jobs(view: PeriodView, bill: Bill) -> ReportSection:
    ranked = sorted(bill.jobs, key=lambda item: (-held(item[1].states), item[0]))

    def row(job: JobKey, past: JobHours) -> tuple[Value, ...]:
        return (
            *view.job_cells(job),
            held(past.states),
            ratio(useful(past.states), held(past.states)),
            lost(past.states),
            *view.cost(held(past.states), view.price_of(past)),
        )

    return ReportSection(
        "jobs",
        "Its jobs",
        f"{words.amount(len(ranked), 'job')}, the largest first"
        + (f", of which the first {TOP} are listed." if len(ranked) > TOP else "."),
        (),
        (
            Table(
                "jobs",
                "Jobs by what they held",
                (
                    *view.job_columns(),
                    TableColumn("held", "Held", "GPU hours"),
                    TableColumn("useful", "Useful", "share"),
                    TableColumn("lost", "Lost", "GPU hours"),
                    *view.cost_column("Price of held"),
                ),
                tuple(row(*item) for item in ranked[:TOP]),
                (view.over(history.JOBS),),
            ),
        ),
    )


def _row(view: PeriodView, bill: Bill) -> tuple[Value, ...]:
    prices = (bill.held, bill.useful, bill.lost) if view.price is not None else ()
    states: Amounts = dict(bill.states)
    return (
        bill.name,
        held(states),
        useful(states),
        lost(states),
        ratio(useful(states), held(states)),
        *prices,
    )


def _jobs_of(teams: list[Bill], name: str) -> tuple[tuple[JobKey, JobHours], ...]:
    return next((bill.jobs for bill in teams if bill.name == name), ())
