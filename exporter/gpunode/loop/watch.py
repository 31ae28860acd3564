"""One source: it is read at intervals."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.loop import complaints
from gpunode.loop.complaints import News, described, isolated, unrecorded
from gpunode.loop.door import SERIES, Door, label_text
from gpunode.loop.metrics import (
    CPU_SECONDS,
    DROPPED,
    LATE,
    READ_SECONDS,
    REFUSED,
    SKIPPED,
    UNREAD,
)
from gpunode.metric import Distribution, Metric, Sample
from gpunode.node.node import Clock
from gpunode.source import (
    WHOLE_NODE,
    HasUnknowns,
    Key,
    Met,
    OutlastsGpu,
    Place,
    Reading,
    Source,
    View,
)
from gpunode.unread import Unknown, Unread

log = logging.getLogger(__name__)

OVERDUE = 3
"""Intervals after which a reading is no longer exported."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished read: its result, its time, and until when (monotonic) it may be exported."""

    reading: Reading
    time: float
    moment: float
    """Time of the read on the monotonic clock."""

    good_until: float
    _chosen: dict[Collection[Metric], dict[Key, tuple[float, float]]] = field(
        default_factory=dict, repr=False
    )

    def values(self, metrics: frozenset[Metric]) -> Mapping[Key, tuple[float, float]]:
        """The values of these metrics, with the time of the read; found once for all who ask."""
        chosen = self._chosen.get(metrics)
        if chosen is None:
            chosen = self._chosen[metrics] = {
                (sample.metric, sample.labels): (sample.value, self.moment)
                for sample in self.reading.samples
                if sample.metric in metrics and not isinstance(sample.value, Distribution)
            }
        return chosen


EXAMPLES = 5
"""How many examples of one kind of what is not understood are kept."""


class Published:
    """Tells whether any source has published since: it then has another ``last``."""

    def __init__(self) -> None:
        self.last = object()

    def again(self) -> None:
        """Note that one has."""
        self.last = object()


@dataclass(slots=True)
class Encounters:
    """How often a kind of what is not understood was met, when last, and the latest examples."""

    times: int = 0
    last: float = 0.0
    examples: deque[str] = field(default_factory=lambda: deque(maxlen=EXAMPLES))


@dataclass(slots=True)
class Counts:
    """How the reads of one source went, at all its places and at those that are gone."""

    late: int = 0
    skipped: int = 0
    dropped: int = 0
    cpu_seconds: float | None = None
    seconds: float = 0.0
    unread: dict[Unknown, Encounters] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to write: two places may be read at a time."""

    def meet(self, found: Iterable[Unread], time: float) -> None:
        """Count what a read met at a time, in seconds since the epoch."""
        with self.lock:
            for one in found:
                met = self.unread.setdefault(one.kind, Encounters())
                met.times, met.last = met.times + one.times, time
                if (example := label_text(one.example)) and example not in met.examples:
                    met.examples.append(example)

    def met(self, name: str) -> list[Met]:
        """What the source of this name met and did not understand, without what it never did."""
        with self.lock:
            return [
                Met(
                    name,
                    kind.what,
                    kind.meaning,
                    met.times,
                    met.last,
                    tuple(met.examples),
                    kind.bound,
                )
                for kind, met in self.unread.items()
                if met.times
            ]

    def samples(self, name: str) -> Iterator[Sample]:
        """The counters of the source of this name."""
        with self.lock:
            unread = [(kind, met.times) for kind, met in self.unread.items()]
        yield from READ_SECONDS.at(self.seconds, name)
        yield from CPU_SECONDS.at(self.cpu_seconds, name)
        yield from LATE.at(float(self.late) or None, name)
        yield from SKIPPED.at(float(self.skipped) or None, name)
        yield from DROPPED.at(float(self.dropped) or None, name)
        for kind, times in unread:
            if kind.bound:
                yield from REFUSED.at(float(times) or None, name, kind.what)
            else:  # a line of a log counts once, and increase() sees what follows a 0
                yield from UNREAD.at(float(times), name, kind.what)


class Watch:
    """One source at one place, and its last batch. It is read by one thread at a time."""

    def __init__(
        self,
        source: Source | View,
        place: Place,
        read: Callable[[], Reading | None],
        clock: Clock,
        counts: Counts,
        door: Door,
        published: Published,
    ) -> None:
        self.published = published
        self.source = source
        self.place = place
        alone = place == WHOLE_NODE or isinstance(source, OutlastsGpu)
        self.subject = (source.name if alone else "", place)
        """What appears and disappears as one: the place, or a source for itself."""

        self.read = read
        self.clock = clock
        self.batch: Batch | None = None
        self.last: Batch | None = None
        """The last batch that there was, also after reads that failed."""

        self.begun: float | None = None
        self.reading = False
        """Whether a read is under way."""

        self.took = math.inf
        self.last_success: float | None = None
        self.longest = source.every
        self.counts = counts
        self.door = door
        self.begins = False
        """Whether it is read, be it for the first time after a while."""

        self.due = 0.0
        self.stopped = False
        self.failure = ""
        """Why the last read failed; empty if it did not."""

        self.unrecorded = False
        """Whether it failed because the tape that is played lacks what it reads."""

        if isinstance(source, HasUnknowns):
            with counts.lock:
                for kind in source.unknowns:
                    counts.unread.setdefault(kind, Encounters())
        self._news = News(clock)
        self._news_of_dropped = News(clock)

    def step(self) -> None:
        """Read the source once; a failure affects this source alone."""
        begin, cpu = self.clock.monotonic(), self.clock.thread_cpu()
        self.begun = begin if self.begun is None else self.begun
        self.reading = True
        dropped = self.door.dropped
        reading = isolated(self._take)
        if isinstance(reading, BaseException):
            self.fail(reading)
        else:
            self._recover()
            if reading is not None:
                end = self.clock.monotonic()
                self.last_success = self.clock.time()
                self.longest = max(self.longest, self.source.every)
                good_until = end + OVERDUE * self.longest
                self.batch = self.last = Batch(reading, self.last_success, end, good_until)
                self.published.again()
                self._tell_dropped(self.door.dropped - dropped)
                self.counts.meet(reading.unread, self.last_success)
        used = self.clock.thread_cpu()
        self.took = self.clock.monotonic() - begin
        with self.counts.lock:
            self.counts.seconds += self.took
            self.counts.dropped += self.door.dropped - dropped
            if cpu is not None and used is not None:
                self.counts.cpu_seconds = (self.counts.cpu_seconds or 0.0) + used - cpu
        self.reading = False

    def _take(self) -> Reading | None:
        reading = self.read()
        return None if reading is None else self.door.admit(reading)

    @property
    def key(self) -> tuple[str, Place]:
        """What no two sources share."""
        return self.source.name, self.place

    @property
    def name(self) -> str:
        """The source, wherever it is."""
        return self.source.name

    @property
    def where(self) -> str:
        """The source and its place, for the log."""
        gpu = f"GPU {self.place.gpu}" if self.place.gpu else ""
        return ", ".join(filter(None, (self.source.name, gpu, self.place.mountpoint)))

    def up(self, now: float) -> bool:
        """Whether the last read succeeded and is not overdue."""
        return self.batch is not None and now <= self.batch.good_until

    def reported(self, now: float) -> bool:
        """Whether a read has returned a result or failed, or takes too long to wait for."""
        if self.batch is not None or self.failure:
            return True
        return self.begun is not None and now - self.begun > OVERDUE * self.source.every

    def next_due(self, due: float) -> float:
        """When to read again after the read that was due at ``due``; missed times are skipped."""
        now, every = self.clock.monotonic(), self.source.every
        missed = max(0, int((now - due) / every))
        with self.counts.lock:
            self.counts.skipped += missed
        return due + (missed + 1) * every

    def perform(self) -> float | None:
        """Read it, unless it was stopped; returns after how many seconds to read it again."""
        self.reading = True  # first, as who stops it looks whether it is
        if self.stopped:
            self.reading = False
            return None
        if self.clock.monotonic() - self.due > 0.1 * self.source.every:
            with self.counts.lock:
                self.counts.late += 1
        self.step()
        self.due = self.next_due(self.due)
        return max(0.0, self.due - self.clock.monotonic())

    def begin(self, delay: float) -> None:
        """Note that it is to be read from so many seconds from now on."""
        self.begins, self.due = True, self.clock.monotonic() + delay

    def fail(self, error: BaseException) -> None:
        """Drop the last batch, and log the failure when it begins, not at every read."""
        self.batch = None
        self.published.again()
        self.door.close()
        self.failure, self.unrecorded = described(error), unrecorded(error)
        if not self.unrecorded and self._news.worth(self.failure):
            complaints.complain(self.where, "read failed, its series stop", error)

    def _recover(self) -> None:
        self.failure, self.unrecorded = "", False
        if self._news.worth(""):
            log.info("%s: reads succeed again", self.where)

    def _tell_dropped(self, series: int) -> None:
        if self._news_of_dropped.worth("dropped" if series else "") and series:
            what = f"equal to another of any source, or beyond the first {SERIES}"
            log.warning("%s: %d series left out: %s", self.where, series, what)
