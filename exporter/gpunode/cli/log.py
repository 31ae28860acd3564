"""What the program logs: a line for each event, whatever tenants put into it, and no disk full."""

from __future__ import annotations

import logging

from gpunode.cli import streams
from gpunode.text import escaped

MAX_LINE = 1000
"""Characters of a line, so that it fits into a pipe at once; a path has up to 4,096, a variable of
a process 131,072."""

TRACEBACK = 100
"""Lines of the traceback of a fault; the message of an exception may have any number."""

PERIOD = 3600.0
"""Seconds without a message after which it is no repetition."""

MAX_LINES = 1000
"""Lines in a period, at most one megabyte."""

MAX_MESSAGES = 256
"""Messages to recognise when they repeat."""


class OneLineFormatter(logging.Formatter):
    """One line for each record, which cannot pretend to be another; a traceback is indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        lines = [escaped(self.formatMessage(record), MAX_LINE)]
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            lines += [f"    {escaped(line, MAX_LINE)}" for line in traceback[:TRACEBACK]]
        return "\n".join(lines)


class StandardError(logging.Handler):
    """Writes a message the first, second, fourth, eighth … time, and not too many in a period."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(OneLineFormatter())
        self._times: dict[str, tuple[int, float]] = {}
        self._begin = 0.0
        self._written = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()[:MAX_LINE]
        times = self._count(text, record.created)
        if times & (times - 1):
            return
        if not 0 <= record.created - self._begin <= PERIOD:
            self._begin, self._written = record.created, 0
        self._written += 1
        if self._written > MAX_LINES:
            return
        if self._written == MAX_LINES:
            text = (
                f"more than {MAX_LINES} lines in an hour, leaving out the rest of it after: {text}"
            )
        elif times > 1:
            text = f"{times} times: {text}"
        record.msg, record.args = "%s", (text,)
        for line in self.format(record).split("\n"):
            streams.complain(line)

    def _count(self, text: str, now: float) -> int:
        times, last = self._times.pop(text, (0, now))
        times = times + 1 if 0 <= now - last <= PERIOD else 1
        self._times[text] = times, now
        if len(self._times) > MAX_MESSAGES:
            del self._times[next(iter(self._times))]
        return times
