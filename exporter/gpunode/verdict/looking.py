"""Looks where processes stand once a verdict has called a stall or a straggler for a while."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpunode.config.daemon import Settings
from gpunode.holders.owner import Started
from gpunode.jobs.owners import OwnersDetail
from gpunode.jobs.steps import ClientReports, ReportedPosition
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import parse_stat
from gpunode.node.node import Node, NotRecorded
from gpunode.node.stacks import Frame, ProcessStacks
from gpunode.source import Reading, Readings
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.facts import At
from gpunode.verdict.source import Judgement, Judgements
from gpunode.verdict.where import Looks, StackLook, main_thread, own_frame

LOOK_TIMES = (10.0, 60.0, 540.0)
"""Seconds after which a stall or straggler is looked at: the last is before the watchdog of PyTorch
ends the job, after ten minutes."""

MAX_WAITING = 2
"""How many of those that wait are looked at: they all stand at the same place, as a rule."""

MAX_LATE = 4
"""How many of those that others wait for are looked at."""

REPEATED_LOOKS = 4
"""How often those are looked at again that stand where those stand that wait for them: a rank that
is slow stands there, too, for a part of each step."""

FORGIVEN = 10.0
"""Seconds for which a straggler may keep up and still be the same."""

RESULTS = ("python", "kernel", "nothing")

LOOKED = Metric(
    "gpunode_stack_looks_total",
    "counter",
    "Looks at where a process stands that others wait for, by what was read: Python frames "
    "(`python`), the kernel's view of its threads (`kernel`), or `nothing`.",
    ("result",),
)


Held = tuple[At, tuple[tuple[int, float], ...]]
"""A GPU with the numbers and starts of its processes: the next job on it is another."""


@dataclass(slots=True)
class Stall:
    """A time for which GPUs wait: since when (monotonic), and how often that was looked at."""

    began: float
    seen: float
    looked: int = 0
    again: int = 0
    """How often it may still be looked at again."""

    looks: tuple[StackLook, ...] = ()


class Looking:
    """Reads the stacks of GPUs that others wait for, and of some that wait."""

    name = "stacks"
    every = 2.0
    metrics = (LOOKED,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.enabled, self.code = settings.stacks.look, settings.stacks.code
        self._stalls: dict[tuple[Held, ...], Stall] = {}
        self._waiting: dict[Held, tuple[float, float]] = {}
        """Since when a GPU that waits does, for the same processes, and when that was last seen."""

        self._results = dict.fromkeys(RESULTS, 0)

    def read(self, readings: Readings) -> Reading:
        """The last look at every stall that goes on."""
        now = readings.clock.monotonic()
        judged = [one for found in readings.details(Judgements) for one in found.detail.verdicts]
        owners = {one.place[:2]: one.detail for one in readings.details(OwnersDetail)}
        groups = _groups(judged) if self.enabled else {}
        for late, waiting in groups.items():
            began = min([self._waits_since(_gpu_processes(at, owners), now) for at in waiting])
            of = tuple(_gpu_processes(at, owners) for at in late or waiting)
            stall = self._stalls.setdefault(of, Stall(began, now))
            stall.seen = now
            due = sum(now - stall.began >= after - self.every / 2 for after in LOOK_TIMES)
            again = stall.again > 0 and _stand_together(stall.looks)
            if due > stall.looked or again:
                stall.again = REPEATED_LOOKS if due > stall.looked else stall.again - 1
                stall.looked = due
                said = [
                    one for told in readings.details(ClientReports) for one in told.detail.processes
                ]
                looks = self._look_at(late, waiting, owners, readings.clock.time())
                stall.looks = tuple(add_client_report(look, said) for look in looks)
        self._forget(now)
        samples = (Sample(LOOKED, (result,), float(n)) for result, n in self._results.items())
        looks = (look for stall in self._stalls.values() for look in stall.looks)
        return Reading(tuple(samples), Looks(tuple(looks), self.code))

    def _waits_since(self, waiting: Held, now: float) -> float:
        """When a GPU began to wait, whomever for, with the processes that it has."""
        began, _ = self._waiting.get(waiting, (now, now))
        self._waiting[waiting] = began, now
        return began

    def _forget(self, now: float) -> None:
        """Forget what is over."""
        self._stalls = {
            of: stall for of, stall in self._stalls.items() if now - stall.seen <= FORGIVEN
        }
        self._waiting = {
            of: since for of, since in self._waiting.items() if now - since[1] <= FORGIVEN
        }

    def _look_at(
        self, late: tuple[At, ...], waiting: list[At], owners: dict[At, OwnersDetail], time: float
    ) -> Iterator[StackLook]:
        looked: set[int] = set()
        for gpus, most in ((late, MAX_LATE), (waiting, MAX_WAITING)):
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
            found = stacks_of_started(self.node, process)
        except NotRecorded:  # on a tape, nothing is missed
            return None
        except (OSError, ValueError):
            self._results["nothing"] += 1
            return None
        self._results["kernel" if found.without_python else "python"] += 1
        return found


def stacks_of_started(node: Node, process: Started) -> ProcessStacks:
    """Where a process stands. Raises ``OSError``, also if its PID is another's by now."""
    found = node.stacks(process.pid)
    start = parse_stat(node.read_text(f"/proc/{process.pid}/stat")).start
    if process.start not in (0.0, start):
        raise ProcessLookupError(errno.ESRCH, "another process has its PID")
    return found


def add_client_report(look: StackLook, said: Iterable[ReportedPosition]) -> StackLook:
    """The look, with the client's report: its frames only where py-spy read none."""
    for one in said:
        if (one.pid, one.start) == (look.pid, look.start):
            look = replace(look, progress=one.progress)
            if any(thread.frames for thread in look.stacks.threads):
                return look
            threads = tuple(
                replace(thread, frames=one.frames) if thread.thread == look.pid else thread
                for thread in look.stacks.threads
            )
            return replace(look, stacks=replace(look.stacks, threads=threads))
    return look


def _stand_together(looks: Iterable[StackLook]) -> bool:
    """Whether an awaited rank stands in the line in which some of the others wait."""
    late: set[Frame] = set()
    waiting: set[Frame] = set()
    for look in looks:
        thread = main_thread(look.stacks)
        frame = own_frame(thread.frames) if thread else None
        if frame is not None:
            (waiting if look.waits else late).add(frame)
    return bool(late & waiting)


def _groups(judged: Iterable[Judgement]) -> dict[tuple[At, ...], list[At]]:
    """By those that are waited for, who waits for them; nobody where they are not on this node."""
    found: dict[tuple[At, ...], list[At]] = {}
    for one in judged:
        if CAUSES[one.cause].waits_for_peers:
            late = tuple(sorted(late.at for late in one.waits_for))
            found.setdefault(late, []).append((one.gpu, one.uuid))
    return found


def _gpu_processes(at: At, owners: dict[At, OwnersDetail]) -> Held:
    processes = owners[at].processes if at in owners else ()
    return at, tuple((process.pid, process.start) for process in processes)


def _processes(gpus: Iterable[At], owners: dict[At, OwnersDetail]) -> Iterator[tuple[At, Started]]:
    for at in gpus:
        for process in owners[at].processes[:1] if at in owners else ():
            yield at, process
