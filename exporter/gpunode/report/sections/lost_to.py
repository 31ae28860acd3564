"""What took the GPU hours of a fleet that were lost, and what of them comes back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpunode.report.history import Amounts, JobHours
from gpunode.report.sections.losses import taken
from gpunode.report.sections.nodes import waited_for
from gpunode.report.view import LOSSES, PeriodView, added, held, owner, ratio
from gpunode.report.words import REMEDIES, headline, number
from gpunode.verdict.causes.communication import STRAGGLER
from gpunode.verdict.causes.host import NO_REQUESTS
from gpunode.verdict.causes.limits import POWER, THERMAL
from gpunode.words import STATES

HALF = 0.5
"""Share of its time from which on a job that runs nothing might give its GPUs back, and of what is
lost to waiting from which on nodes explain it."""

NAMED = 3
OPERATORS = "whoever runs the nodes"
OF_OPERATORS = (THERMAL.name, POWER.name)
OTHERS, NO_CAUSE, EXCHANGE, IDLE, UNMEASURED = (
    "others",
    "no_cause",
    "exchange",
    "idle",
    "unmeasured",
)
WITHOUT_CAUSE = {
    "communication": EXCHANGE,
    "copy": EXCHANGE,
    "blocked": NO_CAUSE,
    "starved": NO_CAUSE,
    "idle": IDLE,
    "unknown": UNMEASURED,
}
"""By state: what it counts as where no verdict names a cause."""

CAUSE_TEXTS = {
    OTHERS: ("Other causes", ""),
    NO_CAUSE: ("No cause known", STATES["starved"].for_good),
    EXCHANGE: ("Other communication and copies", ""),
    IDLE: ("Held, and nothing runs", STATES["idle"].for_good),
    UNMEASURED: ("Not measured: sensors lack", STATES["unknown"].for_good),
}
"""What is said of what no verdict names, and what helps."""


class Back(NamedTuple):
    """GPU hours that come back, as estimated, and their bounds."""

    estimate: float = 0.0
    at_least: float = 0.0
    at_most: float = 0.0


@dataclass(frozen=True, slots=True)
class LostTo:
    """Lost GPU hours of a cause, or of a state that none explains, and what of them comes back."""

    name: str
    states: Amounts
    """Empty for a cause that makes useful time longer, and takes none of its own."""

    cost: float
    back: Back
    owners: Mapping[str, float]
    nodes: tuple[str, ...] = ()
    measured: bool = False
    """Whether what comes back is counted, or else estimated by verdicts."""

    @property
    def lost(self) -> float:
        return sum(self.states.values())

    @property
    def what(self) -> str:
        """What it is, for somebody who does not know its name."""
        return CAUSE_TEXTS[self.name][0] if self.name in CAUSE_TEXTS else headline(self.name)

    @property
    def remedy(self) -> str:
        return CAUSE_TEXTS[self.name][1] if self.name in CAUSE_TEXTS else REMEDIES[self.name].do

    def ask(self) -> str:
        """Who can mend it: who runs the nodes, or the owners that lost most."""
        if self.nodes:
            return f"{OPERATORS}: {', '.join(self.nodes)}"
        if self.name in OF_OPERATORS or not self.owners:
            return OPERATORS
        ranked = sorted(self.owners.items(), key=lambda item: (-item[1], item[0]))
        named = ", ".join(f"{name} ({number(hours)})" for name, hours in ranked[:NAMED])
        return f"{named} and {len(ranked) - NAMED} more" if len(ranked) > NAMED else named

    def sure(self) -> str:
        """How sure it is what comes back."""
        bounds = f"{number(self.back.at_least)} to {number(self.back.at_most)}"
        if not self.back.at_least:
            return f"at most {number(self.back.at_most)}"
        return f"{bounds}, counted" if self.measured else f"{bounds} (90\u202f%)"


def lost_to(view: PeriodView) -> list[LostTo]:
    """By cause, or by state where none is known, the most first; together all that was lost."""
    jobs: dict[tuple[str, str], float] = defaultdict(float)
    owners: dict[str, Amounts] = defaultdict(lambda: defaultdict(float))
    unused: Amounts = defaultdict(float)
    for job, past in view.past.jobs.items():
        for (state, cause), hours in taken(past.states, past.causes).items():
            if hours:
                jobs[state, cause] += hours
                name = cause or WITHOUT_CAUSE[state]
                owners[name][owner(job)] += hours
                unused[name] += hours if runs_nothing(past) else 0.0
    by_name: dict[str, Amounts] = {name: {} for name in view.past.gains if name in REMEDIES}
    for state in LOSSES:
        whole, of_jobs = view.total.get(state, 0.0), _in(state, jobs)
        fits = min(1.0, whole / sum(of_jobs.values())) if of_jobs else 1.0
        no_cause = WITHOUT_CAUSE[state]
        of_jobs[no_cause] = of_jobs.get(no_cause, 0.0) + max(0.0, whole - sum(of_jobs.values()))
        for name, hours in of_jobs.items():
            by_name.setdefault(name, {})[state] = hours * fits
    found = [
        LostTo(
            name,
            states,
            sum(hours * (view.price_in(state) or 0.0) for state, hours in states.items()),
            _back(name, states, view.past.gains.get(name), unused[name]),
            owners[name],
            _nodes(view, sum(states.values())) if name == STRAGGLER.name else (),
            measured=_idles(name),
        )
        for name, states in by_name.items()
    ]
    return sorted(found, key=lambda one: (-one.lost, -one.back.estimate, one.name))


def _in(state: str, hours: Mapping[tuple[str, str], float]) -> Amounts:
    """The hours of one state by cause."""
    return {cause or WITHOUT_CAUSE[state]: one for (of, cause), one in hours.items() if of == state}


def _nodes(view: PeriodView, lost: float) -> tuple[str, ...]:
    """The nodes for which others waited, if they explain half of what was lost to waiting."""
    found = waited_for(view)[:NAMED]
    enough = sum(one.waited for one in found) >= HALF * lost
    return tuple(view.node_name(one.node) for one in found) if enough else ()


def _idles(name: str) -> bool:
    """Whether its time comes back by giving GPUs back, so that no job runs faster."""
    return name in (IDLE, NO_REQUESTS.name)


def _back(name: str, states: Amounts, gains: Mapping[str, float] | None, unused: float) -> Back:
    lost = sum(states.values())
    if _idles(name):
        return Back(min(lost, unused), min(lost, unused), lost)
    if gains:
        most = lost if REMEDIES[name].states else float("inf")
        return Back(*(min(most, gains.get(one, 0.0)) for one in ("estimate", "lower", "upper")))
    return Back(lost, 0.0, lost) if name in REMEDIES else Back()


def together(parts: Iterable[LostTo], name: str = OTHERS) -> LostTo:
    """Several as one."""
    of = tuple(parts)
    back = Back(*(sum(one) for one in zip(*(part.back for part in of), strict=True)))
    return LostTo(name, added(one.states for one in of), sum(one.cost for one in of), back, {})


def worth(one: LostTo, view: PeriodView) -> float:
    """The price of what comes back."""
    price = ratio(one.cost, one.lost) if one.lost else view.price
    return one.back.estimate * (price or 0.0)


def runs_nothing(past: JobHours) -> bool:
    """Whether a job ran nothing for so much of its time that its GPUs might be given back."""
    return past.states.get("idle", 0.0) >= HALF * held(past.states) > 0
