"""What programs say that is worth keeping word for word: the kernel, and NCCL in its log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from gpunode.host.kernel_log import kind_of, level_of, message_of
from gpunode.host.kernel_trouble import troubled
from gpunode.incidents.incident import Happening, clean
from gpunode.node.node import Clock, KeptLines
from gpunode.node.rolling_tape import RollingTape

MOST = 256
"""The latest lines of each that are kept."""

AT_ONCE = 64
"""The last lines of one answer that are kept."""


class Overheard:
    """Records on a tape, and keeps the last lines of the kernel and of NCCL."""

    def __init__(self, clock: Clock, tape: RollingTape) -> None:
        self.clock = clock
        self.tape = tape
        self._lock = threading.Lock()
        self._kernel: deque[Happening] = deque(maxlen=MOST)
        self._nccl: deque[Happening] = deque(maxlen=MOST)
        self._new: deque[Happening] = deque(maxlen=2 * MOST)

    def answer(self, of: str, call: str, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask, record the question with its answer or error, and pass that on."""
        answer = self.tape.answer(of, call, ask, *given)
        if call == "log_lines" and answer:
            self._keep(self._kernel, _of_kernel(of, answer, self.clock.time()))
        elif call == "lines" and isinstance(answer, KeptLines) and answer.kept:
            self._keep(self._nccl, _of_nccl(of, answer, self.clock.time()))
        return answer

    def new(self) -> list[Happening]:
        """The lines since the last call."""
        with self._lock:
            found = list(self._new)
            self._new.clear()
        return found

    def kernel_since(self, time: float) -> list[str]:
        """What the kernel said at a time, in seconds since the epoch, or later."""
        with self._lock:
            return [moment.text for moment in self._kernel if moment.time >= time]

    def _keep(self, kept: deque[Happening], found: Iterator[Happening]) -> None:
        lines = list(found)[-AT_ONCE:]
        if lines:
            with self._lock:
                kept.extend(lines)
                self._new.extend(lines)


def _of_kernel(path: str, lines: list[str], time: float) -> Iterator[Happening]:
    """The lines of which a kind is known, or that tell of trouble."""
    for line in lines:
        message = message_of(path, line)
        if message is not None and (kind_of(message) or troubled(message, level_of(path, line))):
            yield Happening(time, "kernel", clean(message))


def _of_nccl(of: str, lines: KeptLines, time: float) -> Iterator[Happening]:
    """What is kept of the lines of NCCL's log; who wrote them is in the path."""
    pid = of.split("/")[2] if of.startswith("/proc/") else ""
    for line in lines.kept:
        if line == "WARN" or "NCCL INFO" in line[:40]:
            yield Happening(time, "nccl", clean(f"process {pid}: {line}" if pid else line))
