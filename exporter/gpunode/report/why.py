"""What is said to who runs a job: where its time went, what took it, and what would give it back.

The answer is a report, as that on the capacity is. What was not recorded is said first, and nothing
is called well that was not looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from gpunode.report import job as asked
from gpunode.report import words
from gpunode.report.document import Figure, Report, ReportSection, Table, TableColumn, Value
from gpunode.report.history import DAY, RULE_INTERVAL, Amounts
from gpunode.report.job import EarlierRun, JobGpu, RunPast, RunQuery, kind
from gpunode.report.runs import SLURM, Run
from gpunode.report.sections.losses import Loss, losses_of
from gpunode.report.view import added, held, lost, ratio, shown, useful
from gpunode.report.words import clock, counted, lasting, number, written
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.cause import LOST as CLEARLY
from gpunode.verdict.reasons import REASONS

WORTH_NAMING = 0.05
"""Share of a job's hours from which on a cause is listed."""

MOST_PLACES = 3
FEWEST_OTHERS = 3
"""Jobs of the same shape from which on there is a middle to compare with."""

BEHIND = 0.1
"""From how much less than the others a GPU waits, it is the one for which they wait."""


@dataclass(frozen=True, slots=True)
class Held:
    """What held a job up: for how long it was named, and what would come back without it."""

    name: str
    """A cause, or a state of the ledger that no verdict explains."""

    named: float
    at_most: float | None
    """None if nobody can tell what would come back."""

    given_back: float | None
    """An estimate, where the verdicts made one."""

    at_least: float | None
    when: str
    where: str
    evidence: tuple[str, ...]
    """The share of the time first, then what was measured."""

    remedy: str

    @property
    def back(self) -> float:
        """What would come back: as estimated, or at most."""
        return (self.at_most or 0.0) if self.given_back is None else self.given_back


class JobView:
    """A run as the sections look at it."""

    def __init__(self, past: RunPast, price: float | None) -> None:
        self.past = past
        self.run = past.run
        self.price = price
        self.states = added(past.states.values())
        self.causes = added(past.causes.values())
        self.held = held(self.states)
        self.unknown = self.states.get("unknown", 0.0)
        self.lost = _known_lost(self.states)
        self.gpus = max(past.gpus.values(), default=0)
        self.missing = self.run.missing
        self.judged = ratio(sum(self.causes.values()), self.held) or 0.0
        """The share of its GPU hours for which there are verdicts."""

        self.held_up = [
            one
            for one in sorted(self._held_up(), key=lambda one: -one.back)
            if max(one.back, one.named) >= WORTH_NAMING * self.held
        ]

    def cost(self, hours: float) -> tuple[Value, ...]:
        return (hours * self.price,) if self.price is not None else ()

    def cost_column(self, title: str) -> tuple[TableColumn, ...]:
        return (TableColumn("cost", title, "price"),) if self.price is not None else ()

    def promql(self, query: RunQuery) -> str:
        """An expression over the whole run, to be asked at its end."""
        nodes = asked.selecting(self.run.job.cluster, self.past.nodes)
        return query.of(self.run.job, self.run.end - self.run.start, nodes)

    @property
    def name(self) -> str:
        users = ", ".join(map(shown, self.past.users))
        of = f" of {users}" if users and "@" not in self.run.job.workload else ""
        return f"{self.run.job}{of}"

    def _held_up(self) -> Iterable[Held]:
        for loss in losses_of(self.states, self.causes):
            if loss.cause:
                yield self._of_cause(loss.cause, loss)
            else:
                unknown = loss.state == "unknown"
                yield Held(
                    loss.state,
                    self.unknown if unknown else loss.given_back,
                    None if unknown else loss.given_back,
                    None,
                    None,
                    "",
                    "",
                    (loss.evidence,),
                    loss.remedy,
                )
        taken = {loss.cause for loss in losses_of(self.states, self.causes)}
        for cause, hours in self.causes.items():
            if cause not in taken and cause in words.REMEDIES and hours > 0:
                yield self._of_cause(cause, None)

    def _of_cause(self, cause: str, loss: Loss | None) -> Held:
        past, hours = self.past, self.causes[cause]
        gain = past.gains.get(cause, {})
        windows = sorted(at for at, causes in past.causes.items() if causes.get(cause))
        remedy = words.REMEDIES[cause].do
        named = f"verdict {cause} for {counted(hours, 'GPU hour')}"
        evidence = [loss.evidence if loss else named]
        evidence += past.facts.get(cause, [])
        if CAUSES[cause].waits_for_peers:
            late, at_once = self._late()
            evidence += late
            if at_once and self.run.goes_on and CAUSES[cause].stands_still:
                remedy = f"{at_once} {remedy}"
        if CAUSES[cause].stands_still and past.stalled:
            evidence.append(f"no GPU of the job worked for {lasting(past.stalled)}")
        places = sorted(past.places.get(cause, {}).items(), key=lambda item: -item[1])
        return Held(
            cause,
            hours,
            self._at_most(gain.get("upper", loss.given_back if loss else None), loss),
            self._at_most(gain.get("estimate"), loss),
            self._at_most(gain.get("lower"), loss),
            f"from {clock(past.begin(windows[0]))} to {clock(windows[-1])} UTC",
            self._where([place for place, _ in places]),
            tuple(evidence),
            remedy,
        )

    def _at_most(self, hours: float | None, loss: Loss | None) -> float | None:
        """Hours that would come back, no more than were lost: a verdict is there before a rate."""
        return None if hours is None else min(hours, self.lost if loss else self.held)

    def _where(self, places: list[JobGpu]) -> str:
        """The GPUs, those that have it most first."""
        if len(places) > MOST_PLACES and len(places) >= self.gpus:
            return f"on all {self.gpus} GPUs"
        more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
        listed = ", ".join(shown(str(place)) for place in places[:MOST_PLACES])
        return f"on {listed}{more}" if places else ""

    def _late(self) -> tuple[list[str], str]:
        """For which GPUs the others waited and why, and what is to be done about the first."""
        waited = sorted(self.past.awaited.items(), key=lambda item: -item[1])
        known = [(place, REASONS[reason]) for (place, reason), _ in waited if reason in REASONS]
        said = [f"{shown(str(place))} was waited for: {why.meaning}" for place, why in known]
        at_once = known[0][1].advice.remedy if known else ""
        shares = self.past.blocked
        if not said and len(shares) > 1:
            place = min(shares, key=lambda one: shares[one])
            others = statistics.median(share for one, share in shares.items() if one != place)
            if others - shares[place] >= BEHIND:
                said = [
                    f"{shown(str(place))} waited for {written(shares[place], 'share')} of the "
                    f"time, the others for {written(others, 'share')}: they wait for it"
                ]
        return said[:MOST_PLACES], at_once


def answer(past: RunPast, price: float | None, source: str, warnings: Iterable[str]) -> Report:
    """Everything that there is to say about a run."""
    view = JobView(past, price)
    sections = (seconds, causes, alerts, runs, others, changes)
    return Report(
        title=f"Why is it slow: {view.name}",
        start=clock(past.run.first),
        end=clock(past.run.last),
        moment=past.run.end,
        source=source,
        price=price,
        finding=finding(view),
        sections=tuple(section(view) for section in sections),
        warnings=tuple(sorted(warnings)),
        reading="What a rule records every 30 s is the mean of five minutes, so the first and last "
        "minutes of a run are blurred.",
    )


def finding(view: JobView) -> str:
    """The paragraph above all."""
    run = view.run
    began = "at least since" if run.cut else "from"
    says = [
        f"{view.name} held {counted(view.gpus, 'GPU')} on {counted(len(view.past.nodes), 'node')} "
        f"for {lasting(run.seconds)}, {began} {clock(run.first)} to {clock(run.last)} UTC"
        f"{_ending(run)}."
    ]
    if view.held <= 0:
        return f"{says[0]} Nothing is recorded of where its time went. {_missing(view)}".strip()
    price = f", worth {number(view.lost * view.price)}" if view.price is not None else ""
    unknown = f"{number(view.unknown)} are unknown; of the rest, " if view.unknown else ""
    says.append(
        f"Of {counted(view.held, 'GPU hour')}, {unknown}{written(_useful(view.states), 'share')} "
        f"did useful work; {number(view.lost)} were lost{price}."
    )
    says.append(_verdict(view))
    if fired := sorted({shown(one.alert) for one in view.past.alerts if not one.instance}):
        says.append(f"Alerts about it meanwhile: {', '.join(fired)}.")
    says.append(_missing(view))
    return "\n".join(filter(None, says))


def _ending(run: Run) -> str:
    """Whether it has ended, as far as is known: the last minute is not yet recorded."""
    if run.goes_on:
        return "; it still held them then"
    if run.unseen_since:
        return "; nothing of its cluster is recorded after that, so its end is not known"
    return "; it has ended"


def _verdict(view: JobView) -> str:
    """What held it up most; that nothing did only where it was looked for."""
    says = []
    if view.unknown >= CLEARLY * view.held:
        says.append(
            f"For {written(view.unknown / view.held, 'share')} of its time the sensors could not "
            "tell what the GPUs did."
        )
    if view.judged < 1 - CLEARLY:
        says.append(
            f"For {written(1 - view.judged, 'share')} of its GPU hours there is no verdict, so a "
            "cause may be missing."
        )
    first = view.held_up[0] if view.held_up else None
    if first and first.back >= CLEARLY * view.held:
        says.append(_most(first, view))
    elif not says:
        says.append("Nothing took a tenth of the time that was recorded.")
    return " ".join(says)


def _most(first: Held, view: JobView) -> str:
    known = (
        "Most of what is known to be lost went" if view.unknown > first.back else "Most was lost"
    )
    meaning = CAUSES[first.name].meaning if first.name in CAUSES else words.STATES[first.name]
    seen = "; ".join(filter(None, (first.when, first.where, *first.evidence[1:])))
    seen = f" {seen[0].upper()}{seen[1:]}." if seen else ""
    worth = f", worth {number(first.back * view.price)}" if view.price is not None else ""
    return (
        f"{known} to {first.name}: {meaning}.{seen} {first.remedy} "
        f"That would give {_back(first)} of its GPU hours back{worth}."
    )


def _missing(view: JobView) -> str:
    """What is not known of the run, for nobody to take it for well."""
    says = []
    if view.missing > 2 * RULE_INTERVAL:
        says.append(
            f"For {lasting(view.missing)} of it nothing was recorded; that time is left out."
        )
    fewest = min(view.past.gpus.values(), default=0)
    if fewest < view.gpus:
        says.append(f"At times only {fewest} of its {view.gpus} GPUs were seen.")
    if view.past.shared:
        says.append(
            f"It shared {counted(view.past.shared, 'GPU')} with others, for which there is no "
            "verdict."
        )
    return " ".join(says)


def seconds(view: JobView) -> ReportSection:
    """Its GPU time by state."""
    run, past = view.run, view.past
    latest = past.states[max(past.states)] if past.states else {}
    of_known = "of what is known" if view.unknown else "of it"
    rows = sorted(view.states.items(), key=lambda item: -item[1])
    return ReportSection(
        "seconds",
        "Where its time went",
        f"Every second of its GPUs by state. {_missing(view)}".strip(),
        (
            Figure("held", "Held", view.held, "GPU hours", view.promql(asked.SECONDS), "GPU hours"),
            Figure("useful", "Useful", _useful(view.states), "share", note=of_known),
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
        (
            Table(
                "states",
                "By state",
                (
                    TableColumn("state", "State"),
                    TableColumn("meaning", "Meaning"),
                    TableColumn("gpu_hours", "GPU hours", "GPU hours"),
                    TableColumn("share", "Share", "share"),
                    TableColumn("latest", f"Last {lasting(past.length)}", "share"),
                    *view.cost_column("Cost"),
                ),
                tuple(
                    (
                        state,
                        words.STATES.get(state, state),
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
            ),
            Table(
                "timeline",
                "Over time",
                (
                    TableColumn("at", "Begins"),
                    *(TableColumn(state, state, "GPU hours") for state in words.STATES),
                ),
                tuple(
                    (
                        clock(past.begin(end)),
                        *(past.states.get(end, {}).get(state) for state in words.STATES),
                    )
                    for end in asked.moments(past)
                ),
                (asked.SECONDS.of(run.job, past.length),),
                hidden=True,
            ),
        ),
    )


def causes(view: JobView) -> ReportSection:
    """What held it up, the costliest first."""
    rows = tuple(
        (
            one.name,
            one.named,
            one.given_back,
            one.at_least,
            one.at_most,
            *view.cost(one.back),
            "; ".join(filter(None, (one.evidence[0], one.when, one.where, *one.evidence[1:]))),
            one.remedy,
        )
        for one in view.held_up
    )
    judged = written(min(1.0, view.judged), "share")
    return ReportSection(
        "held_up",
        "What held it up",
        f"There is a verdict for {judged} of its GPU hours. What each would give back is what the "
        "same work would not take without it.",
        (),
        (
            Table(
                "causes",
                "Causes, and what each would give back",
                (
                    TableColumn("cause", "Cause"),
                    TableColumn("named", "Named for", "GPU hours"),
                    TableColumn("given_back", "Gives back", "GPU hours"),
                    TableColumn("given_back_lower", "At least", "GPU hours"),
                    TableColumn("given_back_upper", "At most", "GPU hours"),
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
                if view.judged >= 1 - CLEARLY
                else "Not known: no verdict was recorded.",
            ),
        ),
    )


def alerts(view: JobView) -> ReportSection:
    """The alerts that fired about it and about the parts that it used."""
    past = view.past
    rows = tuple(
        (
            shown(fired.alert),
            shown(fired.severity),
            shown(str(JobGpu(fired.instance, fired.gpu))) if fired.gpu else shown(fired.instance),
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


def _step(past: RunPast) -> float | None:
    return statistics.mean(past.steps.values()) if past.steps else None


def runs(view: JobView) -> ReportSection:
    """The run beside the last ones."""
    past = view.past

    def row(
        name: str,
        start: int,
        lasted: float,
        gpus: int,
        states: Amounts,
        causes: Amounts,
        step: float | None,
    ) -> tuple[Value, ...]:
        first = losses_of(states, causes)[0]
        most = (first.cause or first.state) if first.given_back >= CLEARLY * held(states) else "-"
        return (
            name,
            clock(start),
            lasted,
            float(gpus),
            _useful(states),
            _known_lost(states),
            *view.cost(_known_lost(states)),
            step,
            most,
        )

    rows = [
        row(
            "this run",
            view.run.first,
            view.run.seconds,
            view.gpus,
            view.states,
            view.causes,
            _step(past),
        ),
        *(
            row(one.name, one.start, one.seconds, one.gpus, one.states, one.causes, one.step)
            for one in past.earlier
        ),
    ]
    slurm = view.run.job.workload.startswith(SLURM)
    which = "the user's last Slurm jobs with as many GPUs" if slurm else "the last of its name"
    days = asked.EARLIER // DAY
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


def others(view: JobView) -> ReportSection:
    """The run beside other jobs that do the same on as many GPUs."""
    past = view.past
    shares = sorted(
        share for states in past.others.values() if (share := _useful(states)) is not None
    )
    work = words.KINDS.get(kind(past), "")
    days = asked.SHAPE // DAY
    if not work or kind(past) == "unknown":
        says = "What kind of work it does is not known, so there are no others to compare with."
    elif len(shares) < FEWEST_OTHERS:
        says = (
            f"{counted(len(shares), 'other job')} ({work}) with {counted(view.gpus, 'GPU')} "
            f"within {days} days: too few to compare with."
        )
    else:
        own = _useful(view.states)
        better = sum(share > (own or 0.0) for share in shares)
        says = (
            f"Of {len(shares)} other jobs ({work}) with {counted(view.gpus, 'GPU')} within "
            f"{days} days, {better} made more use of them."
        )
    enough = len(shares) >= FEWEST_OTHERS
    quarters = statistics.quantiles(shares, n=4, method="inclusive") if enough else []
    return ReportSection(
        "others",
        "Beside others of its shape",
        says,
        (
            Figure("own", "Useful here", _useful(view.states), "share"),
            *(
                Figure(name, title, value, "share", asked.of_shape(past))
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
    rows = _changed(view, before) if before else ()
    says = []
    if past.lost_since is not None and past.lost_since > view.run.first + past.length:
        says.append(f"Clearly more is lost since {clock(past.lost_since)} UTC than before.")
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


def _slower(past: RunPast) -> str:
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
        f"A step took {written(first, 'seconds')} in the first third of the run and "
        f"{written(last, 'seconds')} in the last."
    )


def _changed(view: JobView, before: EarlierRun) -> tuple[tuple[Value, ...], ...]:
    past = view.past
    rows: list[tuple[Value, ...]] = []

    def put(what: str, then: str, now: str) -> None:
        if then != now:
            rows.append((what, then, now))

    then_of, now_of = _by_thing(before.versions), _by_thing(past.versions)
    for what in sorted({*then_of, *now_of}):
        put(what, then_of.get(what, "not known"), now_of.get(what, "not known"))
    put("GPUs", str(before.gpus), str(view.gpus))
    put("nodes", _nodes(before.nodes), _nodes(past.nodes))
    then, now = (_useful(one) for one in (before.states, view.states))
    if then is not None and now is not None and abs(now - then) >= CLEARLY / 2:
        put("useful", written(then, "share"), written(now, "share"))
    step = _step(past)
    if before.step and step and abs(step / before.step - 1) >= CLEARLY / 2:
        put("step", written(before.step, "seconds"), written(step, "seconds"))
    return tuple(rows)


def _by_thing(versions: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Versions in words, by what they are of."""
    found: dict[str, list[str]] = {}
    for what, version in sorted(versions):
        found.setdefault(what, []).append(shown(version))
    return {what: ", ".join(all_of) for what, all_of in found.items()}


def _nodes(nodes: Iterable[str]) -> str:
    names = sorted(map(shown, nodes))
    more = f" and {len(names) - MOST_PLACES} more" if len(names) > MOST_PLACES else ""
    return ", ".join(names[:MOST_PLACES]) + more


def _useful(states: Amounts) -> float | None:
    """The share of the GPU hours that was useful, of those of which anything is known."""
    return ratio(useful(states), held(states) - states.get("unknown", 0.0))


def _known_lost(states: Amounts) -> float:
    """GPU hours that are known to be lost."""
    return lost(states) - states.get("unknown", 0.0)


def _back(one: Held) -> str:
    if one.given_back is None or one.at_least is None:
        return f"up to {number(one.back)}"
    return f"{number(one.given_back)} ({number(one.at_least)} to {number(one.at_most or 0.0)})"
