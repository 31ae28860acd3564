"""Looks where the processes on a GPU stand when a person asks for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.holders.owner import Started
from gpunode.jobs.owners import OwnersDetail
from gpunode.jobs.steps import ClientReports
from gpunode.metric import Metric
from gpunode.node.node import Node, NoDescriptors
from gpunode.node.rolling_tape import without_code
from gpunode.node.stacks import ProcessStacks
from gpunode.source import Reading, Readings
from gpunode.text import printable
from gpunode.unread import Unknown
from gpunode.verdict.facts import At
from gpunode.verdict.looking import add_client_report, stacks_of_started
from gpunode.verdict.where import StackLook, reason_of, sentence

LOOK_INTERVAL = 10.0
"""Seconds from one look at a GPU that somebody asked for to the next."""

RETRY_SECONDS = 2.0
"""Seconds after which to ask again where a look goes on."""

MAX_PROCESSES = 4
"""How many processes of a GPU are looked at."""

LOOK_TIMEOUT = 4.0
"""Seconds within which the last look begins: one takes milliseconds, four that hang would take too
long for who waits for the answer."""

LONGEST_WHY, LONGEST_PROGRAM = 200, 64
"""Characters."""

LOOK_REFUSED = Unknown(
    "asked_stacks",
    "somebody asked where processes stand during another such look, or soon after; the answer was "
    "429",
    bound=True,
)


@dataclass(frozen=True, slots=True)
class ProcessStands:
    """Where one process stands, or why that cannot be told."""

    gpu: str
    """The index of its GPU; empty if it was asked for by its PID."""

    pid: int
    program: str
    sentence: str
    reason: str
    """A name of ``gpunode_gpu_waited_for``, empty where nothing is recognised."""

    stacks: ProcessStacks | None
    """Without `stacks.code`, a daemon tells neither frames of it nor the names of its threads."""

    why_not: str = ""
    rank: str = ""
    owner: str = ""
    """Whose it is, in words; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class StacksNow:
    """What a daemon answers of the processes on a GPU."""

    code: bool
    """Whether files, functions and lines are told (`stacks.code`)."""

    processes: list[ProcessStands]


class LookRefused(Exception):
    """The daemon looks, or has just looked; ``str()`` says so."""

    def __init__(self, why: str, wait: float) -> None:
        super().__init__(why)
        self.wait = math.ceil(wait)
        """Seconds until it may be asked again."""


class LooksOnDemand:
    """Looks for who asks: one look at a time, and one at each GPU in ``LOOK_INTERVAL`` seconds."""

    name = "asked"
    every = 5.0
    metrics: tuple[Metric, ...] = ()
    unknowns = (LOOK_REFUSED,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.enabled, self.code = settings.stacks.look, settings.stacks.code
        self._one = threading.Lock()
        """Held while it looks."""

        self._begun: dict[str, float] = {}
        self._refused = self._told = 0

    def read(self, _readings: Readings) -> Reading:
        """How often it refused since the last read; what is asked finds it by its detail."""
        refused, self._told = self._refused - self._told, self._refused
        met = (LOOK_REFUSED.seen("", refused),) if refused else ()
        return Reading((), self, met)

    def begin(self, gpu: str) -> None:
        """Begin a look at a GPU, which ``end`` ends. Raises ``LookRefused``.

        It is called by one thread, and for a GPU that there is.
        """
        now = self.node.clock.monotonic()
        left = self._begun.get(gpu, -math.inf) + LOOK_INTERVAL - now
        if left > 0:
            self._refused += 1
            said = f"GPU {gpu} was looked at less than {LOOK_INTERVAL:g} s ago"
            raise LookRefused(f"{said}: ask again in {math.ceil(left)} s", left)
        if not self._one.acquire(blocking=False):
            self._refused += 1
            raise LookRefused("it looks for somebody else: ask again", RETRY_SECONDS)
        self._begun[gpu] = now

    def end(self) -> None:
        """End a look, in whatever thread."""
        self._one.release()

    def look(self, gpu: str, readings: Readings) -> Iterator[ProcessStands]:
        """Where the processes on a GPU stand."""
        until = self.node.clock.monotonic() + LOOK_TIMEOUT
        for number, (at, process) in enumerate(_processes_on(gpu, readings)):
            try:
                if number >= MAX_PROCESSES:
                    raise OSError(f"no more than {MAX_PROCESSES} processes of a GPU are looked at")
                if self.node.clock.monotonic() > until:
                    raise OSError("the others took too long")
                yield self._position(at, process, readings)
            except (OSError, ValueError, NoDescriptors) as error:
                said = error.strerror if isinstance(error, OSError) else ""
                why = printable(said or str(error), LONGEST_WHY)
                rank, owner = process.rank, process.owner.in_short()
                yield ProcessStands(gpu, process.pid, "", "", "", None, why, rank, owner)

    def _position(self, at: At, process: Started, readings: Readings) -> ProcessStands:
        """Where a process stands now. Raises ``OSError``, ``ValueError`` or ``NoDescriptors``."""
        program = printable(self.node.program(process.pid), LONGEST_PROGRAM)
        stacks = stacks_of_started(self.node, process)
        rank, owner, time = process.rank, process.owner.in_short(), readings.clock.time()
        look = StackLook(at, process.pid, process.start, rank, owner, False, time, stacks)
        clients = readings.details(ClientReports)
        look = add_client_report(look, (one for told in clients for one in told.detail.processes))
        reason = reason_of(look.stacks)
        return ProcessStands(
            at[0],
            process.pid,
            program,
            sentence(look.stacks, self.code, look.progress),
            reason.name if reason else "",
            look.stacks if self.code else without_code(look.stacks),
            "",
            rank,
            owner,
        )


def _processes_on(gpu: str, readings: Readings) -> Iterator[tuple[At, Started]]:
    """The processes on a GPU, and on the instances that it is divided into, once each."""
    seen: set[int] = set()
    for one in readings.details(OwnersDetail):
        for process in one.detail.processes if one.place.gpu == gpu else ():
            if process.pid not in seen:
                seen.add(process.pid)
                yield (one.place.gpu, one.place.uuid), process
