"""Follows a growing log: a file through its rotations, or the kernel's ring buffer.

A read of /dev/kmsg returns one record, EAGAIN if there are no more, and EPIPE if some were
overwritten: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
"""

from __future__ import annotations

import os
import stat

CHUNK = 1 << 16
MAX_READ = 1 << 20
"""The most bytes read from a log at once; in a flood, the rest is skipped."""


class Log:
    """A log, read from its end at the time of the first call."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: int | None = None
        self._rest = b""
        self._was_missing = False

    def new_lines(self) -> list[str]:
        """Complete lines since the last call, none at the first. Raises ``OSError``."""
        if self._file is None:
            try:
                self._file = _open(self.path)
            except FileNotFoundError:
                self._was_missing = True
                raise
            if not self._was_missing:
                os.lseek(self._file, 0, os.SEEK_END)
        lines = self._drain(self._file)
        if self._was_rotated(self._file):
            os.close(self._file)
            self._file, self._rest = None, b""
            self._file = _open(self.path)
            lines += self._drain(self._file)
        return lines

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
        content = self._rest
        while len(content) < MAX_READ:
            try:
                part = os.read(file, CHUNK)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not part:
                break
            content += part
        else:
            os.lseek(file, 0, os.SEEK_END)
            content = content[: content.rfind(b"\n") + 1]
        whole, newline, rest = content.rpartition(b"\n")
        self._rest = rest[-CHUNK:]
        return (whole + newline).decode("utf-8", "replace").splitlines()


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
