"""Reads inside the roots of other processes, where what a tenant chose may never answer.

``gpunode.helper`` finds a path there with the rights of the process's user, and looks at what it is
before it opens it. Here each read has a thread of its own.
"""

from __future__ import annotations

import os

from gpunode.helper.inside import PLACE, opened, place
from gpunode.node.cgroup import budget
from gpunode.node.patience import Patience
from gpunode.node.privileged import Privileged


class Inside:
    """Reads inside the roots of the processes of a node."""

    def __init__(self, privileged: Privileged) -> None:
        self.rootfs = privileged.rootfs
        self._privileged = privileged
        self._patience = Patience()

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
        return self._ask(f"/proc/{pid}/root/", "maps", str(pid))

    def _ask(self, path: str, verb: str, *arguments: str) -> bytes:
        what = path if verb != "maps" else f"/proc/{arguments[0]}/maps"
        return self._patience.ask(
            self._tenant(path), what, lambda: self._privileged.read(verb, *arguments)
        )

    def _tenant(self, path: str) -> str:
        """Whose path it is, as the kernel tells it of the process."""
        try:
            with opened(f"{self.rootfs}{place(path)['process']}/cgroup", os.O_RDONLY) as file:
                text = os.read(file, 1 << 16).decode("utf-8", "replace")
                return budget(text, str(os.fstat(file).st_uid))
        except FileNotFoundError:
            return ""


def is_inside(path: str) -> bool:
    """Whether a path of the node leads through the root or working directory of a process."""
    return PLACE.fullmatch(path) is not None
