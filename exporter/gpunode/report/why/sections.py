"""The sections of the answer: seconds, causes, alerts, earlier runs, other jobs, and changes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from gpunode.gpu.ledger import STATES
from gpunode.report import job as asked
from gpunode.report import words
from gpunode.report.document import Figure, ReportSection, Table, TableColumn, Value
from gpunode.report.history import DAY, Amounts
from gpunode.report.job import RECENT, EarlierRun, JobGpu, RunRecord, kind
from gpunode.report.runs import SLURM
from gpunode.report.sections.losses import losses_of
from gpunode.report.view import added, clean, held, ratio
from gpunode.report.why.finding import RATE, gaps_text
from gpunode.report.why.view import JobView, is_as_much, known_lost, node_list, useful_share
from gpunode.report.words import amount, as_text, clock, lasting
from gpunode.verdict.causes.cause import MIN_LOSS as CLEARLY

MIN_OTHER_JOBS = 3
"""Jobs of the same shape from which on there is a middle to compare with."""

SIMILAR_SHARE = 0.75
"""Share of what is lost in the end from which on it is about as much."""

RAMP_SECONDS = 2 * RATE
"""Seconds from which on a loss is no more the ramp of a rate that has just begun."""


def seconds(view: JobView) -> ReportSection:
    """Its GPU time by state."""
    run = view.run
    of_known = "of what is known" if view.unknown else "of it"
    return ReportSection(
        "seconds",
        "Where its time went",
        f"Every second of its GPUs by state. {gaps_text(view)}".strip(),
        (
            Figure("held", "Held", view.held, "GPU hours", view.promql(asked.SECONDS), "GPU hours"),
            Figure("useful", "Useful", useful_share(view.states), "share", note=of_known),
            Figure("lost", "Lost", view.lost, "GPU hours", note="GPU hours"),
            *(
                Figure(name, title, hours * view.price, "price", note="at the price given")
                for name, title, hours in (
                    ("cost", "Cost", view.held),
                    ("lost_cost", "Cost of what was lost", view.lost),
                )
                if view.price is not None
            ),
            Figure(
                "lasted",
                "Lasted",
                float(run.seconds),
                "duration",
                note="so far" if run.goes_on else "",
            ),
            Figure(
                "missing",
                "Not recorded",
                float(view.missing),
                "duration",
                note="of that",
            ),
            Figure("unknown", "Unknown", view.unknown, "GPU hours", note="GPU hours"),
        ),
        (_by_state(view), _over_time(view)),
    )


def _by_state(view: JobView) -> Table:
    rows = sorted(view.states.items(), key=lambda item: -item[1])
    latest = view.past.states_now
    return Table(
        "states",
        "By state",
        (
            TableColumn("state", "State"),
            TableColumn("meaning", "Meaning"),
            TableColumn("gpu_hours", "GPU hours", "GPU hours"),
            TableColumn("share", "Share", "share"),
            TableColumn("latest", f"Last {lasting(RATE)}", "share"),
            *view.cost_column("Cost"),
        ),
        tuple(
            (
                state,
                words.headline(state),
                hours,
                ratio(hours, view.held),
                ratio(latest.get(state, 0.0), held(latest)),
                *view.cost(hours),
            )
            for state, hours in rows
            if state != "free" and hours > 0
        ),
        (view.promql(asked.SECONDS),),
        nothing="Nothing is recorded.",
    )


def _over_time(view: JobView) -> Table:
    past = view.past
    return Table(
        "timeline",
        "Over time",
        (
            TableColumn("at", "Begins"),
            *(TableColumn(state, state, "GPU hours") for state in STATES),
        ),
        tuple(
            (
                clock(past.begin(end)),
                *(past.states.get(end, {}).get(state) for state in STATES),
            )
            for end in asked.moments(past)
        ),
        (asked.SECONDS.of(view.run.job, past.length),),
        hidden=True,
    )


def causes(view: JobView) -> ReportSection:
    """What held it up, the costliest first."""
    rows = tuple(
        (
            words.headline(one.name),
            one.name,
            one.named,
            one.back.estimate,
            one.back.at_least,
            one.back.at_most,
            one.back.faster,
            *((one.lately.faster if one.lately else "",) if view.past.lately else ()),
            *view.cost(one.back.hours),
            "; ".join(filter(None, (one.late, one.share, *one.seen))),
            one.remedy,
        )
        for one in view.held_up
    )
    judged = f"There is a verdict for {as_text(min(1.0, view.judged), 'share')} of its GPU hours. "
    return ReportSection(
        "held_up",
        "What held it up",
        f"{judged if view.held > 0 else ''}What each would give back is what the same work would "
        "not take without it.",
        (),
        (
            Table(
                "causes",
                "Causes, and what each would give back",
                (
                    TableColumn("what", "Cause"),
                    TableColumn("cause", "Name"),
                    TableColumn("named", "The cause for", "GPU hours"),
                    TableColumn("given_back", "Gives back", "GPU hours"),
                    TableColumn("given_back_lower", "At least", "GPU hours"),
                    TableColumn("given_back_upper", "At most", "GPU hours"),
                    TableColumn("faster", "Without it"),
                    *(
                        (TableColumn("faster_lately", f"By the last {lasting(RECENT)}"),)
                        if view.past.lately
                        else ()
                    ),
                    *view.cost_column("Worth"),
                    TableColumn("evidence", "Evidence"),
                    TableColumn("remedy", "What helps"),
                ),
                rows,
                (
                    view.promql(asked.CAUSES),
                    view.promql(asked.GAINS),
                    view.promql(asked.PLACES),
                    view.promql(asked.AWAITED),
                ),
                note="Bounds hold nine times in ten. Where there is no estimate, the hours are "
                "those of the states that the cause takes.",
                nothing="None that took a twentieth of its time."
                if view.held > 0 and view.judged >= 1 - CLEARLY
                else "Not known: too little is recorded.",
            ),
        ),
    )


def alerts(view: JobView) -> ReportSection:
    """The alerts that fired about it and about the parts that it used."""
    past = view.past
    rows = tuple(
        (
            clean(fired.alert),
            clean(fired.severity),
            clean(str(JobGpu(fired.instance, fired.gpu))) if fired.gpu else clean(fired.instance),
            clock(past.begin(min(ends))),
            clock(max(ends)),
        )
        for fired, ends in sorted(past.alerts.items(), key=lambda item: (min(item[1]), item[0]))
    )
    return ReportSection(
        "alerts",
        "Alerts meanwhile",
        "Alerts about the job, and about the nodes and GPUs that it had.",
        (),
        (
            Table(
                "alerts",
                "Alerts that fired",
                (
                    TableColumn("alert", "Alert"),
                    TableColumn("severity", "Severity"),
                    TableColumn("where", "Where"),
                    TableColumn("since", "From"),
                    TableColumn("until", "To"),
                ),
                rows,
                (view.promql(asked.ALERTS), view.promql(asked.ALERTS_OF_PARTS)),
                nothing="None is recorded.",
            ),
        ),
    )


def _step(past: RunRecord) -> float | None:
    return statistics.mean(past.steps.values()) if past.steps else None


def runs(view: JobView) -> ReportSection:
    """The run beside the last ones."""
    past = view.past
    rows = [
        _run(
            view,
            "this run",
            view.run.first,
            view.run.seconds,
            view.gpus,
            view.states,
            view.causes,
            _step(past),
        ),
        *(
            _run(view, one.name, one.start, one.seconds, one.gpus, one.states, one.causes, one.step)
            for one in past.earlier
        ),
    ]
    slurm = view.run.job.workload.startswith(SLURM)
    which = "the user's last Slurm jobs with as many GPUs" if slurm else "the last of its name"
    days = asked.LOOKBACK // DAY
    return ReportSection(
        "runs",
        "Beside its last runs",
        f"Its last runs are {which} within {days} days."
        if past.earlier
        else f"No earlier run is recorded within {days} days, so there is none to compare with.",
        (),
        (
            Table(
                "runs",
                "Runs",
                (
                    TableColumn("run", "Run"),
                    TableColumn("began", "Began"),
                    TableColumn("lasted", "Lasted", "duration"),
                    TableColumn("gpus", "GPUs", "GPUs"),
                    TableColumn("useful", "Useful", "share"),
                    TableColumn("lost", "Lost", "GPU hours"),
                    *view.cost_column("Cost of it"),
                    TableColumn("step", "Step", "seconds"),
                    TableColumn("most", "Most lost to"),
                ),
                tuple(rows),
                (view.promql(asked.SECONDS), view.promql(asked.STEPS)),
            ),
        ),
    )


def _run(
    view: JobView,
    name: str,
    start: int,
    lasted: float,
    gpus: int,
    states: Amounts,
    causes: Amounts,
    step: float | None,
) -> tuple[Value, ...]:
    """A row of a run; what it lost most to are the causes that took as much as the first."""
    losses, whole = losses_of(states, causes), held(states)
    alike = [
        words.headline(loss.name)
        for loss in losses
        if loss.given_back >= CLEARLY * whole > 0
        and is_as_much(loss.given_back, losses[0].given_back, whole)
    ]
    return (
        name,
        clock(start),
        lasted,
        float(gpus),
        useful_share(states),
        known_lost(states),
        *view.cost(known_lost(states)),
        step,
        "; ".join(alike) or "-",
    )


def others(view: JobView) -> ReportSection:
    """The run beside other jobs that do the same on as many GPUs."""
    past = view.past
    shares = sorted(
        share for states in past.others.values() if (share := useful_share(states)) is not None
    )
    work = words.KINDS.get(kind(past), "")
    days = asked.SHAPE // DAY
    if not work or kind(past) == "unknown":
        says = "What kind of work it does is not known, so there are no others to compare with."
    elif len(shares) < MIN_OTHER_JOBS:
        says = (
            f"{amount(len(shares), 'other job')} ({work}) with {amount(view.gpus, 'GPU')} "
            f"within {days} days: too few to compare with."
        )
    elif (own := useful_share(view.states)) is None:
        says = "What use it made of its GPUs is not known, so it cannot be compared."
    else:
        better = sum(share > own for share in shares)
        says = (
            f"Of {len(shares)} other jobs ({work}) with {amount(view.gpus, 'GPU')} within "
            f"{days} days, {better} made more use of them."
        )
    enough = len(shares) >= MIN_OTHER_JOBS
    quarters = statistics.quantiles(shares, n=4, method="inclusive") if enough else []
    return ReportSection(
        "others",
        "Beside others of its shape",
        says,
        (
            Figure("own", "Useful here", useful_share(view.states), "share"),
            *(
                Figure(name, title, value, "share", asked.shape_query(past))
                for name, title, value in zip(
                    ("lower_quarter", "middle", "upper_quarter"),
                    ("Lower quarter of others", "Middle of others", "Upper quarter of others"),
                    quarters,
                    strict=True,
                )
            ),
        )
        if enough
        else (),
    )


def changes(view: JobView) -> ReportSection:
    """What is not as it was in the last run, and since when more is lost in this one."""
    past = view.past
    before = past.earlier[0] if past.earlier else None
    rows = _changed_rows(view, before) if before else ()
    says = []
    if more := _more_lost(view):
        says.append(more)
    if slower := _slower(past):
        says.append(slower)
    if before is None:
        says.append("There is no earlier run to compare with.")
    else:
        says.append(f"Against {before.name}, which began at {clock(before.start)} UTC.")
    return ReportSection(
        "changes",
        "What changed",
        " ".join(says),
        (),
        (
            Table(
                "changes",
                "Since the run before",
                (
                    TableColumn("what", "What"),
                    TableColumn("before", "Before"),
                    TableColumn("now", "Now"),
                ),
                rows,
                (view.promql(asked.NODE_VERSIONS), view.promql(asked.PROCESS_VERSIONS)),
                nothing="Nothing that is recorded.",
            ),
        )
        if before
        else (),
    )


def _more_lost(view: JobView) -> str:
    """Since when clearly more of the time is lost, where what came before is known as well.

    What began at about the same time tells when more exactly than the mean of five minutes does.
    If the main cause began at another time, the step was none that matters.
    """
    past, since = view.past, _loss_start(view.past)
    if since is None or since < view.run.first + RAMP_SECONDS:
        return ""
    first = view.held_up[0] if view.held_up else None
    if first and first.began is not None and first.took >= CLEARLY * view.held:
        if abs(first.began - since) > max(RAMP_SECONDS, 2 * past.length):
            return ""
        since = first.began
    before, after = (
        added(states for end, states in past.states.items() if (end <= since) is earlier)
        for earlier in (True, False)
    )
    if held(before) <= 0 or held(after) <= 0:
        return ""
    then, now = (known_lost(states) / held(states) for states in (before, after))
    if now - then < CLEARLY:
        return ""
    return (
        f"Clearly more is lost since {clock(since)} UTC than before: {as_text(now, 'share')} "
        f"of its time instead of {as_text(then, 'share')}."
    )


def _loss_start(past: RunRecord) -> int | None:
    """When the last time began in which about as much is lost as in the end; None if nothing is."""
    lost_in = {end: known_lost(states) for end, states in sorted(past.states.items())}
    in_the_end = next(reversed(lost_in.values()), 0.0)
    since = None
    for end in reversed(lost_in):
        if in_the_end <= 0 or lost_in[end] < SIMILAR_SHARE * in_the_end:
            break
        since = past.begin(end)
    return since


def _slower(past: RunRecord) -> str:
    """Steps of the last third of a run that take longer than those of the first."""
    ends = sorted(past.steps)
    third = len(ends) // 3
    if third < 2:
        return ""
    first, last = (
        statistics.median(past.steps[end] for end in part) for part in (ends[:third], ends[-third:])
    )
    if first <= 0 or last / first < 1 + CLEARLY:
        return ""
    return (
        f"A step took {as_text(first, 'seconds')} in the first third of the run and "
        f"{as_text(last, 'seconds')} in the last."
    )


def _changed_rows(view: JobView, before: EarlierRun) -> tuple[tuple[Value, ...], ...]:
    past = view.past
    rows: list[tuple[Value, ...]] = []

    def put(what: str, then: str, now: str) -> None:
        if then != now:
            rows.append((what, then, now))

    then_of, now_of = _versions_by_part(before.versions), _versions_by_part(past.versions)
    for what in sorted({*then_of, *now_of}):
        put(what, then_of.get(what, "not known"), now_of.get(what, "not known"))
    put("GPUs", str(before.gpus), str(view.gpus))
    put("nodes", node_list(before.nodes), node_list(past.nodes))
    then, now = (useful_share(one) for one in (before.states, view.states))
    if then is not None and now is not None and abs(now - then) >= CLEARLY / 2:
        put("useful", as_text(then, "share"), as_text(now, "share"))
    step = _step(past)
    if before.step and step and abs(step / before.step - 1) >= CLEARLY / 2:
        put("step", as_text(before.step, "seconds"), as_text(step, "seconds"))
    return tuple(rows)


def _versions_by_part(versions: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Versions in words, by what they are of."""
    found: dict[str, list[str]] = {}
    for what, version in sorted(versions):
        found.setdefault(what, []).append(clean(version))
    return {what: ", ".join(all_of) for what, all_of in found.items()}
