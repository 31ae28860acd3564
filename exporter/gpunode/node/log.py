"""Follows a growing log: a file through its rotations, or the kernel's ring buffer.

A read of /dev/kmsg returns one record, EAGAIN if there are no more, and EPIPE if some were
overwritten: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

CHUNK = 1 << 16
MAX_READ = 1 << 20
"""The most bytes read from a log at once; in a flood, the rest is skipped."""

MAX_OVERRUN = 1000
"""The most failed reads at once for records that were overwritten before they were read."""


def opened_log(path: str) -> int:
    """A descriptor of a log. Raises ``OSError``."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class Log:
    """A log, read from its end at the time of the first call.

    After a failure it is opened anew: the same file goes on where it stood, another one begins with
    its first line, and the ring buffer, which has no place to come back to, with the next record.
    """

    def __init__(self, path: str, opened: Callable[[str], int] = opened_log) -> None:
        self.path = path
        self._opened = opened
        self._file: int | None = None
        self._rest = b""
        self._expected = False
        self._stood = (0, 0, 0)

    def new_lines(self) -> list[str]:
        """Complete lines since the last call, none at the first. Raises ``OSError``."""
        try:
            file = self._open() if self._file is None else self._file
            lines = self._drain(file)
            rotated = self._was_rotated(file)
        except OSError:
            self._close()
            raise
        if rotated:
            self._close()
            try:
                lines += self._drain(self._open())
            except OSError:  # the next call raises it
                self._close()
        return lines

    def _open(self) -> int:
        try:
            self._file = self._opened(self.path)
        except FileNotFoundError:
            self._expected = True  # what it will hold is new
            raise
        found = os.fstat(self._file)
        *same, position = self._stood
        if not self._expected or not stat.S_ISREG(found.st_mode):
            os.lseek(self._file, 0, os.SEEK_END)
        elif same == [found.st_dev, found.st_ino] and position <= found.st_size:
            os.lseek(self._file, position, os.SEEK_SET)
        self._expected = True
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._rest = None, b""

    def _was_rotated(self, file: int) -> bool:
        """Whether the path now leads to another file, or the same one was truncated."""
        try:
            new = os.stat(self.path)
        except FileNotFoundError:  # between two steps of a rotation
            return False
        old = os.fstat(file)
        if (old.st_dev, old.st_ino) != (new.st_dev, new.st_ino):
            return True
        return stat.S_ISREG(new.st_mode) and new.st_size < os.lseek(file, 0, os.SEEK_CUR)

    def _drain(self, file: int) -> list[str]:
        content, overrun = self._rest, 0
        while len(content) < MAX_READ and overrun < MAX_OVERRUN:
            try:
                part = os.read(file, CHUNK)
            except BlockingIOError:
                break
            except BrokenPipeError:
                overrun += 1
                continue
            if not part:
                break
            content += part
        else:
            os.lseek(file, 0, os.SEEK_END)
            content = content[: content.rfind(b"\n") + 1]
        whole, _, rest = content.rpartition(b"\n")
        self._rest = rest[-CHUNK:]
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode):
            position = os.lseek(file, 0, os.SEEK_CUR) - len(self._rest)
            self._stood = found.st_dev, found.st_ino, position
        # splitlines() would also end a line where its text holds a form feed or the like.
        return whole.decode("utf-8", "replace").split("\n") if whole else []
