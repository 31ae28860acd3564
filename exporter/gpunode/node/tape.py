r"""Tapes: recordings of what a node was asked and what it answered, with times, for playback.

A tape is gzip-compressed JSON lines. The first line is a header; every other line is a question and
its answer at ``t`` seconds from the start:

    {"gpunode_tape": 1, "version": "0.1.0", "time": 1795219603.29, "again_from": 20.0}
    {"t": 2.001, "of": "GPU-…", "call": "temperature", "answer": 36.0}
    {"t": 2.001, "of": "GPU-…", "call": "fabric", "error": "Unsupported", "message": "…"}
    {"t": 2.004, "of": "/proc/559/comm", "call": "read_text", "answer": "python3\n"}

Played to its end, a tape starts over at ``again_from`` seconds, or else at its beginning: what ends
in a hang is not cured by that. The first ``opening`` seconds can be repeated often enough to
fill the time before them; ``look`` says what is worth looking at. A tape that was cut from a longer
one counts from ``begins``: what it has from before holds when it begins.

Playback may ask at other times: a gauge is the latest answer, activity means are averaged over the
answers since the last question, and buffers hold the samples up to now. A tape contains only what
sources ask for; of a process's environment, the node answers only a few harmless names, and of a
tenant's file only what a parser recognises, so a tape holds no secrets. The schema of the answers
is the annotations of ``Gpu`` in ``driver/driver.py`` and of ``Node``.
"""

from __future__ import annotations

import errno
import gzip
import json
import logging
import math
import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TextIO, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from gpunode import __version__
from gpunode.driver.driver import (
    Activity,
    Driver,
    DriverError,
    DriverUnavailable,
    Gpu,
    Identity,
    OperationalEvent,
    SampleBuffer,
    SensorFailed,
    Unsupported,
    Xid,
)
from gpunode.driver.vendors import VENDORS
from gpunode.mistake import UsageError
from gpunode.node.node import Node, NotRecorded, SteppedClock

log = logging.getLogger(__name__)

FORMAT = 1

MAX_LINE = 32 << 20
"""The most characters of a line that is played: more than the largest file that is recorded."""

MAX_TAPE = 1 << 30
"""The most characters of a tape that are played: gzip makes a terabyte of a gigabyte of zeros."""

MAX_TAPE_SECONDS = 31_536_000
"""The most seconds of a tape that are played: a year."""


@dataclass(frozen=True, slots=True)
class NodeCall:
    """How a tape stores a method of ``Node``.

    The first ``named_by`` arguments identify the question. The answers are either states, of which
    the latest counts, or ``events``, each of which is returned once.
    """

    named_by: int = 1
    events: bool = False

    def of(self, arguments: tuple[Any, ...]) -> str:
        """What a call asks about, as stored on the tape."""
        return " ".join(map(str, arguments[: self.named_by]))


NODE_CALLS = {
    "read_text": NodeCall(),
    "list_directory": NodeCall(),
    "filesystem": NodeCall(),
    "log_lines": NodeCall(events=True),
    "lines": NodeCall(named_by=2),
    "sums": NodeCall(named_by=2),
    "environment": NodeCall(),
    "program": NodeCall(),
    "libraries": NodeCall(),
    "shares_memory": NodeCall(),
    "image": NodeCall(),
    "listens": NodeCall(),
    "communicates": NodeCall(),
    "stacks": NodeCall(),
    "ended": NodeCall(),
    "open_files": NodeCall(),
    "round_trips": NodeCall(named_by=0),
    "network_statistics": NodeCall(),
    "read_link": NodeCall(),
    "helpers": NodeCall(named_by=0),
    "ask": NodeCall(named_by=2),
    "listening_at": NodeCall(),
    "scrape": NodeCall(named_by=3),
    "datagrams": NodeCall(events=True),
    "allocations": NodeCall(),
}
GPU_CALLS = [name for name in vars(Gpu) if name[0] != "_" and name != "identity"]
CALLS = frozenset({"gpus", *GPU_CALLS, *NODE_CALLS})


@cache
def adapter(call: str) -> TypeAdapter[Any]:
    """Reads and writes the answers of a call; it takes a millisecond to make."""
    if call == "gpus":
        return TypeAdapter(list[Identity])
    seam = Gpu if call in GPU_CALLS else Node
    return TypeAdapter(get_type_hints(getattr(seam, call))["return"])


ERRORS = {
    kind.__name__: kind for kind in (DriverError, Unsupported, SensorFailed, DriverUnavailable)
}


def failure(error: DriverError | OSError) -> dict[str, Any]:
    """An error in place of an answer, as a line of a tape has it."""
    if isinstance(error, DriverError):
        return {"error": type(error).__name__, "message": str(error)}
    return {"errno": error.errno}


class TapeError(UsageError):
    """A tape cannot be played; ``str()`` names the file, the line and the problem."""


class TapeWriter:
    """Writes a tape until it reaches ``max_bytes``; the rest is not recorded."""

    def __init__(self, path: Path, node: Node, max_bytes: int, comment: str = "") -> None:
        self.clock = node.clock
        self.max_bytes = max_bytes
        self.filled = threading.Event()
        self._failure: OSError | None = None
        self._start = node.clock.monotonic()
        self._raw = path.open("wb")
        self._file = cast(TextIO, gzip.open(self._raw, "wt", encoding="utf-8"))  # noqa: SIM115
        self._lock = threading.Lock()
        header = {"gpunode_tape": FORMAT, "version": __version__, "time": self.clock.time()}
        self._write({**header, "comment": comment})

    def answer(self, of: str, call: str, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask, record the question with its answer or error, and pass that on."""
        question = {"of": of, "call": call}
        try:
            answer = ask(*given)
        except (DriverError, OSError) as error:
            self._note({**question, **failure(error)})
            raise
        self._note({**question, "answer": adapter(call).dump_python(answer, mode="json")})
        return answer

    def _note(self, line: dict[str, Any]) -> None:
        if self._raw.closed or self.filled.is_set():
            return
        if self._raw.tell() >= self.max_bytes:
            self.filled.set()
            log.warning("the tape is full (%d bytes), recording ends", self.max_bytes)
            return
        self._write({"t": round(self.clock.monotonic() - self._start, 6), **line})

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if not self._file.closed:
                try:
                    self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
                except OSError as error:  # not a failure of the source that asked
                    self._failure = error
                    self.filled.set()

    def close(self) -> None:
        """Finish the file. Raises ``OSError`` if not all of the tape could be written."""
        with self._lock, self._raw:
            self._file.close()
        if self._failure is not None:
            raise self._failure


class Recorder(Protocol):
    """What answers are recorded on."""

    def answer(self, of: str, call: str, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask, record the question with its answer or error, and pass that on."""
        ...


class RecordingNode:
    """A node with every method of ``Node``; it records each call."""

    def __init__(self, node: Node, tape: Recorder) -> None:
        self.node = node
        self.tape = tape
        self.clock = node.clock
        self.drivers = [RecordingDriver(driver, tape) for driver in node.drivers]

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call not in NODE_CALLS:
            raise AttributeError(call)
        method, how, answer = getattr(self.node, call), NODE_CALLS[call], self.tape.answer

        def ask(*given: Any) -> Any:
            return answer(how.of(given), call, method, *given)

        setattr(self, call, ask)
        return ask


class RecordingDriver:
    """A driver whose GPUs record each call."""

    def __init__(self, driver: Driver, tape: Recorder) -> None:
        self.driver = driver
        self.vendor = driver.vendor
        self.tape = tape
        self._gpus: dict[str, RecordingGpu] = {}

    def gpus(self) -> list[Gpu]:
        found: list[Gpu] = []

        def identities() -> list[Identity]:
            found.extend(self.driver.gpus())
            return [gpu.identity for gpu in found]

        self.tape.answer(self.vendor, "gpus", identities)
        for gpu in found:
            self._gpus.setdefault(gpu.identity.uuid, RecordingGpu(gpu, self.tape))
        return [cast(Gpu, self._gpus[gpu.identity.uuid]) for gpu in found]


class RecordingGpu:
    """A GPU with every method of ``Gpu``; it records each call."""

    def __init__(self, gpu: Gpu, tape: Recorder) -> None:
        self.gpu = gpu
        self.tape = tape
        self.identity = gpu.identity

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call not in GPU_CALLS:
            raise AttributeError(call)
        ask = partial(self.tape.answer, self.identity.uuid, call, getattr(self.gpu, call))
        setattr(self, call, ask)
        return ask


class Track:
    """All answers to one question, ordered by time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.answers: list[Any] = []

    def add(self, time: float, answer: Any) -> None:
        self.times.append(time)
        self.answers.append(answer)

    def at(self, now: float) -> Any:
        """The latest answer at ``now``, or else the first; raises it if it is an error."""
        answer = self.answers[max(0, bisect_right(self.times, now) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def since(self, before: float, now: float) -> list[Any]:
        """The answers after ``before`` and up to ``now``; raises the last if it is an error."""
        found = self.answers[bisect_right(self.times, before) : bisect_right(self.times, now)]
        if found and isinstance(found[-1], Exception):
            raise found[-1]
        return [answer for answer in found if not isinstance(answer, Exception)]

    def overlapping(self, begin: float, end: float) -> Iterator[tuple[Activity, float]]:
        """Activity within a time span, with its seconds there; raises an error recorded there."""
        for at in range(bisect_right(self.times, begin), len(self.times)):
            answer = self.answers[at]
            if isinstance(answer, Exception):
                if self.times[at] <= end:
                    raise answer
                continue
            since = max(begin, self.times[at] - answer.seconds)
            if since >= end:
                return
            overlap = min(end, self.times[at]) - since
            if overlap > 0:
                yield answer, overlap


class TapeNode:
    """A node played back from a tape, on the tape's clock.

    After its end the tape starts over, as if the same happened again, or what it says goes on.
    """

    def __init__(self, path: Path, before: float = 0.0) -> None:
        self.path = path
        self.name = path.name.partition(".")[0]
        self.end = 0.0
        self.tracks: dict[tuple[str, str], Track] = {}
        self._last_read: dict[tuple[str, str], tuple[int, float]] = {}
        lines = self._lines()
        header = next(lines, {})
        self.comment, self.clock = self._header(header)
        self.look = str(header.get("look", ""))
        self.begins = self._begins(header)
        for number, line in enumerate(lines, 2):
            self._take(f"{self.path}: line {number}", line)
        self.again_from = self._second(header, "again_from")
        self.opening = self._second(header, "opening")
        self.openings = int(before // self.opening) if self.opening else 0
        """How many times the opening is repeated first."""

        self.lead = self.openings * self.opening
        """Seconds that this takes."""

        vendors = [of for of, call in self.tracks if call == "gpus"]
        self.drivers = [TapeDriver(self, vendor) for vendor in vendors]

    @property
    def position(self) -> float:
        """The clock's position on the tape, in seconds."""
        return self.clock.now - self.repeated

    @property
    def lap(self) -> int:
        """How many times the opening or the tape has been played to its end."""
        now, length = self.clock.now - self.lead, self.end - self.again_from
        if now < 0:
            return int(self.clock.now // self.opening)
        again = max(0, math.ceil((now - self.end) / length)) if length else 0
        return self.openings + again

    @property
    def repeated(self) -> float:
        """How many seconds of the tape have been played again."""
        again = max(0, self.lap - self.openings)
        return (self.lap - again) * self.opening + again * (self.end - self.again_from)

    @property
    def jumped(self) -> tuple[float, float]:
        """From where on the tape to where playback went when the present lap began."""
        if self.lap <= self.openings:
            return self.opening, 0.0
        return self.end, self.again_from

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call not in NODE_CALLS:
            raise AttributeError(call)
        how = NODE_CALLS[call]
        if how.events:
            return lambda *given: [
                event for events in self.since_last_read(how.of(given), call) for event in events
            ]
        return lambda *given: self.recorded(how.of(given), call).at(self.position)

    def since_last_read(self, of: str, call: str) -> list[Any]:
        """The answers since the last call with the same question, so that no event comes twice."""
        track = self.recorded(of, call)
        lap, before = self._last_read.get((of, call), (0, -1.0))
        self._last_read[of, call] = self.lap, self.position
        if lap == self.lap:
            return track.since(before, self.position)
        end, again = self.jumped
        return [*track.since(before, end), *track.since(again or -1.0, self.position)]

    def recorded(self, of: str, call: str) -> Track:
        """All answers to a question. Raises ``NotRecorded`` if it was never asked."""
        track = self.tracks.get((of, call))
        if track is None:
            raise NotRecorded(errno.ENOENT, os.strerror(errno.ENOENT), of)
        return track

    def _lines(self) -> Iterator[dict[str, Any]]:
        number = length = 0
        try:
            with gzip.open(self.path, "rt", encoding="utf-8") as file:
                while text := file.readline(MAX_LINE + 1):
                    number, length = number + 1, length + len(text)
                    if len(text) > MAX_LINE or length > MAX_TAPE:
                        raise TapeError(f"{self.path}: line {number}: too long to be played")
                    line = json.loads(text)
                    if not isinstance(line, dict):
                        raise TapeError(f"{self.path}: line {number}: not a JSON object")
                    yield line
        except json.JSONDecodeError as error:
            raise TapeError(f"{self.path}: line {number}: not JSON: {error.msg}") from error
        except RecursionError as error:
            raise TapeError(f"{self.path}: line {number}: nested too deeply") from error
        except EOFError:
            # A recorder that was killed leaves a truncated file; its complete lines count.
            log.warning("%s: truncated after line %d", self.path, number)
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise TapeError(f"{self.path}: {error.strerror}") from error
        except (OSError, zlib.error, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise TapeError(f"{self.path}: after line {number}: cannot be read: {why}") from error
        except ValueError as error:
            raise TapeError(f"{self.path}: line {number}: a number has too many digits") from error

    def _header(self, line: dict[str, Any]) -> tuple[str, SteppedClock]:
        time = line.get("time")
        if line.get("gpunode_tape") != FORMAT or not isinstance(time, float | int):
            raise TapeError(f"{self.path}: line 1: not a gpunode tape of format {FORMAT}")
        if not 0 <= time < 1e12:
            raise TapeError(f"{self.path}: line 1: field time: not seconds since the epoch")
        return str(line.get("comment", "")), SteppedClock(float(time))

    def _begins(self, header: dict[str, Any]) -> float:
        begins = header.get("begins", 0.0)
        if not isinstance(begins, float | int) or not 0 <= begins < MAX_TAPE_SECONDS:
            raise TapeError(f"{self.path}: line 1: field begins: not a time in seconds")
        return float(begins)

    def _second(self, header: dict[str, Any], field: str) -> float:
        second = header.get(field, 0.0)
        if not isinstance(second, float | int) or not 0 <= second <= self.end:
            raise TapeError(f"{self.path}: line 1: field {field}: not a time on the tape")
        return float(second)

    def _take(self, where: str, line: dict[str, Any]) -> None:
        time, of, call = line.get("t"), line.get("of"), line.get("call")
        if not isinstance(time, float | int) or not 0 <= time < MAX_TAPE_SECONDS:
            raise TapeError(f"{where}: field t: not a time in seconds: {time!r:.40}")
        if not isinstance(of, str):
            raise TapeError(f"{where}: field of: not a string: {of!r}")
        if not isinstance(call, str) or call not in CALLS:
            raise TapeError(f"{where}: field call: unknown: {call!r}")
        time = max(0.0, float(time) - self.begins)
        self.end = max(self.end, time)
        track = self.tracks.setdefault((of, call), Track())
        if track.times and time < track.times[-1]:
            raise TapeError(f"{where}: field t: earlier than the line before: {time!r}")
        answer = self._answer(where, line, adapter(call))
        if call == "gpus" and isinstance(answer, list):
            for place, identity in enumerate(answer):
                if identity.vendor not in VENDORS:
                    field = f"answer.{place}.vendor"
                    raise TapeError(f"{where}: field {field}: unknown: {identity.vendor!r}")
        track.add(time, answer)

    def _answer(self, where: str, line: dict[str, Any], kind: TypeAdapter[Any]) -> Any:
        if "error" in line:
            return ERRORS.get(str(line["error"]), DriverError)(str(line.get("message", "")))
        if isinstance(line.get("errno"), int) and 0 <= line["errno"] < 4096:
            return OSError(line["errno"], os.strerror(line["errno"]), line["of"])
        try:
            return kind.validate_python(line.get("answer"))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in ("answer", *first["loc"]))
            raise TapeError(f"{where}: field {place}: {first['msg']}") from error


class TapeDriver:
    """A driver played back from a tape."""

    def __init__(self, node: TapeNode, vendor: str) -> None:
        self.node = node
        self.vendor = vendor
        self._gpus: dict[str, TapeGpu] = {}

    def gpus(self) -> list[Gpu]:
        """The GPUs listed on the tape at this time."""
        identities = self.node.recorded(self.vendor, "gpus").at(self.node.position)
        for identity in identities:
            self._gpus.setdefault(identity.uuid, TapeGpu(self.node, identity))
        return [cast(Gpu, self._gpus[identity.uuid]) for identity in identities]


class TapeGpu:
    """A GPU played back from a tape; see ``driver.Gpu`` for what each method answers."""

    def __init__(self, node: TapeNode, identity: Identity) -> None:
        self.node = node
        self.identity = identity
        self._activity_read: tuple[int, float] | None = None
        self._buffers: dict[str, tuple[list[int], list[float]]] = {}

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call not in GPU_CALLS:
            raise AttributeError(call)
        return lambda: self._track(call).at(self.node.position)

    def activity(self) -> Activity:
        """The mean of the recorded activity since the last call, weighted by time.

        An answer covers the seconds before it, whenever this is called.
        """
        lap, now = self.node.lap, self.node.position
        before_lap, before = self._activity_read or (lap, now)
        self._activity_read = lap, now
        spans = [(before, now)]
        if lap != before_lap:
            end, again = self.node.jumped
            spans = [(before, end), (again, now)]
        counters: set[str] = set()
        totals: dict[str, float] = {}
        weights: dict[str, float] = {}
        for begin, end in spans:
            for answer, seconds in self._track("activity").overlapping(begin, end):
                counters.add(answer.counters)
                for name, value in answer.values.items():
                    totals[name] = totals.get(name, 0.0) + value * seconds
                    weights[name] = weights.get(name, 0.0) + seconds
        return Activity(
            sum(end - begin for begin, end in spans),
            {name: total / weights[name] for name, total in totals.items()},
            *counters if len(counters) == 1 else (),
        )

    def xids(self) -> list[Xid]:
        return self._events("xids")

    def operational_events(self) -> list[OperationalEvent]:
        return self._events("operational_events")

    def unnamed(self) -> list[str]:
        return self._events("unnamed")

    def _events(self, call: str) -> list[Any]:
        self._track(call)
        return [
            event
            for answer in self.node.since_last_read(self.identity.uuid, call)
            for event in answer
        ]

    def power_samples(self, after: int) -> SampleBuffer:
        return self._buffered("power_samples", after)

    def utilization_samples(self, after: int) -> SampleBuffer:
        return self._buffered("utilization_samples", after)

    def _buffered(self, call: str, after: int) -> SampleBuffer:
        """The samples up to now, including those that a later drain recorded."""
        if call not in self._buffers:
            drained = [a for a in self._track(call).answers if not isinstance(a, Exception)]
            if not drained:
                raise self._track(call).answers[0]
            samples = dict(sample for answer in drained for sample in answer.samples)
            times = sorted(samples)
            self._buffers[call] = times, [samples[time] for time in times]
        times, values = self._buffers[call]
        shift = round(self.node.repeated * 1e6)
        now = round(self.node.clock.time() * 1e6)
        _, again = self.node.jumped  # what comes before it on the tape was not played now
        begin = round((self.node.clock.epoch + again) * 1e6) if self.node.lap else 0
        first = bisect_right(times, max(after - shift, begin))
        last = bisect_right(times, now - shift)
        return SampleBuffer([(times[at] + shift, values[at]) for at in range(first, last)])

    def _track(self, call: str) -> Track:
        track = self.node.tracks.get((self.identity.uuid, call))
        if track is None:
            raise Unsupported(f"{call}: not on this tape") from NotRecorded(errno.ENOENT, call)
        return track
