"""Reads inside the roots of other processes, where what a tenant chose may never answer.

``gpunode.helper`` finds a path there with the rights of the process's user, and looks at what it is
before it opens it. Here each read has a thread of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gpunode.helper.inside import PLACE, opened, place
from gpunode.node.cgroup import budget
from gpunode.node.patience import Patience
from gpunode.node.privileged import Privileged

T = TypeVar("T")


class Inside:
    """Reads inside the roots of the processes of a node."""

    def __init__(self, privileged: Privileged) -> None:
        self.rootfs = privileged.rootfs
        self._privileged = privileged
        self._patience = Patience()
        self._kept: dict[str, int] = {}
        """By owner, the process from which py-spy has not come back."""

    def space(self, path: str) -> bytes:
        """The numbers of the filesystem at a path below /proc/PID/root. Raises ``OSError``."""
        return self._ask(path, "space", path)

    def part(self, path: str, after: int) -> tuple[bytes, int]:
        """Bytes of a regular file from ``after``, or from 0 if it is shorter, and where they begin.

        Raises ``OSError``, also if the user of the process may not read it.
        """
        begin, _, content = self._ask(path, "part", path, str(after)).partition(b" ")
        return content, int(begin)

    def maps(self, pid: int) -> bytes:
        """The beginning of a process's /proc/PID/maps. Raises ``OSError``."""
        return self._of_memory(pid, "maps", partial(self._privileged.read, "maps", str(pid)))

    def environment(self, pid: int) -> bytes:
        """The variables of a process that may be read. Raises ``OSError``."""
        read = partial(self._privileged.read, "environment", str(pid))
        return self._of_memory(pid, "environ", read)

    def command_line(self, pid: int, read: Callable[[], T]) -> T:
        """What ``read`` gives of a process's /proc/PID/cmdline. Raises ``OSError``."""
        return self._of_memory(pid, "cmdline", read)

    def python(self, pid: int) -> bytes:
        """What py-spy says of the threads of a process. Raises ``OSError``.

        It may not come back from the memory of a process that maps a file of a dead mount. So the
        process has to answer first, and before it the one from which it has not come back of the
        same owner.
        """
        tenant = self._tenant(f"/proc/{pid}/root/")
        if tenant in self._kept:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._answers(self._kept[tenant])
        self._kept.pop(tenant, None)
        self._answers(pid)
        try:
            return self._privileged.python(str(pid))
        except OSError as error:
            if error.errno == errno.EDEADLK:
                self._kept[tenant] = pid
            raise

    def _answers(self, pid: int) -> None:
        path = f"{self.rootfs}/proc/{pid}/cmdline"
        self.command_line(pid, partial(_beginning, path))

    def _of_memory(self, pid: int, file: str, read: Callable[[], T]) -> T:
        """What the kernel reads in the memory of a process.

        It waits while the process maps a file, and so for ever if that is on a dead mount.
        """
        return self._patience.ask(self._tenant(f"/proc/{pid}/root/"), f"/proc/{pid}/{file}", read)

    def _ask(self, path: str, verb: str, *arguments: str) -> bytes:
        return self._patience.ask(
            self._tenant(path), path, lambda: self._privileged.read(verb, *arguments)
        )

    def _tenant(self, path: str) -> str:
        """Whose path it is, as the kernel tells it of the process."""
        try:
            with opened(f"{self.rootfs}{place(path)['process']}/cgroup", os.O_RDONLY) as file:
                text = os.read(file, 1 << 16).decode("utf-8", "replace")
                return budget(text, str(os.fstat(file).st_uid))
        except FileNotFoundError:
            return ""


def _beginning(path: str) -> bytes:
    with opened(path, os.O_RDONLY) as file:
        return os.read(file, 1)


def is_inside(path: str) -> bool:
    """Whether a path of the node leads through the root or working directory of a process."""
    return PLACE.fullmatch(path) is not None
