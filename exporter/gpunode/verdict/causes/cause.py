"""What a cause is: all that gpunode knows of it and says about it, in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpunode.metric import Metric
from gpunode.verdict.case import Case, Evidence
from gpunode.verdict.guidance import Family, Guidance, Urgency
from gpunode.words import CAUSES, CLOSER

MIN_LOSS = 0.1
"""Minimum share of time for a loss to count."""

BOUND = 0.5
"""Minimum share of time for a resource to count as bounding the work."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The share of time that a cause affects, and the evidence."""

    share: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A look for what explains time without work: it finds evidence or none.

    Of several with evidence, the one of the lowest rank is named: first what can be nothing else,
    as a process that is stopped, and last what is only likely, as a busy CPU.
    """

    look: Callable[[Case], Iterable[Evidence]]
    rank: int
    of_idle: bool = False
    """Whether it is looked for where the GPU has run nothing for a while, and nobody may want
    anything of it."""

    def evidence(self, case: Case) -> tuple[Evidence, ...]:
        """All that the look finds."""
        return tuple(self.look(case))


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A look for a loss that is measured by itself; the largest is named."""

    look: Callable[[Case], Effect | None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A look for what bounds the work itself; the first is named, if no time is lost."""

    look: Callable[[Case], Effect | None]


def state_loss(state: str, least: float) -> OwnLoss:
    """A look that needs only the ledger: a state that takes at least this share of the time."""

    def look(case: Case) -> Effect | None:
        share = case.shares[state]
        return Effect(share, (case.state(state, least),)) if share >= least else None

    return OwnLoss(look)


GAPS = ("starved", "idle")
"""States of gaps between kernels: which of them a gap is depends on how long the GPU has rested."""

RESIDUE = 0.1
"""Share of the time that such gaps take in a job that nothing holds up: the median of the pairs of
``docs/performance/gain.jsonl``."""


def share_without(states: Iterable[str], case: Case) -> float | None:
    """The share of its time that a job takes without some states; None if nobody wants that time.

    Of gaps, whatever their length, it keeps what every job has.
    """
    if not (given := set(states)) or "idle" in given:
        return None
    gone = given.union(GAPS) if given.intersection(GAPS) else given
    rest = 1.0 - sum(case.shares[state] for state in gone)
    return rest / (1.0 - RESIDUE) if gone.issuperset(GAPS) else rest


def share_without_host(case: Case) -> float | None:
    """What is left if the host does what made the GPU wait elsewhere, and copies nothing for it."""
    return share_without(("starved", "copy"), case)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about a cause for good, and the states of the ledger that give back their time."""

    states: tuple[str, ...]
    do: str

    left: Callable[[Case], float | None] | None = None
    """The share of its time in which the job does the same once that is done; None if it cannot be
    told. Without a function, that is what ``share_without`` leaves of the states."""

    unsure: float = 0.05
    """Standard error of what comes back, as a share of it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds GPUs up, with the looks that find it."""

    name: str
    """The value of the label ``cause``."""

    named_when: str
    """What must be seen for it to be named, for the documents."""

    urgency: Urgency

    family: Family
    """Whose hue it has where it is shown."""

    looks: tuple[Explanation | OwnLoss | Bounds, ...] = ()

    closer: Metric | None = None
    """The metric of which a series among the evidence lets more be said: ``words.CLOSER``."""

    uses: tuple[Metric, ...] = ()
    """The metrics that its looks ask for, without the ledger, which every case has."""

    remedy: Remedy | None = None
    """For who decides about the fleet; None if there is nothing to mend."""

    ends_by_itself: bool = False
    """Whether a GPU that starves for it needs nobody: JobStarved is silent."""

    refines: tuple[str, ...] = ()
    """The causes of the same loss that are named until there is evidence for this one."""

    slows_its_gpu: bool = False
    """Whether it makes this GPU or its host slow, rather than its share of the model larger:
    JobStraggler tells of it."""

    waits_for_peers: bool = False
    """Whether a GPU that has it waits for another, which is to be shown first."""

    uncertain: bool = False
    """Whether nothing that the job uses on this node is at its limit, as far as was seen."""

    @property
    def meaning(self) -> str:
        """In a few words, for the API and the report."""
        return CAUSES[self.name].sentence

    @property
    def guidance(self) -> Guidance:
        """For who is on call."""
        return Guidance(self.urgency, CAUSES[self.name])

    @property
    def costs(self) -> bool:
        """Whether time is lost to it, or would come back if it were mended."""
        bounds = all(isinstance(look, Bounds) for look in self.looks)
        return self.uncertain or not bounds or bool(self.remedy and self.remedy.left)

    @property
    def stands_still(self) -> bool:
        """Whether nothing goes on while it lasts: it is told at once, and so is its end."""
        return self.urgency == "now"

    @property
    def explains(self) -> bool:
        """Whether it is named for time without work."""
        return self.uncertain or any(isinstance(look, Explanation) for look in self.looks)

    def says(self, evidence: Iterable[Evidence]) -> Guidance:
        """What is said of it, as closely as the evidence tells."""
        names = {one.series.partition("{")[0] for one in evidence}
        closer = self.closer is not None and self.closer.name in names
        return Guidance(self.urgency, CLOSER[self.name]) if closer else self.guidance

    @property
    def gives_back(self) -> tuple[str, ...]:
        """The states of the ledger whose time comes back when it is mended."""
        return self.remedy.states if self.remedy else ()
