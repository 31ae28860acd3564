"""A census of the processes on each GPU: one look for all sources that ask.

Each source asks in a thread of its own, and a driver may never answer. So no lock is held while a
driver or /proc is asked, and nobody waits for the look of another: a source for which the last look
is too old takes one itself and publishes it. It does no harm if two do so at a time.

A process is its PID and its start. A look serves another source only if each process in it is still
there, so a PID that is used again is never taken for its predecessor. Where a start cannot be read,
nobody could tell: such a look serves nobody else.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from gpunode.driver.driver import DriverError, Gpu, Identity, Process, list_gpus, optional
from gpunode.driver.errands import DRIVER_TIMEOUT, Errands
from gpunode.holders.holder import Holder, stat_of
from gpunode.node.kernel import ProcessStat
from gpunode.node.node import Node, NoDescriptors

FRESH = 2.5
"""Seconds for which a look serves others: the ledger takes one every two."""

LISTED = 10.0
"""Seconds for which the list of GPUs serves: asking for it costs a thread for each GPU."""

FORGOTTEN = 600.0
"""Seconds after which the last look at a GPU that nobody asks about is dropped."""


MPS_SERVER = "nvidia-cuda-mps"
"""The name of the server of MPS and of its control daemon, as far as the kernel keeps names.
https://docs.nvidia.com/deploy/mps/index.html"""


@dataclass(frozen=True, slots=True)
class Look:
    """What a driver listed on a GPU at a moment (monotonic), and who the processes are.

    A process may be listed several times, by each of its contexts, and is one holder.
    """

    moment: float
    processes: tuple[Process, ...]
    holders: tuple[Holder, ...]
    first: dict[int, float]
    """When the process started that had each PID when the driver began to list it, if known."""

    stopped: float | None = None
    """How many processes a signal or a debugger has stopped; None without one that is visible."""

    @property
    def computing(self) -> list[Holder]:
        """The processes that do not only draw."""
        pids = {process.pid for process in self.processes if process.kind != "graphics"}
        return [holder for holder in self.holders if holder.pid in pids]

    @property
    def certain(self) -> list[Holder]:
        """The processes that the driver means.

        It may go on to list one that has ended, whose PID is another's by now.
        """
        return [holder for holder in self.holders if self.first.get(holder.pid) == holder.start]


class Allocator(Protocol):
    """What gives GPUs to jobs, which need not use them: the kubelet, or Slurm."""

    def gave(self, gpu: Identity) -> bool:
        """Whether a job is known to have the GPU now."""
        ...


class Census:
    """The processes on all GPUs of a node, and whether a job has a GPU that no process is on."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.givers: tuple[Allocator, ...] = ()
        self._lock = threading.Lock()  # for both of these; never held while anything is asked
        self._looks: dict[str, Look] = {}
        self._holders: WeakValueDictionary[tuple[int, float], Holder] = WeakValueDictionary()
        self._errands = Errands()
        self._gpus: list[Gpu] = []
        self._listed = -math.inf

    @property
    def identities(self) -> list[Identity]:
        """Those of every GPU and MIG instance, as ``everywhere`` last listed them."""
        return [gpu.identity for gpu in self._gpus]

    @property
    def on_gpus(self) -> dict[int, Holder]:
        """The processes on any GPU by their PIDs, as the drivers listed them last; asks none."""
        return {holder.pid: holder for look in self._looks.values() for holder in look.holders}

    def look(self, gpu: Gpu, within: float = FRESH) -> Look | None:
        """The processes on a GPU, as the driver listed them less than so many seconds ago.

        None if the GPU cannot tell. Raises ``DriverError``.
        """
        now = self.node.clock.monotonic()
        recent = self._recent(gpu.identity.uuid, now - within)
        if recent is not None:
            return recent
        processes = optional(gpu.processes)
        if processes is None:
            return None
        stats = {pid: stat_of(self.node, pid) for pid in dict.fromkeys(p.pid for p in processes)}
        servers = _servers(processes, stats)
        processes = [process for process in processes if process.pid not in servers]
        stats = {pid: stat for pid, stat in stats.items() if pid not in servers}
        with self._lock:
            return self._publish(gpu.identity.uuid, now, processes, stats)

    def given(self, gpu: Identity) -> bool:
        """Whether a job is known to have the GPU, whether or not a process of it is there."""
        return any(giver.gave(gpu) for giver in self.givers)

    def everywhere(self, within: float = FRESH) -> list[tuple[Gpu, Look]]:
        """Every GPU and MIG instance with its processes, but those that do not answer in time.

        Within 0 s, the GPUs are listed anew, too.
        """
        now = self.node.clock.monotonic()
        if within <= 0.0 or now - self._listed >= LISTED:
            self._gpus, _ = list_gpus(self.node.drivers)
            self._listed = now
        gpus = {gpu.identity.uuid: gpu for gpu in self._gpus}
        recent = {uuid: self._recent(uuid, now - within) for uuid in gpus}
        found = {uuid: look for uuid, look in recent.items() if look is not None}
        short: list[NoDescriptors] = []
        unknown = gpus.keys() - found.keys()
        asked = {uuid: partial(self._ask, gpus[uuid], short) for uuid in unknown}
        silent = self._errands.run(asked) if asked else set()
        if short:
            raise short[0]
        for uuid in asked.keys() - silent:
            look = self._looks.get(uuid)
            # An errand that another began may have taken its look a moment before.
            if look and look.moment > now - DRIVER_TIMEOUT:
                found[uuid] = look
        return [(gpu, found[uuid]) for uuid, gpu in gpus.items() if uuid in found]

    def _ask(self, gpu: Gpu, short: list[NoDescriptors]) -> None:
        try:
            self.look(gpu, within=0.0)
        except DriverError:
            pass
        except NoDescriptors as error:
            short.append(error)

    def _recent(self, uuid: str, since: float) -> Look | None:
        """The last look at a GPU, if it was taken after that and all processes are still there."""
        look = self._looks.get(uuid)
        if look is None or look.moment <= since:
            return None
        same = all(holder.start is not None and holder.lives() for holder in look.holders)
        return look if same else None

    def _publish(
        self, uuid: str, now: float, processes: list[Process], stats: dict[int, ProcessStat | None]
    ) -> Look:
        """Make a look of what was asked, in which a process that is known is the same object."""
        before = self._looks.get(uuid)
        starts = {pid: stat.start for pid, stat in stats.items() if stat is not None}
        first = starts if before is None else {**starts, **before.first}
        look = Look(
            now,
            tuple(processes),
            tuple(self._holder(pid, stat) for pid, stat in stats.items()),
            {pid: first[pid] for pid in stats if pid in first},
            _stopped(stats.values()),
        )
        others = (other for of, other in self._looks.items() if of != uuid)
        child_of = {child.parent: child for other in others for child in other.holders}
        for holder in look.holders:
            sibling = child_of.get(holder.parent, holder)
            if sibling is not holder and holder.parent > 1:
                holder.siblings = sibling.siblings = True
        if before is None or before.moment <= now:
            self._looks = {
                **{u: last for u, last in self._looks.items() if now - last.moment < FORGOTTEN},
                uuid: look,
            }
        return look

    def _holder(self, pid: int, stat: ProcessStat | None) -> Holder:
        """The process, as known from any GPU."""
        if stat is None:
            return Holder(self.node, pid, None)
        known = self._holders.get((pid, stat.start))
        if known is None:
            known = self._holders[pid, stat.start] = Holder(self.node, pid, stat)
        return known


def _stopped(stats: Iterable[ProcessStat | None]) -> float | None:
    visible = [stat.state in "Tt" for stat in stats if stat is not None]
    return float(sum(visible)) if visible else None


def _servers(processes: list[Process], stats: dict[int, ProcessStat | None]) -> set[int]:
    """The servers of MPS on a GPU that has clients: these use it, and may be another's."""
    clients = {process.pid for process in processes if process.kind == "mps"}
    return {
        pid
        for pid, stat in stats.items()
        if clients and pid not in clients and stat is not None and stat.name == MPS_SERVER
    }
