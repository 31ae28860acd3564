"""Growing files of the processes on a GPU, one of each process, which the process itself names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from gpunode.driver.driver import Gpu
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder, tenant_key
from gpunode.source import MORE_PROCESSES, bounded
from gpunode.unread import Unknown, Unread

T = TypeVar("T")

UNANSWERED = Unknown(
    "files",
    "a log of a process does not answer, as on a dead mount, or others of its owner do not",
    bound=True,
)


class FollowedFiles(Generic[T]):
    """The files of the processes on one GPU.

    ``begin`` gives what stands for the file of a process, or None if it writes none, and
    ``follow`` adds what the file has gained. Both may raise ``OSError``.
    """

    unknowns = (MORE_PROCESSES, UNANSWERED)

    def __init__(
        self,
        census: Census,
        gpu: Gpu,
        begin: Callable[[Holder], T | None],
        follow: Callable[[T, Holder], None],
    ) -> None:
        self.census = census
        self.gpu = gpu
        self._begin = begin
        self._follow = follow
        self._files: dict[Holder, T] = {}

    def read(self) -> tuple[dict[Holder, T], tuple[Unread, ...]]:
        """The files that could be read now, with what they have gained, and what was left out."""
        look = self.census.look(self.gpu)
        known = [holder for holder in look.holders if holder.start is not None] if look else []
        holders, left_out = bounded(
            known, MORE_PROCESSES, of="processes on a GPU", whose=tenant_key
        )
        self._files = {holder: file for holder, file in self._files.items() if holder in holders}
        read: dict[Holder, T] = {}
        unanswered = 0
        for holder in holders:
            try:
                file = self._file_of(holder)
            except TimeoutError:
                unanswered += 1
            except OSError:
                continue  # not readable, or not written yet
            else:
                read |= {} if file is None else {holder: file}
        if unanswered:
            left_out = (*left_out, UNANSWERED.seen("", unanswered))
        return read, left_out

    def _file_of(self, holder: Holder) -> T | None:
        file = self._files.get(holder)
        if file is None:
            file = self._begin(holder)
            if file is None:
                return None
            self._files[holder] = file
        self._follow(file, holder)
        return file


def inside(holder: Holder, name: str) -> str:
    """The path on the node of a file that a process calls by this name."""
    start = f"/proc/{holder.pid}"
    return f"{start}/root{name}" if name.startswith("/") else f"{start}/cwd/{name}"


def own_host(holder: Holder, name: re.Pattern[str]) -> str:
    """The name of the host of a process, as it sees it, or empty. Raises ``OSError``.

    The first group of the pattern is what a log's name has of it.
    """
    found = holder.node.lines(f"/proc/{holder.pid}/root/etc/hostname", 0, name).kept
    return found[0] if found else ""


def own_pid(holder: Holder) -> int:
    """The id of a process in its own PID namespace, or in ours if that cannot be read."""
    try:
        return holder.own_pid()
    except (OSError, ValueError):
        return holder.pid
