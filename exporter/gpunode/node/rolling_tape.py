"""The last minutes of a node on a tape in memory, of which any part can be cut and played back.

What a node answers is written when it changes, in chunks of gzip, of which the oldest are dropped.
The last answer to each question is kept beside them, so that a tape also has what was asked long
before it begins and has not changed since: who a process is, or what a setting is.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from gpunode import __version__
from gpunode.driver.driver import DriverError
from gpunode.node.datagram_socket import Datagram
from gpunode.node.node import Clock, NotRecorded
from gpunode.node.stacks import ProcessStacks
from gpunode.node.tape import FORMAT, NODE_CALLS, adapter, failure

CHUNK = 256 << 10
"""Characters of a chunk before it is compressed, which takes a millisecond or two."""

MAX_ANSWER = 1 << 20
"""Characters of an answer; a longer one is left out."""

MAX_LAST = 4 << 20
"""Characters of the last answers that are kept."""

REPEATED = 60.0
"""Seconds after which an answer that changes is written once more as it was: what was written of it
before may be dropped by then."""

EVENTS = frozenset(
    {
        *("xids", "operational_events", "unnamed"),
        *(name for name, how in NODE_CALLS.items() if how.events),
    }
)
"""Calls of which each answer has what is new: an empty one changes nothing."""

DRAINING_CALLS = frozenset({"activity", "power_samples", "utilization_samples"})
"""Calls of which each answer counts, as it covers the time since the one before."""

ADDING = EVENTS | DRAINING_CALLS

PROCESS_QUESTION = re.compile(r"(?:/proc/)?([0-9]{1,10})(?:[/ ]|$)")
"""What a question about a process begins with."""

CODE_FIELD = "where"
"""The field of a client's message that has its position in the code."""


@dataclass(frozen=True, slots=True)
class FailedAnswer:
    """An error in place of an answer, as a tape has it."""

    content: dict[str, Any]


@dataclass(slots=True)
class LastAnswer:
    """The last answer to a question: when it was written and when it was last given."""

    answer: Any
    written: float
    given: float
    size: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of the tape, compressed, from one time to another (monotonic)."""

    begin: float
    end: float
    data: bytes


@dataclass(slots=True)
class PendingAnswer:
    """Lines that are not compressed yet."""

    begin: float
    lines: list[str] = field(default_factory=list)
    size: int = 0


class RollingTape:
    """What a node answered in the last ``seconds``, in at most ``most_bytes`` of chunks.

    Without ``code``, neither frames nor the names of threads are kept of a process's stacks.
    """

    def __init__(self, clock: Clock, seconds: float, most_bytes: int, *, code: bool) -> None:
        self.clock = clock
        self.seconds = seconds
        self.most_bytes = most_bytes
        self.code = code
        self.left_out = 0
        """Answers that were too long to keep, or made way though they may be missed."""

        self._start = clock.monotonic()
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], LastAnswer] = {}
        self._chunks: deque[Chunk] = deque()
        self._pending = PendingAnswer(self._start)
        self._size = 0
        self._size_of_last = 0
        self._swept = self._start

    @property
    def size(self) -> int:
        """Bytes that are kept, of chunks and of last answers."""
        return self._size + self._pending.size + self._size_of_last

    def answer(self, of: str, call: str, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask, keep the answer or the error, and pass that on."""
        try:
            answer = ask(*given)
        except NotRecorded:
            raise
        except (DriverError, OSError) as error:
            self._note(of, call, FailedAnswer(failure(error)))
            raise
        now = self.clock.monotonic()
        last = self._last.get((of, call))
        if (
            last is not None
            and now - self._swept < REPEATED
            and (answer == last.answer if call not in ADDING else not answer and call in EVENTS)
        ):  # as nearly always, and nothing else changes
            last.given = now
        else:
            self._note(of, call, answer)
        return answer

    def cut(self, since: float, comment: str) -> bytes:
        """A tape of what was answered since a time (monotonic) and is still kept."""
        with self._lock:
            chunks, pending = list(self._chunks), list(self._pending.lines)
            pending_since = self._pending.begin
            last = dict(self._last)
        chunks = [chunk for chunk in chunks if chunk.end >= since]
        begins = max(since, min([pending_since, *(chunk.begin for chunk in chunks)]))
        now = self.clock.monotonic()
        header = {
            "gpunode_tape": FORMAT,
            "version": __version__,
            "time": self.clock.time() - (now - begins),
            "comment": comment,
            "begins": round(begins - self._start, 6),
        }
        before = [
            _line(begins - self._start, *question, _content(question[1], one.answer))
            for question, one in last.items()
            if one.written < begins
        ]
        # Each part is a gzip file of its own, and so is what they are together (RFC 1952, 2.2).
        parts = (json.dumps(header, separators=(",", ":")) + "\n", *before)
        rest = gzip.compress("".join(pending).encode(), 1, mtime=0)
        return b"".join(
            (
                gzip.compress("".join(parts).encode(), 1, mtime=0),
                *(chunk.data for chunk in chunks),
                rest,
            )
        )

    def _note(self, of: str, call: str, answer: Any) -> None:
        with self._lock:  # so that the lines of one question are in order
            self._write((of, call), answer, self.clock.monotonic())
            if self._pending.size >= CHUNK:
                self._compress()
            if self.clock.monotonic() - self._swept >= REPEATED:
                self._sweep()

    def _write(self, question: tuple[str, str], answer: Any, now: float) -> None:
        of, call = question
        last = self._last.get(question)
        adds = call in ADDING and not isinstance(answer, FailedAnswer)
        if call in EVENTS and answer == []:
            if last is None:
                self._last[question] = LastAnswer([], now, now, 0)
            return
        if not self.code:
            answer = without_code(answer)
        if last is not None and not adds and last.answer == answer:
            last.given = now
            return
        line = _line(now - self._start, of, call, _content(call, answer))
        if len(line) > MAX_ANSWER:
            self.left_out += 1
            return
        if last is not None and not adds and now - last.written > REPEATED:
            self._append(_line(last.given - self._start, of, call, _content(call, last.answer)))
        self._append(line)
        self._size_of_last += len(line) - (last.size if last else 0)
        kept = [] if call in EVENTS and adds else answer
        self._last[question] = LastAnswer(kept, now, now, len(line))

    def _append(self, line: str) -> None:
        self._pending.lines.append(line)
        self._pending.size += len(line)

    def _compress(self) -> None:
        now = self.clock.monotonic()
        pending, self._pending = self._pending, PendingAnswer(now)
        data = gzip.compress("".join(pending.lines).encode(), 1, mtime=0)
        self._chunks.append(Chunk(pending.begin, now, data))
        self._size += len(data)
        while self._chunks and (
            self._size > self.most_bytes or self._chunks[0].end < now - self.seconds
        ):
            self._size -= len(self._chunks.popleft().data)

    def _sweep(self) -> None:
        """Drop what was said of processes that nobody asks about, and what is too much."""
        now = self._swept = self.clock.monotonic()
        of = {question: PROCESS_QUESTION.match(question[0]) for question in self._last}
        heard = {
            process[1]
            for question, process in of.items()
            if process and now - self._last[question].given < self.seconds
        }
        for question, process in of.items():
            if process and process[1] not in heard:
                self._size_of_last -= self._last.pop(question).size
        if self._size_of_last > MAX_LAST:
            for question, _ in sorted(self._last.items(), key=lambda item: item[1].given):
                if self._size_of_last <= MAX_LAST:
                    break
                self._size_of_last -= self._last.pop(question).size
                self.left_out += 1


def without_code(answer: Any) -> Any:
    """An answer without what says where in its code a process stands."""
    if isinstance(answer, ProcessStacks):
        threads = (replace(one, name="", frames=()) for one in answer.threads)
        return replace(answer, threads=tuple(threads))
    if isinstance(answer, list) and any(isinstance(one, Datagram) for one in answer):
        return [replace(one, text=_without_frames(one.text)) for one in answer]
    return answer


def _without_frames(message: str) -> str:
    with suppress(ValueError, RecursionError):
        content = json.loads(message)
        if isinstance(content, dict) and CODE_FIELD in content:
            del content[CODE_FIELD]
            return json.dumps(content)
    return message


def _content(call: str, answer: Any) -> dict[str, Any]:
    """An answer or an error as a tape has it."""
    if isinstance(answer, FailedAnswer):
        return answer.content
    return {"answer": adapter(call).dump_python(answer, mode="json")}


def _line(time: float, of: str, call: str, content: dict[str, Any]) -> str:
    line = {"t": round(time, 6), "of": of, "call": call, **content}
    return json.dumps(line, separators=(",", ":")) + "\n"
