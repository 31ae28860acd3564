"""What programs say that is worth keeping word for word: the kernel, and NCCL in its log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from gpunode.host.kernel_log import kind_of, level_of, message_of
from gpunode.host.kernel_trouble import troubled
from gpunode.incidents.incident import Happening, clean
from gpunode.incidents.moments import SharedMoments, SourcedMoment
from gpunode.node.node import Clock, KeptLines
from gpunode.node.rolling_tape import RollingTape

MAX_LINES = 256
"""The latest lines of the kernel that are kept."""

MAX_NEW_LINES = 64
"""The last lines of one answer that are kept."""


class LogRecorder:
    """Records on a tape, and keeps the latest lines of the kernel and NCCL logs."""

    def __init__(self, clock: Clock, tape: RollingTape) -> None:
        self.clock = clock
        self.tape = tape
        self._lock = threading.Lock()
        self._kernel: deque[Happening] = deque(maxlen=MAX_LINES)
        self._new = SharedMoments(2 * MAX_LINES)

    def answer(self, of: str, call: str, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask, record the question with its answer or error, and pass that on."""
        answer = self.tape.answer(of, call, ask, *given)
        if call == "log_lines" and answer:
            lines = list(_kernel_moments(of, answer, self.clock.time()))[-MAX_NEW_LINES:]
            with self._lock:
                self._kernel.extend(lines)
                self._new.add(("", line) for line in lines)
        elif call == "lines" and isinstance(answer, KeptLines) and answer.kept:
            pid = of.split("/")[2] if of.startswith("/proc/") else ""
            lines = list(_nccl_moments(pid, answer, self.clock.time()))[-MAX_NEW_LINES:]
            with self._lock:
                self._new.add((pid, line) for line in lines)
        return answer

    def new(self) -> list[SourcedMoment]:
        """The lines since the last call, with the process that wrote them; none of the kernel."""
        with self._lock:
            found, self._new = self._new, SharedMoments(2 * MAX_LINES)
        return list(found.since(0.0))

    def kernel_since(self, time: float) -> list[str]:
        """What the kernel said at a time, in seconds since the epoch, or later."""
        with self._lock:
            return [moment.text for moment in self._kernel if moment.time >= time]


def _kernel_moments(path: str, lines: list[str], time: float) -> Iterator[Happening]:
    """The lines of which a kind is known, or that tell of trouble."""
    for line in lines:
        message = message_of(path, line)
        if message is not None and (kind_of(message) or troubled(message, level_of(path, line))):
            yield Happening(time, "kernel", clean(message))


def _nccl_moments(pid: str, lines: KeptLines, time: float) -> Iterator[Happening]:
    """What is kept of the lines of NCCL's log."""
    for line in lines.kept:
        if line == "WARN" or "NCCL INFO" in line[:40]:
            yield Happening(time, "nccl", clean(f"process {pid}: {line}" if pid else line))
