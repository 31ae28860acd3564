"""An incident: what happened on a node, from ten minutes before until some minutes after."""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from gpunode import words
from gpunode.incidents.history import GpuHistory
from gpunode.text import printable
from gpunode.verdict.case import Evidence, WaitedFor
from gpunode.verdict.shortages import NodeFigure
from gpunode.verdict.where import StackLook

Kind = Literal["stall", "slow", "gpu_lost", "xid", "out_of_memory", "crash_loop"]

KINDS: dict[Kind, str] = {kind: words.INCIDENTS[kind] for kind in get_args(Kind)}
"""The kinds, with what each means."""

Time = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
"""Seconds since the epoch."""

What = Literal["finding", "verdict", "where", "process", "kernel", "nccl"]

ID = re.compile(
    r"[0-9]{8}T[0-9]{6}Z-[a-z]{1,16}(?:_[a-z]{1,16}){0,2}-[0-9a-z]{1,8}(?:-[0-9]{1,4})?"
)
"""The identity of an incident: when it began, its kind and its first GPU. It names a file."""

MAX_TEXT = 512
"""Characters of a text that is kept."""

MAX_JSON_BYTES = 8 << 20
"""Bytes of an incident as JSON that are read."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened on the node at a time, in seconds since the epoch."""

    time: Time
    what: What
    text: str
    gpus: tuple[str, ...] = ()
    """The indices of the GPUs that it is about."""


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A process that was on a GPU of the incident, and its end where that is known."""

    gpu: str
    pid: int
    start: float
    """Ticks since boot, which tell it from another that had its PID."""

    rank: str
    owner: str
    seen: Time
    """When it was first seen, in seconds since the epoch."""

    gone: Time | None = None
    """When it was first missed; None while it is there."""

    end: str = ""
    """How it ended, as the kernel tells; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class Brief:
    """An incident in short. Times are in seconds since the epoch."""

    id: str
    kind: Kind
    node: str
    began: Time
    over: Time | None
    """When it was last seen to go on; None while it does."""

    complete: bool
    """Whether nothing is added any more."""

    title: str
    where: str
    """Where the processes stand, in a sentence; empty if that is not known."""

    gpus: tuple[str, ...]
    owners: tuple[str, ...]
    tape_bytes: int
    """Size of its tape; 0 if it has none."""


PRICE_PARTS = ("waiting", "starting", "repeating")
"""Of what an incident costs: without work, from a new start to the first step, and what the job
does again."""

GpuSeconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Price:
    """What an incident cost on its node, in GPU seconds (``incidents/price.py``)."""

    waiting: GpuSeconds = 0.0
    starting: GpuSeconds = 0.0
    repeating: GpuSeconds = 0.0
    known: bool = False
    """Whether nothing is added any more."""

    @property
    def hours(self) -> float:
        """GPU hours in all."""
        return (self.waiting + self.starting + self.repeating) / 3600

    def __str__(self) -> str:
        parts = (
            (self.waiting, "without work"),
            (self.starting, "to start again"),
            (self.repeating, "to repeat what was done since the last checkpoint"),
        )
        of = ", ".join(f"{seconds / 3600:.2f} {what}" for seconds, what in parts if seconds)
        return f"{self.hours:.2f} GPU hours{'' if self.known else ' so far'}{of and ': '}{of}"


@dataclass(frozen=True, slots=True)
class Incident:
    """Everything that is kept of an incident but its tape."""

    brief: Brief
    version: str
    """Of gpunode."""

    remedy: str
    evidence: tuple[Evidence, ...] = ()
    waits: tuple[WaitedFor, ...] = ()
    """The GPUs that others wait for, and why they do not come."""

    moments: tuple[Happening, ...] = ()
    """What happened on the node, oldest first."""

    looks: tuple[StackLook, ...] = ()
    """Where processes stood, at each look; without `stacks.code` only what the kernel says."""

    processes: tuple[OnGpu, ...] = ()
    figures: tuple[NodeFigure, ...] = ()
    """What GPUs may wait for on the node, as it was when it began: pressure, disks, links."""

    times: tuple[Time, ...] = ()
    """Of the points of `history`."""

    history: tuple[GpuHistory, ...] = ()
    """Every GPU of the node: the states of its ledger, power, memory and verdict."""

    left_out: int = 0
    """How many moments or answers are missing as there were too many."""

    seen: Time = 0.0
    """When the evidence was what it is here; 0 where that was not kept."""

    price: Price | None = None
    """What it cost; None where that is not known."""


@cache
def briefs() -> TypeAdapter[list[Brief]]:
    """Reads and writes a list of them."""
    return TypeAdapter(Annotated[list[Brief], Field(max_length=100_000)])


@cache
def _whole() -> TypeAdapter[Incident]:
    return TypeAdapter(Incident)


def began_at(incident: str) -> int:
    """When an incident began, in Unix seconds, as its ID says; raises ``ValueError`` for no ID."""
    return calendar.timegm(time.strptime(incident.partition("-")[0], "%Y%m%dT%H%M%SZ"))


def as_json(incident: Incident) -> bytes:
    """An incident as the API and the folder have it."""
    return _whole().dump_json(incident)


def parse(text: bytes) -> Incident:
    """An incident in JSON. Raises ``ValueError``."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError("too long for an incident")
    try:
        found = _whole().validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"not an incident: {place}: {first['msg']}"[:200]) from None
    if not ID.fullmatch(found.brief.id):
        raise ValueError("not an incident: its ID is of no known form")
    return found


def clean(text: str) -> str:
    """A text that anyone may have chosen, fit to keep and to show."""
    return printable(text, MAX_TEXT)


def without_tape(incident: Incident) -> Incident:
    """The incident after its tape was dropped."""
    return replace(incident, brief=replace(incident.brief, tape_bytes=0))
