"""Reads processes and the files inside their roots, where what a tenant chose may never answer.

``gpunode.helper`` finds a path there with the rights of the process's user, and looks at what it is
before it opens it. What the kernel says of a process may not come either:

- It reads the command line, the environment and the maps in the memory of the process, and waits
  while that maps a file: for ever, if the file is on a dead mount.
- Before most other files and links it asks whether the process may be traced, and waits while that
  executes a program: for ever, if that waits for memory that another has, who maps such a file.
  https://github.com/torvalds/linux/blob/master/fs/exec.c (``exec_update_lock``)

So each of these is read in another thread, with patience. There is patience for each kind of file,
so that one that hangs, or a helper that stands still, does not cost the others of its owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gpunode.helper import stacks, tcp
from gpunode.helper.inside import PLACE, open_file, split_path
from gpunode.node.cgroup import budget
from gpunode.node.datagram_socket import start_of
from gpunode.node.patience import Patience
from gpunode.node.privileged import PrivilegedReads
from gpunode.threads import SHARED

T = TypeVar("T")

SLOW_FILES = re.compile(
    r"/proc/(?P<pid>\d+)/(?:task/\d+/)?(?:(?P<memory>cmdline|environ|maps)"
    r"|(?P<stat>stat)|io|stack|wchan|ns/\w+|root)"
)
"""What the kernel may not answer; it waits for nobody before the others that are read, such as
``cgroup``, ``children``, ``comm``, ``limits`` and ``status``."""

SOCKETS_WAIT = 1.5
"""Seconds to wait for the sockets of a process: 16,384 descriptors take 0.2 s of CPU."""

LOOK_WAIT = 4 * stacks.LOOK_TIMEOUT
"""Seconds to wait for a look that another has asked for."""


class ProcessReader:
    """Reads of the processes of a node, with patience."""

    def __init__(self, privileged: PrivilegedReads) -> None:
        self.rootfs = privileged.rootfs
        self._privileged = privileged
        self._roots = Patience()
        """Whose threads take on the rights of others, and so end."""

        self._servers = Patience(tcp.DEADLINE + 1)
        """Whose threads enter the network of others, and so end."""

        self._memory = Patience(threads=SHARED)
        self._stats = Patience(threads=SHARED)
        self._others = Patience(threads=SHARED)
        self._sockets = Patience(SOCKETS_WAIT)
        self._stacks = Patience(2 * stacks.LOOK_TIMEOUT)
        self._one_look = threading.Lock()
        """Held while py-spy is asked, which refuses a second: who asks then waits."""

        self._kept: dict[str, int] = {}
        """By owner, the process from which py-spy has not come back."""

    def space(self, path: str) -> bytes:
        """The numbers of the filesystem at a path below /proc/PID/root. Raises ``OSError``."""
        return self._in_root(path, "space", path)

    def part(self, path: str, after: int) -> tuple[bytes, int]:
        """Bytes of a regular file from ``after``, or from 0 if it is shorter, and where they begin.

        Raises ``OSError``, also if the user of the process may not read it.
        """
        begin, _, content = self._in_root(path, "part", path, str(after)).partition(b" ")
        return content, int(begin)

    def maps(self, pid: int) -> bytes:
        """The beginning of a process's /proc/PID/maps. Raises ``OSError``."""
        read = partial(self._privileged.read, "maps", str(pid))
        return self.read(f"/proc/{pid}/maps", read)

    def environment(self, pid: int) -> bytes:
        """The variables of a process that may be read. Raises ``OSError``."""
        read = partial(self._privileged.read, "environment", str(pid))
        return self.read(f"/proc/{pid}/environ", read)

    def link(self, path: str) -> str:
        """The target of a link of a process. Raises ``OSError``."""
        return os.fsdecode(self.read(path, partial(self._privileged.read, "link", path)))

    def sockets(self, pid: int) -> set[str]:
        """The inodes of the sockets that a process has open. Raises ``OSError``."""
        read = partial(self._privileged.read, "sockets", str(pid))
        return set(self._sockets.ask(*self._tenant(pid), read).decode().split())

    def descriptors(self, pid: int) -> int:
        """How many files a process has open. Raises ``OSError``."""
        read = partial(self._privileged.read, "count", str(pid))
        return int(self._others.ask(*self._tenant(pid), read))

    def ask(self, pid: int, address: str, request: str) -> str:
        """What the server of a process answers, of which what is not ASCII is left out.

        Raises ``OSError``, as ``gpunode.helper.tcp.ask`` does.
        """
        tenant, process = self._tenant(pid)
        try:
            other = self.link(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
        except TimeoutError:
            raise
        except OSError:
            other = False  # a namespace that cannot be read cannot be entered either
        if other:
            read = partial(self._privileged.ask, str(pid), address, request)
            answer = self._servers.ask(tenant, f"{process} {address}", read)
        else:
            answer = tcp.ask(address, request, tcp.TcpProcess(process, partial(self._held, pid)))
        return answer.decode("ascii", "ignore")

    def _held(self, pid: int) -> set[str] | None:
        """The inodes of a process's sockets; None without the right to see them."""
        with contextlib.suppress(PermissionError):
            return self.sockets(pid)
        return None

    def read(self, path: str, read: Callable[[], T]) -> T:
        """What ``read`` gives of a file or link, with patience if it is a process's.

        Raises ``OSError``.
        """
        match = SLOW_FILES.fullmatch(path)
        if match is None:
            return read()
        tenant, process = self._tenant(int(match["pid"]))
        if match["memory"]:
            return self._memory.ask(tenant, path, read)
        return (self._stats if match["stat"] else self._others).ask(tenant, process, read)

    def start_of(self, pid: int) -> float | None:
        """When a process began that has this PID here; None if it has ended or does not answer."""
        process = f"/proc/{pid}"
        try:
            return self._stats.ask(partial(_owner, process), process, partial(start_of, pid))
        except OSError:
            return None

    def python(self, pid: int) -> bytes:
        """What py-spy says of the threads of a process. Raises ``OSError``.

        It may not come back from the memory of a process that maps a file of a dead mount. So the
        process has to answer first, and before it the one from which it has not come back of the
        same owner.
        """
        if not self._one_look.acquire(timeout=LOOK_WAIT):
            raise OSError(errno.EBUSY, "py-spy is busy with another process")
        try:
            return self._python(pid)
        finally:
            self._one_look.release()

    def _python(self, pid: int) -> bytes:
        whose, process = self._tenant(pid)
        tenant = whose()
        if tenant in self._kept:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._answers(self._kept[tenant])
        self._kept.pop(tenant, None)
        self._answers(pid)
        try:
            return self._stacks.ask(tenant, process, partial(self._privileged.python, str(pid)))
        except OSError as error:
            if error.errno == errno.EDEADLK:
                self._kept[tenant] = pid
            raise

    def _answers(self, pid: int) -> None:
        path = f"/proc/{pid}/cmdline"
        self.read(path, partial(_first_byte, self.rootfs + path))

    def _in_root(self, path: str, verb: str, *arguments: str) -> bytes:
        process = f"{self.rootfs}/proc/{split_path(path)['pid']}"
        read = partial(self._privileged.read, verb, *arguments)
        return self._roots.ask(partial(_owner, process), path, read)

    def _tenant(self, pid: int) -> tuple[Callable[[], str], str]:
        """Whose a process is, to be asked if that matters, and what it is called here."""
        process = f"{self.rootfs}/proc/{pid}"
        return partial(_owner, process), process


def _owner(process: str) -> str:
    """Whose a process is, as the kernel tells it, by its folder in /proc."""
    try:
        with open_file(f"{process}/cgroup", os.O_RDONLY) as file:
            text = os.read(file, 1 << 16).decode("utf-8", "replace")
            return budget(text, str(os.fstat(file).st_uid))
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _first_byte(path: str) -> bytes:
    with open_file(path, os.O_RDONLY) as file:
        return os.read(file, 1)


def is_inside(path: str) -> bool:
    """Whether a path of the node leads through the root or working directory of a process."""
    return PLACE.fullmatch(path) is not None
