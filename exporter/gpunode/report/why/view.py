"""A job as the answer looks at it, and what held it up."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpunode.report import job as asked
from gpunode.report import words
from gpunode.report.document import TableColumn, Value
from gpunode.report.history import Amounts
from gpunode.report.job import GpuProcess, JobGpu, LateGpu, RunQuery, RunRecord
from gpunode.report.sections.losses import Loss, losses_of, share_of
from gpunode.report.view import added, clean, held, lost, ratio, useful
from gpunode.report.words import as_text, clock, lasting
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.cause import MIN_LOSS as CLEARLY
from gpunode.verdict.causes.communication import STRAGGLER
from gpunode.verdict.reasons import REASONS, Reason
from gpunode.words import CAUSES as TOLD
from gpunode.words import Words

MIN_CAUSE_SHARE = 0.05
"""Share of a job's hours from which on a cause is listed."""

SHORT = 600
"""Seconds of a run below which rates over five minutes say little of it."""

MAX_PLACES = 3

SLOW_PARTS = (
    "GpuHot",
    "GpuMemoryHot",
    "GpuSlow",
    "GpuThrottled",
    "GpuUnhealthy",
    "NodeSlow",
    "NvlinkFaulty",
    "PcieFaulty",
    "RdmaErrors",
)
"""Alerts about a GPU or its node that say that the node itself is slow."""

UNSURE = 2.0
"""Times its lower bound from which on the upper one says that nobody knows the figure."""

EQUAL_SHARE = 0.005
"""Share of the time by which two causes differ that took as much."""

OWN_STATES = {
    "communication": "communicating",
    "blocked": "waiting for peers",
    "copy": "copying",
    "starved": "starved",
    "idle": "idle",
}

PID = re.compile("`([^`]*)PID`")
"""A command of a remedy that ends in the PID of the process on the GPU."""

BALANCE = "See what the rank does for which the others wait, or balance the work between the ranks."


@dataclass(frozen=True, slots=True)
class RegainedHours:
    """GPU hours that would come back without a cause, of those held while it lasted."""

    held: float
    at_most: float | None
    """None if nobody can tell what would come back."""

    estimate: float | None = None
    """Where the verdicts made one that is less than what the cause took."""

    at_least: float | None = None
    capped: bool = False
    """Whether there is an estimate, but of no less than what it took."""

    @property
    def hours(self) -> float:
        """What would come back: as estimated, or at most."""
        return (self.at_most or 0.0) if self.estimate is None else self.estimate

    @property
    def faster(self) -> str:
        """How many times as fast the job would have been, where there is an estimate."""
        likely = _written(self._times(self.hours))
        if self.estimate is None:
            return f"at most {likely} times as fast" if self.capped else ""
        low, high = (self._times(one) for one in (self.at_least or 0.0, self.at_most or self.hours))
        if high >= UNSURE * low:
            return f"at least {_written(low)} times as fast"
        return f"{likely} times as fast ({_written(low)} to {_written(high)})"

    def _times(self, back: float) -> float:
        """A speed-up."""
        return self.held / (self.held - back) if back < self.held else math.inf


def _written(times: float) -> str:
    """A speed-up; what is next to none has a digit more."""
    if times == math.inf:
        return "many"
    return f"{times:.1f}" if times >= 1 + CLEARLY else f"{times:.2f}"


@dataclass(frozen=True, slots=True)
class CauseHours:
    """A cause of a job's delay: how long it was named, and what would come back without it."""

    name: str
    """A cause, or a state of the ledger that no verdict explains."""

    named: float
    took: float
    """GPU hours of the states that it takes; of a cause that takes none, what would come back."""

    back: RegainedHours
    remedy: str
    share: str
    """The share of the time, in words."""

    measured: tuple[str, ...] = ()
    began: int | None = None
    when: str = ""
    where: str = ""
    lately: RegainedHours | None = None
    """What would come back of the last half hour; None if the run has ended or is shorter, or if
    the cause was not named."""

    late: str = ""
    """The GPU that is waited for, and what holds it up itself."""

    @property
    def seen(self) -> tuple[str, ...]:
        """When, where and from what it was seen."""
        return tuple(filter(None, (self.when, self.where, *self.measured)))


class JobView:
    """A run as the sections look at it."""

    def __init__(self, past: RunRecord, price: float | None) -> None:
        self.past = past
        self.run = past.run
        self.price = price
        self.states = added(past.states.values())
        self.causes = _move_awaited(past)
        """GPU hours by cause; the GPU for which others hang counts to the hang."""

        self.short = self.run.seconds < SHORT and not self.run.cut
        """Whether nothing is told of its shares yet, as a rate says little of so short a time."""

        self.held = held(self.states)
        self.unknown = self.states.get("unknown", 0.0)
        self.lost = known_lost(self.states)
        self.gpus = max(past.gpus.values(), default=0)
        self.missing = self.run.missing if self.held > 0 else self.run.seconds
        """Seconds of which nothing is recorded."""

        self.judged = ratio(sum(self.causes.values()), self.held) or 0.0
        """The share of its GPU hours for which there are verdicts."""

        self.held_up = [
            one
            for one in sorted(self._held_up(), key=lambda one: (-one.took, -one.named))
            if self.held > 0 and max(one.took, one.named) >= MIN_CAUSE_SHARE * self.held
        ]

        first = self.held_up[0].took if self.held_up else 0.0
        self.most = [
            one
            for one in self.held_up
            if one.took >= CLEARLY * self.held and is_as_much(one.took, first, self.held)
        ]
        """What took most of its time: several where none took more than the others."""

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
        users = ", ".join(map(clean, self.past.users))
        of = f" of {users}" if users and "@" not in self.run.job.workload else ""
        return f"{self.run.job}{of}"

    def _held_up(self) -> Iterator[CauseHours]:
        losses = losses_of(self.states, self.causes)
        for loss in losses:
            if loss.cause:
                yield self._cause_hours(loss.cause, loss)
            elif loss.state == "unknown":
                back = RegainedHours(self.held, None)
                yield CauseHours("unknown", self.unknown, 0.0, back, loss.remedy, loss.evidence)
            else:
                took = loss.given_back
                back = RegainedHours(self.held, took)
                yield CauseHours(loss.state, took, took, back, loss.remedy, loss.evidence)
        taken = {loss.cause for loss in losses}
        for cause, hours in self.causes.items():
            if cause not in taken and cause in words.REMEDIES and hours > 0:
                yield self._cause_hours(cause, None)

    def _cause_hours(self, cause: str, loss: Loss | None) -> CauseHours:
        past, hours = self.past, self.causes[cause]
        took = min(loss.given_back, hours) if loss else None
        back = _regained_hours(self.held, took, past.gains.get(cause, {}))
        windows = sorted(at for at, causes in past.causes.items() if causes.get(cause))
        began = past.begin(windows[0])
        measured = list(past.facts.get(cause, []))
        if CAUSES[cause].waits_for_peers:
            measured += self._awaited(cause)
        if CAUSES[cause].stands_still and past.stalled:
            measured.append(f"no GPU of the job worked for {lasting(past.stalled)}")
        places = sorted(past.places.get(cause, {}).items(), key=lambda item: -item[1])
        return CauseHours(
            cause,
            hours,
            (back.estimate or 0.0) if took is None else took,
            back,
            self.remedy(cause),
            share_of(loss.state, self.states) if loss else "",
            tuple(measured),
            began,
            f"from {clock(began)} to {clock(windows[-1])} UTC",
            self._places_text([place for place, _ in places], CAUSES[cause].waits_for_peers),
            lately=self._lately(cause),
            late=self._late_text() if cause == STRAGGLER.name else "",
        )

    def _lately(self, cause: str) -> RegainedHours | None:
        """What would come back by the last half hour, if the cause was named in it."""
        lately = self.past.lately
        if lately is None or not (hours := lately.causes.get(cause)):
            return None
        losses = {loss.cause: loss for loss in losses_of(lately.states, lately.causes)}
        took = min(losses[cause].given_back, hours) if cause in losses else None
        return _regained_hours(held(lately.states), took, lately.gains.get(cause, {}))

    def remedy(self, cause: str) -> str:
        """What helps in this job: of one that waits for a GPU, what helps that."""
        if cause == STRAGGLER.name:
            return self._remedy_of_late(self.past.late) if self.past.late else BALANCE
        hangs = CAUSES[cause].waits_for_peers and CAUSES[cause].stands_still
        if hangs and self.run.goes_on and (reasons := self._by_reason()):
            return self.remedy_of(*reasons[0])
        places = self.past.places.get(cause, {})
        return self._done(TOLD[cause], max(places, key=lambda place: places[place], default=None))

    def remedy_of(self, place: JobGpu, reason: Reason) -> str:
        """What helps a GPU that is waited for."""
        return self._done(reason.guidance.words, place)

    def _done(self, said: Words, place: JobGpu | None) -> str:
        """What the owner of the job can do without root, and what to ask the operator for.

        Of a run that has ended, what helps the next one. Commands have the node of the GPU that is
        meant, and its PID if that is known.
        """
        if not self.run.goes_on and said.for_good:
            return said.for_good
        ask = f"Ask the operator: {said.operator}" if said.operator else ""
        return PID.sub(lambda found: self._on(found, place), f"{said.yourself} {ask}".strip())

    def _on(self, command: re.Match[str], place: JobGpu | None) -> str:
        """A command that ends in a PID, as it is to be given."""
        on = clean(place.instance) if place else "its node"
        if place and (process := self.process_of(place)):
            return f"`{command[1]}{process.pid}` on {on}"
        gpu = f" --gpu {clean(place.gpu)}" if place else ""
        stacks = command[1].startswith("gpunode stacks")
        return f"`gpunode stacks{gpu}` on {on}" if stacks else command[0]

    def process_of(self, place: JobGpu) -> GpuProcess | None:
        """The process on a GPU that is waited for now, if it is known."""
        awaited = [first[:2] for first, _ in self.past.awaited_now[:1]]
        return self.past.process_awaited if place[:2] in awaited else None

    def _remedy_of_late(self, late: LateGpu) -> str:
        says = ""
        if late.cause in TOLD:
            says = self._done(TOLD[late.cause], late.place)
        elif alerts := self._slow_parts(late):
            says = f"Ask the operator to look at this node, for {' and '.join(alerts)}."
        elif late.reason in REASONS:
            says = self.remedy_of(late.place, REASONS[late.reason])
        return f"On {clean(str(late.place))}: {says}" if says else BALANCE

    def _slow_parts(self, late: LateGpu) -> list[str]:
        """The alerts by which the GPU that is waited for, or its node, is slow itself."""
        instance, gpu, _ = late.place
        return sorted(
            fired.alert
            for fired in self.past.alerts
            if fired.alert in SLOW_PARTS and fired.instance == instance and fired.gpu in ("", gpu)
        )

    def _places_text(self, places: list[JobGpu], wait: bool) -> str:
        """The GPUs, those that have it most first."""
        on = "waiting:" if wait else "on"
        if len(places) > MAX_PLACES and len(places) >= self.gpus:
            return f"{on} all {self.gpus} GPUs"
        more = f" and {len(places) - MAX_PLACES} more" if len(places) > MAX_PLACES else ""
        listed = ", ".join(clean(str(place)) for place in places[:MAX_PLACES])
        return f"{on} {listed}{more}" if places else ""

    def _by_reason(self) -> list[tuple[JobGpu, Reason]]:
        """The GPUs that were waited for and why, the longest first."""
        waited = sorted(self.past.awaited.items(), key=lambda item: -item[1])
        return [(place, REASONS[reason]) for (place, reason), _ in waited if reason in REASONS]

    def _awaited(self, cause: str) -> list[str]:
        """For which GPUs the others waited and why, without the one that is told apart."""
        late = self.past.late if cause == STRAGGLER.name else None
        return [
            f"{clean(str(place))} was waited for: {reason.meaning}"
            for place, reason in self._by_reason()
            if late is None or place[:2] != late.place[:2]
        ][:MAX_PLACES]

    def _late_text(self) -> str:
        """The GPU that the others waited for, and what holds it up itself."""
        late = self.past.late
        if late is None:
            return ""
        states = {
            state: share
            for state, share in late.states.items()
            if state in OWN_STATES and state != "blocked"
        }
        state = max(states, key=lambda name: states[name], default="")
        goes_on = self.run.goes_on
        says = [f"{clean(str(late.place))} {'is' if goes_on else 'was'} waited for"]
        if late.waits is not None and late.others_wait is not None:
            says.append(
                f"it {'waits' if goes_on else 'waited'} {as_text(late.waits, 'share')} of the time "
                f"itself, the others {as_text(late.others_wait, 'share')}"
            )
        own = CAUSES[late.cause].meaning if late.cause in CAUSES else ""
        if state and states[state] >= CLEARLY:
            does = f"{'is' if goes_on else 'was'} {OWN_STATES[state]}"
            why = f": {rest}" if (rest := own.removeprefix(f"{state}: ")) != own else ""
            says.append(f"it {does} {as_text(states[state], 'share')} of the time{why}")
            own = "" if why else own
        if own:
            says.append(own)
        elif not late.cause and late.reason in REASONS:
            says.append(REASONS[late.reason].meaning)
        if alerts := self._slow_parts(late):
            says.append(f"alerts about it: {', '.join(alerts)}")
        return "; ".join(says)


def _move_awaited(past: RunRecord) -> Amounts:
    """GPU hours by cause, where those of a GPU for which others hang are of the hang.

    Its own verdict names what stopped it, or nothing.
    """
    causes = added(past.causes.values())
    standing = [name for name in causes if name in CAUSES and CAUSES[name].stands_still]
    hangs = [name for name in standing if CAUSES[name].waits_for_peers]
    stops = [name for name in standing if name not in hangs]
    for hang in hangs:
        left = sum(_awaited_hours(hang, stops, past, end) for end in past.causes)
        for cause in (*stops, NONE.name):
            moved = min(left, causes.get(cause, 0.0))
            causes[cause] = causes.get(cause, 0.0) - moved
            causes[hang] += moved
            left -= moved
    return causes


def _awaited_hours(hang: str, stops: Iterable[str], past: RunRecord, end: int) -> float:
    """GPU hours of a window that the GPUs had for which others hung, as told or by their causes."""
    causes = past.causes[end]
    hung = causes.get(hang, 0.0)
    waits = sum(causes[name] for name in causes if name in CAUSES and CAUSES[name].waits_for_peers)
    if hung <= 0:
        return 0.0
    awaited = past.awaited_in.get(end, 0.0) * hung / waits
    stopped = sum(causes.get(name, 0.0) for name in stops)
    rest = known_lost(past.states.get(end, {})) - hung
    return max(0.0, min(rest, max(awaited, stopped)))


def _regained_hours(held_for: float, took: float | None, gain: Amounts) -> RegainedHours:
    """What would come back of a cause that took so many GPU hours, or takes none of any state."""
    most = held_for if took is None else took
    at_most = min(most, gain["upper"]) if "upper" in gain else took
    if gain.get("estimate", most) < most:
        return RegainedHours(held_for, at_most, gain["estimate"], gain.get("lower"))
    return RegainedHours(held_for, at_most, capped="estimate" in gain)


def node_list(nodes: Iterable[str]) -> str:
    """Nodes by their names: the first, and how many more."""
    names = sorted(map(clean, nodes))
    more = f" and {len(names) - MAX_PLACES} more" if len(names) > MAX_PLACES else ""
    return ", ".join(names[:MAX_PLACES]) + more


def is_as_much(hours: float, most: float, whole: float) -> bool:
    """Whether one part of the whole is as large as the largest."""
    return most - hours < EQUAL_SHARE * whole


def useful_share(states: Amounts) -> float | None:
    """The share of the GPU hours that was useful, of those of which anything is known."""
    return ratio(useful(states), held(states) - states.get("unknown", 0.0))


def known_lost(states: Amounts) -> float:
    """GPU hours that are known to be lost."""
    return lost(states) - states.get("unknown", 0.0)
