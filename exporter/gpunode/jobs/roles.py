"""What the processes on a GPU are, as far as they show it: which program, and whether a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpunode.config import Settings
from gpunode.driver.driver import Gpu, known
from gpunode.gpu.peers import thread_names
from gpunode.jobs.processes import stat_of
from gpunode.metric import Metric
from gpunode.node.node import Node
from gpunode.source import MANY, Divided, GpuSource, Reading

AUTOGRAD = "pt_autograd"
"""https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp, thread_init."""

FIRST_LOOK, LAST_LOOK = 5.0, 60.0
"""Seconds between looks at a process, at first and in the end, doubling: it may listen later."""


@dataclass(frozen=True, slots=True)
class Role:
    """The names of a process's program and of its parent's, and what it does.

    ``listens``: it waits for TCP connections. ``trains``: it has threads of PyTorch's autograd,
    which start with the first backward pass. A name is empty and the others are None if they cannot
    be read.
    """

    pid: int
    program: str
    parent: str
    listens: bool | None
    trains: bool | None


@dataclass(frozen=True, slots=True)
class Looked:
    """The role of a process that started at a time, and when to look at it again."""

    role: Role
    start: float | None
    pause: float
    again: float


@dataclass(frozen=True, slots=True)
class RolesDetail:
    """The roles of the processes on a GPU."""

    roles: tuple[Role, ...]


class ProcessRoles:
    """Looks at what the processes on one GPU are."""

    name = "process_roles"
    needs = "a process on the GPU"
    divided: ClassVar[Divided] = "instances"
    metrics: ClassVar[tuple[Metric, ...]] = ()

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:
        self.node = node
        self.sensors = gpu
        self.every = settings.gpu.owners_interval
        self._looked: dict[int, Looked] = {}

    def read(self) -> Reading:
        now = self.node.clock.monotonic()
        running = (known(self.sensors.processes) or [])[:MANY]
        self._looked = {process.pid: self._look(process.pid, now) for process in running}
        return Reading((), RolesDetail(tuple(looked.role for looked in self._looked.values())))

    def _look(self, pid: int, now: float) -> Looked:
        stat, before = stat_of(self.node, pid), self._looked.get(pid)
        start = None if stat is None else stat.start
        if before is not None and before.start != start:
            before = None  # another process has its id
        if before is not None and now < before.again:
            return before
        pause = FIRST_LOOK if before is None else min(LAST_LOOK, 2 * before.pause)
        role = Role(
            pid,
            self._program(pid),
            self._program(0 if stat is None else stat.parent),
            self._listens(pid),
            self._trains(pid),
        )
        return Looked(role, start, pause, now + pause)

    def _program(self, pid: int) -> str:
        try:
            return self.node.program(pid)
        except OSError:
            return ""

    def _trains(self, pid: int) -> bool | None:
        names = thread_names(self.node, pid)
        return None if names is None else any(name.startswith(AUTOGRAD) for name in names)

    def _listens(self, pid: int) -> bool | None:
        try:
            return self.node.listens(pid)
        except OSError:
            return None


GPU_SOURCE: GpuSource = ProcessRoles
