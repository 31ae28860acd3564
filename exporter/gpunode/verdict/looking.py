"""Looks where processes stand once a verdict has called a stall or a straggler for a while."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpunode.config import Settings
from gpunode.holders.owner import Started
from gpunode.jobs.owners import OwnersDetail
from gpunode.jobs.steps import SaidByClients, SaidToStand
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import parse_stat
from gpunode.node.node import Node, NotRecorded
from gpunode.node.stacks import ProcessStacks
from gpunode.source import Reading, Readings
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.facts import At
from gpunode.verdict.source import Judged, Judgement
from gpunode.verdict.where import Looks, StackLook

LOOKS_AFTER = (10.0, 60.0, 540.0)
"""Seconds after which a stall or straggler is looked at: the last is before the watchdog of PyTorch
ends the job, after ten minutes."""

WAITING = 2
"""How many of those that wait are looked at: they all stand at the same place, as a rule."""

LATE = 4
"""How many of those that others wait for are looked at."""

FORGIVEN = 10.0
"""Seconds for which a straggler may keep up and still be the same."""

RESULTS = ("python", "kernel", "nothing")

LOOKED = Metric(
    "gpunode_stack_looks_total",
    "counter",
    "Looks at where a process stands, while others waited for it for a while: with its Python "
    "frames (`python`), only with what the kernel says of its threads (`kernel`), or in vain "
    "(`nothing`).",
    ("result",),
)


@dataclass(slots=True)
class Stall:
    """For whom GPUs wait, since when (monotonic), and how often that was looked at."""

    began: float
    seen: float
    looked: int = 0
    looks: tuple[StackLook, ...] = ()


class Looking:
    """Asks where those stand that others wait for, and where some that wait do."""

    name = "stacks"
    every = 2.0
    metrics = (LOOKED,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.enabled, self.code = settings.stacks.look, settings.stacks.code
        self._stalls: dict[tuple[At, ...], Stall] = {}
        self._results = dict.fromkeys(RESULTS, 0)

    def read(self, readings: Readings) -> Reading:
        """The last look at every stall that goes on."""
        now = readings.clock.monotonic()
        judged = [one for found in readings.details(Judged) for one in found.detail.verdicts]
        owners = {one.place[:2]: one.detail for one in readings.details(OwnersDetail)}
        groups = _groups(judged) if self.enabled else {}
        for late in groups:
            stall = self._stalls.setdefault(late, Stall(now, now))
            stall.seen = now
        self._stalls = {
            late: stall for late, stall in self._stalls.items() if now - stall.seen <= FORGIVEN
        }
        for late, stall in self._stalls.items():
            due = LOOKS_AFTER[stall.looked : stall.looked + 1]
            if late in groups and due and now - stall.began >= due[0]:
                stall.looked = sum(now - stall.began >= after for after in LOOKS_AFTER)
                said = [
                    one for told in readings.details(SaidByClients) for one in told.detail.processes
                ]
                looks = self._look(late, groups[late], owners, readings.clock.time())
                stall.looks = tuple(_with_word(look, said) for look in looks)
        samples = (Sample(LOOKED, (result,), float(n)) for result, n in self._results.items())
        looks = (look for stall in self._stalls.values() for look in stall.looks)
        return Reading(tuple(samples), Looks(tuple(looks), self.code))

    def _look(
        self, late: tuple[At, ...], waiting: list[At], owners: dict[At, OwnersDetail], time: float
    ) -> Iterator[StackLook]:
        looked: set[int] = set()
        for gpus, most in ((late, LATE), (waiting, WAITING)):
            for at, process in list(_processes(gpus, owners))[:most]:
                if process.pid in looked:
                    continue
                looked.add(process.pid)
                stacks = self._stacks(process)
                if stacks is not None:
                    yield StackLook(
                        at,
                        process.pid,
                        process.start,
                        process.rank,
                        process.owner.in_short(),
                        gpus is waiting,
                        time,
                        stacks,
                    )

    def _stacks(self, process: Started) -> ProcessStacks | None:
        """Where a process stands; None if it has ended, and its PID may be another's."""
        try:
            found = self.node.stacks(process.pid)
            start = parse_stat(self.node.read_text(f"/proc/{process.pid}/stat")).start
            if process.start not in (0.0, start):
                raise ProcessLookupError(errno.ESRCH, "another process has its PID")
        except NotRecorded:  # on a tape, nothing is missed
            return None
        except (OSError, ValueError):
            self._results["nothing"] += 1
            return None
        self._results["kernel" if found.without_python else "python"] += 1
        return found


def _with_word(look: StackLook, said: Iterable[SaidToStand]) -> StackLook:
    """The look, with what the process itself says where py-spy saw nothing."""
    if any(thread.frames for thread in look.stacks.threads):
        return look
    for one in said:
        if (one.pid, one.start) == (look.pid, look.start):
            threads = tuple(
                replace(thread, frames=one.frames) if thread.thread == look.pid else thread
                for thread in look.stacks.threads
            )
            return replace(look, stacks=replace(look.stacks, threads=threads))
    return look


def _groups(judged: Iterable[Judgement]) -> dict[tuple[At, ...], list[At]]:
    """By those that are waited for, who waits for them; nobody where they are not on this node."""
    found: dict[tuple[At, ...], list[At]] = {}
    for one in judged:
        if CAUSES[one.cause].waits_for_peers:
            late = tuple(sorted(late.at for late in one.waits_for))
            found.setdefault(late, []).append((one.gpu, one.uuid))
    return found


def _processes(gpus: Iterable[At], owners: dict[At, OwnersDetail]) -> Iterator[tuple[At, Started]]:
    for at in gpus:
        for process in owners[at].processes[:1] if at in owners else ():
            yield at, process
