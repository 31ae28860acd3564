"""A process on a GPU, and what can be seen of it: by the kernel's word, or by its own.

Its environment takes SYS_PTRACE, the names of its threads cost CPU, and its sockets a walk of
/proc/net/tcp. So each fact is read when it is first asked for. What does not change is read once;
what may change is looked at again after pauses that double.
https://docs.kernel.org/filesystems/proc.html
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from gpunode.holders import slurmstepd
from gpunode.node import cgroup
from gpunode.node.kernel import ProcessStat, parse_stat, parse_status
from gpunode.node.node import Node

T = TypeVar("T")
U = TypeVar("U")

THREADS_FIRST, THREADS_LAST = 2.0, 60.0
"""Seconds between looks at the names of threads, and for a communicator's socket and memory, at
first and in the end, doubling."""

LAUNCHED_LAST = 10.0
"""Seconds between looks for the socket in the end where a launcher names other ranks: then a
communicator is to be expected, and may stall."""

ROLE_FIRST, ROLE_LAST = 5.0, 60.0
"""Seconds between looks at a process's role, at first and in the end, doubling: it may listen
later."""

THREADS = 2048
"""The most threads of a process to look at, in 0.04 s of CPU; a training process has 300."""

NCCL = "nccl"
"""In the name of a thread: PyTorch names one for each communicator of NCCL from version 2.5 on, and
NCCL its own only with NCCL_SET_THREAD_NAME=1. The names of threads may be read by anyone.
https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
(``pt_nccl_watchdg``), https://github.com/NVIDIA/nccl/blob/master/src/debug.cc
(``ncclSetThreadName``)."""

AUTOGRAD = "pt_autograd"
"""https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp, thread_init."""

GLOO = "pt_gloo"
"""A process group of Gloo, by which ranks exchange what is on CPUs, names its threads so.
https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"""

MPI_DAEMONS = frozenset({"orted", "prted"})
"""What Open MPI puts between a program and the ranks that it spawns, as TensorRT-LLM does.
https://www.open-mpi.org/doc/current/man1/orted.1.php"""

SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Where launchers say how many processes a job has."""


@dataclass(frozen=True, slots=True)
class Role:
    """The names of a process's program and of its parent's, and what it does.

    ``listens``: it waits for TCP connections as a server does. ``trains``: it has had threads of
    PyTorch's autograd, which start with the first backward pass. ``exchanges``: it has had threads
    of a process group on CPUs. A name is empty and the others are None if they cannot be read.
    """

    pid: int
    program: str
    parent: str
    listens: bool | None
    trains: bool | None
    exchanges: bool | None


@dataclass(frozen=True, slots=True)
class Threads:
    """What the names of threads tell; None if they cannot be read. What was seen once stays."""

    nccl: bool | None = None
    autograd: bool | None = None
    gloo: bool | None = None


class Pauses:
    """When to look again: after a pause that doubles with each look."""

    def __init__(self, first: float, last: float) -> None:
        self.first = first
        self.last = last
        self._pause = 0.0
        self._again = -math.inf

    def over(self, now: float) -> bool:
        """Whether it is time to look."""
        return now >= self._again

    def looked(self, now: float) -> None:
        """Begin the next pause; another thread may have done so for the same look."""
        if self.over(now):
            self._pause = min(self.last, 2 * self._pause) or self.first
            self._again = now + self._pause


def tenant_key(holder: Holder) -> tuple[str]:
    """The tenant of a process, for ``bounded``."""
    return (holder.budget(),)


class Sign:
    """Something that is looked for until it is seen, and then stays."""

    def __init__(self, first: float, last: float) -> None:
        self._pauses = Pauses(first, last)
        self._seen: bool | None = None

    def look(self, now: float, question: Callable[[], bool]) -> bool | None:
        """Whether it has been seen; None if it could not be looked for."""
        if not self._seen and self._pauses.over(now):
            try:
                seen = question()
            except OSError:
                seen = None
            self._seen = self._seen or seen  # another thread may have looked, too
            self._pauses.looked(now)
        return self._seen


class Holder:
    """A process that holds a GPU: its PID, and when it started in ticks since boot.

    ``start`` is None if that cannot be read: then nothing distinguishes it from the next process
    with its PID, and the census makes a new object for each look. ``parent`` is the process that
    started it, 0 if unknown. No lock is held while anything is read: threads that ask at a time
    all read.
    """

    def __init__(self, node: Node, pid: int, stat: ProcessStat | None) -> None:
        self.node = node
        self.pid = pid
        self.start = None if stat is None else stat.start
        self.parent = 0 if stat is None else stat.parent
        self.communicated = False
        """Whether data moved over NVLink while it held a GPU."""

        self.siblings = False
        """Whether its parent has started a process on another GPU, too."""

        self.unseen: set[str] = set()
        """The questions about its sockets that had no answer: there were too many to look at."""

        # What does not change, empty before it could be read.
        self._environment: list[dict[str, str]] = []
        self._cgroup: list[cgroup.CgroupOwner] = []
        self._budget = ""
        self._strange: list[str] = []
        self._ids: list[tuple[list[str], list[str]]] = []
        self._namespaces: dict[str, list[str]] = {"net": [], "pid": []}
        self._threads = Threads()
        self._threads_pauses = Pauses(THREADS_FIRST, THREADS_LAST)
        self._socket = {
            launched: Sign(THREADS_FIRST, LAUNCHED_LAST if launched else THREADS_LAST)
            for launched in (False, True)
        }
        self._memory = Sign(THREADS_FIRST, THREADS_LAST)
        self._role = Role(pid, "", "", None, None, None)
        self._role_pauses = Pauses(ROLE_FIRST, ROLE_LAST)

    def lives(self) -> bool:
        """Whether this very process is there, or its start still cannot be read."""
        stat = stat_of(self.node, self.pid)
        return (None if stat is None else stat.start) == self.start

    def ask(self, question: Callable[[], T]) -> T:
        """What a question about the process gives, which may read its files.

        Raises ``ProcessLookupError`` if the process has ended, because another may have its PID.
        """
        answer = question()
        if not self.lives():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{self.pid}")
        return answer

    def ask_sockets(self, what: str, question: Callable[[int], T]) -> T:
        """What a question about its sockets gives; ``unseen`` has it if there were too many.

        Raises ``OSError``.
        """
        try:
            answer = self.ask(lambda: question(self.pid))
        except OSError as error:
            if error.errno == errno.EFBIG:
                self.unseen.add(what)
            raise
        self.unseen.discard(what)
        return answer

    def _remember(self, known: list[T], question: Callable[[], T]) -> T:
        """What does not change: the answer to a question, which is remembered in ``known``."""
        if not known:
            known.append(self.ask(question))
        return known[0]

    def environment(self) -> dict[str, str]:
        """Its initial environment, as far as ``Node.environment`` reads it. Raises ``OSError``."""
        return self._remember(self._environment, lambda: self.node.environment(self.pid))

    def cgroup(self) -> cgroup.CgroupOwner:
        """Whose it is by its cgroup. Raises ``OSError``."""
        return self._remember(self._cgroup, lambda: _cgroup_owner(self.node, self.pid))

    def budget(self) -> str:
        """Whose budget its reads use (``cgroup.budget``); empty if unreadable."""
        try:
            if not self._budget:
                text = self.node.read_text(f"/proc/{self.pid}/cgroup")
                self._budget = cgroup.budget(text, self.users()[1])
        except (OSError, IndexError):
            return ""
        return self._budget

    def strange_container(self) -> str:
        """The shape of its cgroup's path if it looks like that of a container and names none.

        Raises ``OSError``.
        """
        path = f"/proc/{self.pid}/cgroup"
        return self._remember(
            self._strange, lambda: cgroup.strange_container(self.node.read_text(path))
        )

    def users(self) -> list[str]:
        """The ids of its user: real, effective, saved and of the filesystem. Raises ``OSError``."""
        return self._identifiers()[0]

    def own_pid(self) -> int:
        """Its id in its own PID namespace. Raises ``OSError`` or ``ValueError``."""
        return int((self._identifiers()[1] or [""])[-1])

    def _identifiers(self) -> tuple[list[str], list[str]]:
        path = f"/proc/{self.pid}/status"
        return self._remember(self._ids, lambda: _ids(self.node.read_text(path)))

    def namespace(self, kind: str) -> str:
        """Its namespace of a kind, ``net`` or ``pid``; empty if that cannot be read."""
        path = f"/proc/{self.pid}/ns/{kind}"
        try:
            return self._remember(self._namespaces[kind], lambda: self.node.read_link(path))
        except OSError:
            return ""

    def peers(self) -> bool | None:
        """Whether it has peers on other GPUs, for which its kernels may wait; None if unknown.

        It has if data moved over NVLink while it held a GPU, or if it has a communicator: a thread
        or a socket of one, or memory that it shares. A launcher that names other ranks is no
        evidence, as it may start processes that know nothing of each other. That it names one only
        is none where that one has spawned others, as ``torch.multiprocessing.spawn`` does.
        """
        if self.communicated:
            return True
        ranks = self._ranks()
        if ranks is not None and ranks <= 1:
            if not self._spawned():
                return False  # a communicator of one has no peer
            ranks = None
        named = self.threads().nccl
        if named:
            return True
        holds = self._holds_communicator(launched=ranks is not None)
        if holds is None and ranks is not None:
            return None
        return holds or named

    def _spawned(self) -> bool:
        """Whether a program of its name has started it and a process on another GPU.

        What a shell starts on several GPUs may well be ranks of one.
        """
        if not self.siblings:
            return False
        own, parent = stat_of(self.node, self.pid), stat_of(self.node, self.parent)
        return own is not None and parent is not None and own.name == parent.name

    def _holds_communicator(self, *, launched: bool) -> bool | None:
        """Whether it has a socket of a communicator, or memory of one; None if unknown.

        The memory is looked for only where others were ``launched``: it takes 5 ms.
        """
        node, pid, now = self.node, self.pid, self.node.clock.monotonic()
        socket = self._socket[launched].look(
            now, lambda: self.ask_sockets("communicates", node.communicates)
        )
        if socket or not launched:
            return socket
        memory = self._memory.look(now, lambda: self.ask(lambda: node.shares_memory(pid)))
        return None if socket is None and not memory else memory

    def _ranks(self) -> int | None:
        """How many processes the launcher says the job has; None if unknown."""
        try:
            environment = self.environment()
        except OSError:
            return None
        sizes = (environment.get(name, "") for name in SIZES)
        return max((int(s) for s in sizes if s.isdecimal() and len(s) < 10), default=None)

    def threads(self) -> Threads:
        """What the names of its threads say, looked at less and less until all is known."""
        seen = self._threads
        if seen.nccl and seen.autograd:
            return seen
        now = self.node.clock.monotonic()
        if self._threads_pauses.over(now):
            try:
                names = self.ask(lambda: thread_names(self.node, self.pid))
            except OSError:
                names = None
            seen = self._threads  # another thread may have looked, too
            if names is None:
                seen = Threads(seen.nccl or None, seen.autograd or None, seen.gloo or None)
            else:
                seen = Threads(
                    seen.nccl or any(NCCL in name.lower() for name in names),
                    seen.autograd or any(name.startswith(AUTOGRAD) for name in names),
                    seen.gloo or any(name.startswith(GLOO) for name in names),
                )
            self._threads = seen
            self._threads_pauses.looked(now)
        return seen

    def role(self) -> Role:
        """Its role, looked at less and less."""
        now = self.node.clock.monotonic()
        if self._role_pauses.over(now):
            self._role = Role(
                self.pid,
                self._or("", lambda: self.node.program(self.pid)),
                self._or("", self._parent_s_program),
                self._listens(),
                None,
                None,
            )
            self._role_pauses.looked(now)
        seen = self.threads()
        return replace(self._role, trains=seen.autograd, exchanges=seen.gloo)

    def _listens(self) -> bool | None:
        try:
            return self.ask_sockets("listens", self.node.listens)
        except OSError:
            return None

    def _parent_s_program(self) -> str:
        """The program of its parent now, or of its parent's where that is a daemon of MPI.

        Raises ``OSError``, also if that ends meanwhile.
        """
        parent, program = self._above(self.pid)
        return self._above(parent)[1] if program in MPI_DAEMONS else program

    def _above(self, pid: int) -> tuple[int, str]:
        """The parent of a process and its program, which is empty if that ends meanwhile."""
        stat = stat_of(self.node, pid)
        parent = 0 if stat is None else stat.parent
        program = self.node.program(parent)
        stat = stat_of(self.node, pid)
        return parent, program if stat is not None and stat.parent == parent else ""

    def _or(self, unknown: U, question: Callable[[], T]) -> T | U:
        """The answer to a question about the process, or what stands for none."""
        try:
            return self.ask(question)
        except OSError:
            return unknown


def _cgroup_owner(node: Node, pid: int) -> cgroup.CgroupOwner:
    """Whose a process is by its cgroup, with the number of its Slurm job if slurmstepd says it.

    Raises ``OSError``.
    """
    text = node.read_text(f"/proc/{pid}/cgroup")
    owner = cgroup.cgroup_owner(text)
    folder, _ = cgroup.sluid_folder(text)
    number = slurmstepd.job_of(node, folder, pid) if folder else ""
    return replace(owner, slurm_job=number) if number else owner


def _ids(status: str) -> tuple[list[str], list[str]]:
    """The ids of its user, and its own in each PID namespace, from the outermost."""
    fields = parse_status(status)
    return fields.get("Uid") or [], fields.get("NSpid") or []


def stat_of(node: Node, pid: int | str) -> ProcessStat | None:
    """The stat file of a process; None if it has ended or may not be seen."""
    try:
        return parse_stat(node.read_text(f"/proc/{pid}/stat"))
    except (OSError, ValueError):
        return None


def thread_names(node: Node, pid: int) -> set[str] | None:
    """The names of a process's threads; None if they cannot be read or are too many."""
    try:
        threads = node.list_directory(f"/proc/{pid}/task")
    except OSError:
        return None
    if len(threads) > THREADS:
        return None
    found = set()
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            found.add(node.read_text(f"/proc/{pid}/task/{thread}/comm").strip())
    return found
