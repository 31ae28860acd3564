"""What real GPUs did, second by second, for the jobs of scenarios that are not to look ideal.

A job that ``plays`` a program draws a recorded window of it for each scrape. Its shares are those
that the ledger gives the window, with whatever it gets wrong, and its draw is the measured one. All
GPUs of a job play the same run of the program; its two GPUs are the two roles of a job's GPUs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from gpunode.gpu.ledger import short_gaps, split
from tests.windows.programs import REHEARSED
from tests.windows.recorded import FOLDER, WindowRecord, load

AS_TRAINED = ("trains", "accumulates", "validates now and then", "diverges", "trains on NaN")
"""Behaviours that play the program which the job names."""

LOWER_CLOCKS = ("thermal", "power")
"""Causes by which a GPU is slow at work; the slow rank that was recorded is slow on its CPU."""

RECORDED: Mapping[str, str] = {
    "starves": "DDP ResNet, JPEG files",
    "straggles": "a slow rank/1",
    "waits for a straggler": "a slow rank/0",
    "communicates": "DDP without P2P",
    "is a stage": "pipeline with bubbles",
    "evaluates": "rank 0 evaluates/0",
    "evaluates and says nothing": "rank 0 evaluates/0",
    "waits": "rank 0 evaluates/1",
    "saves": "checkpoint, synchronous/0",
    "compiles": "torch.compile",
    "hangs": "a stopped rank/0",
    "hangs in its evaluation": "a stopped rank/0",
    "is late": "a stopped rank/1",
    "serves": "serving random requests",
    "decodes": "decoding with CUDA graphs",
}
"""What a job that plays something plays for other behaviours; the rest it does as ever."""

PROGRAM = re.compile(r"(?P<family>.+), GPU (?P<role>\d+), (?P<run>r\d+)")


@dataclass(frozen=True, slots=True)
class Moment:
    """What a window shows."""

    states: Mapping[str, float]
    short_gaps: float
    """How much of the time is ``starved`` in gaps that are short."""

    watts: float | None


def mean(moments: Sequence[Moment]) -> Moment:
    """What several windows show together."""
    states = dict.fromkeys(state for one in moments for state in one.states)
    watts = [one.watts for one in moments if one.watts is not None]
    return Moment(
        {state: fmean(one.states.get(state, 0.0) for one in moments) for state in states},
        fmean(one.short_gaps for one in moments),
        fmean(watts) if watts else None,
    )


Runs = Mapping[str, Mapping[str, tuple[Moment, ...]]]


@cache
def programs() -> Mapping[str, Runs]:
    """Every program: its runs, the roles in each, and the windows of each role."""
    found: dict[str, dict[str, dict[str, list[Moment]]]] = {}
    for path in sorted(FOLDER.glob(f"{REHEARSED}*.jsonl.gz")):
        for one in load(path):
            if program := PROGRAM.fullmatch(one.program):
                run = f"{path.stem} {program['run']}"
                roles = found.setdefault(program["family"], {}).setdefault(run, {})
                roles.setdefault(program["role"], []).append(_moment(one))
    return {
        family: {
            run: {role: tuple(moments) for role, moments in roles.items()}
            for run, roles in runs.items()
        }
        for family, runs in found.items()
    }


def recording(behaviour: str, plays: str, cause: str) -> str:
    """What a job that ``plays`` a program plays for a behaviour with a cause, if anything."""
    if not plays:
        return ""
    works_all_the_time = behaviour == "straggles" and cause in LOWER_CLOCKS
    if behaviour in AS_TRAINED or works_all_the_time:
        return plays
    return RECORDED.get(behaviour, "")


def windows(what: str, rank: int, seed: str) -> tuple[Moment, ...]:
    """The windows that a rank draws from; ``a slow rank/1`` says which role it has.

    The same seed gives all ranks the same run. Raises ``LookupError`` for a program or a role that
    was not recorded.
    """
    family, _, role = what.partition("/")
    if family not in programs():
        raise LookupError(f"no program {family!r} was recorded")
    most = max(len(roles) for roles in programs()[family].values())
    runs = [roles for roles in programs()[family].values() if len(roles) == most]
    chosen = random.Random(f"{seed} {family}").choice(runs)
    if role and role not in chosen:
        raise LookupError(f"{family!r} has no role {role!r}")
    return chosen[role or sorted(chosen)[rank % most]]


def _moment(one: WindowRecord) -> Moment:
    power = one.window.power
    watts = [drawn for _, drawn in power.samples] if power else []
    shares = split(one.window)
    short = shares["starved"] if short_gaps(one.window, shares) else 0.0
    total = sum(shares.values())
    states = {state: round(share / total, 6) for state, share in shares.items() if share}
    return Moment(states, short, sum(watts) / len(watts) if watts else None)
