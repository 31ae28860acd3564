"""How processes ended that are children of others: the kernel keeps that for who holds a pidfd.

It takes no privilege, whoever's the process is, and Linux 6.15 or later:
https://github.com/torvalds/linux/blob/v6.15/include/uapi/linux/pidfd.h (PIDFD_INFO_EXIT)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import threading
from collections.abc import Callable

from gpunode.node.node import Node

INFO = struct.Struct("=QQ11Ii")
"""``struct pidfd_info`` as it was at first: what is known, …, the status with which it ended."""

GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11
"""``PIDFD_GET_INFO``."""

EXIT = 1 << 3
"""``PIDFD_INFO_EXIT``."""

MAX_PROCESSES = 128
"""The most processes that are waited for, each with an open file; the oldest make way."""


class Endings:
    """Holds processes, to tell how they ended."""

    def __init__(self, start_of: Callable[[int], float]) -> None:
        """``start_of`` tells when the process that has a PID started; it raises ``OSError``."""
        self._start_of = start_of
        self._lock = threading.Lock()
        self._held: dict[tuple[int, float], int] = {}
        self._told: dict[tuple[int, float], int] = {}
        """How the last ended, for whoever asks after another has."""

    def of(self, pid: int, start: float) -> int | None:
        """The status with which a process ended, as ``wait`` has it; None while it runs.

        The first call holds it, and one after its end lets it go. None also where the kernel does
        not tell. Raises ``OSError`` for a process that is gone at the first call.
        """
        with self._lock:
            if (pid, start) in self._told:
                return self._told[pid, start]
            held = self._held.get((pid, start))
            if held is None:
                self._hold(pid, start)
                return None
            info = bytearray(INFO.pack(EXIT, *[0] * 13))
            try:
                fcntl.ioctl(held, GET_INFO, info)
            except OSError:  # before Linux 6.13
                return None
            known, *_, status = INFO.unpack(info)
            if not known & EXIT:
                return None
            self._let_go((pid, start))
            self._told[pid, start] = int(status)
            if len(self._told) > MAX_PROCESSES:
                del self._told[next(iter(self._told))]
            return int(status)

    def _hold(self, pid: int, start: float) -> None:
        held = os.pidfd_open(pid)
        try:
            same = self._start_of(pid) == start
        except OSError:
            same = False
        if not same:  # another process has its PID
            os.close(held)
            raise ProcessLookupError(3, "another process has its PID")
        self._held[pid, start] = held
        while len(self._held) > MAX_PROCESSES:
            self._let_go(next(iter(self._held)))

    def _let_go(self, process: tuple[int, float]) -> None:
        with contextlib.suppress(OSError):
            os.close(self._held.pop(process))


def ended_badly(node: Node, process: tuple[int, float]) -> bool:
    """Whether the kernel says that a process (PID and start) ended with an error."""
    with contextlib.suppress(OSError):
        return bool(node.ended(*process))
    return False


def in_words(status: int) -> str:
    """How a process ended, by its status as ``wait`` has it."""
    if not os.WIFSIGNALED(status):
        return f"it ended with exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    with contextlib.suppress(ValueError):
        return f"it was ended by signal {number} ({signal.Signals(number).name})"
    return f"it was ended by signal {number}"
