"""Runs the sources: one thread each, so that one that hangs does not affect the others.

Threads share only finished batches. Live, every source has its own thread. A replay steps the same
watches in one thread on the tape's clock, so that it always gives the same result.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpunode.metric import Distribution, Metric, Sample
from gpunode.node.node import Clock, SteppedClock
from gpunode.source import (
    FAILURES,
    WHOLE_NODE,
    Absent,
    Finder,
    Key,
    Place,
    Reading,
    Source,
    Told,
    View,
)

log = logging.getLogger(__name__)

D = TypeVar("D")
T = TypeVar("T")

SOURCE = ("source", *Place._fields)
"""Labels that identify a source."""

UP = Metric(
    "gpunode_source_up",
    "gauge",
    "Whether the last read of the source succeeded and is not overdue; for `gpu` and `host`, "
    "whether any source was found.",
    SOURCE,
)
LAST_SUCCESS = Metric(
    "gpunode_source_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the last successful read of the source.",
    SOURCE,
)
DURATION = Metric(
    "gpunode_source_read_duration_seconds",
    "histogram",
    "Duration of reads of the source, over all its devices.",
    ("source",),
    (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
)
CPU_SECONDS = Metric(
    "gpunode_source_cpu_seconds_total",
    "counter",
    "CPU time used by reads of the source, over all its devices (CLOCK_THREAD_CPUTIME_ID).",
    ("source",),
)
LATE = Metric(
    "gpunode_source_late_reads_total",
    "counter",
    "Reads that started more than a tenth of their interval late.",
    ("source",),
)
SKIPPED = Metric(
    "gpunode_source_skipped_reads_total",
    "counter",
    "Reads skipped because an earlier one was still running when they were due.",
    ("source",),
)
METRICS = (UP, LAST_SUCCESS, DURATION, CPU_SECONDS, LATE, SKIPPED)

OVERDUE = 3
"""Intervals after which a reading is no longer exported."""

STAGGER = 0.037
"""Seconds between the first reads of two sources, so that not all wake at once."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished read: its result, its time, and until when (monotonic) it may be exported."""

    reading: Reading
    time: float
    moment: float
    """Time of the read on the monotonic clock."""

    good_until: float


def isolated(ask: Callable[[], T]) -> T | Exception:
    """The answer of a source or finder, or whatever it raised: it must harm no other."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 the one place where a source is isolated
        return error


def complain(where: str, what: str, error: Exception) -> None:
    """Log a failure; a fault of ours with its traceback."""
    fault_of_ours = not isinstance(error, (Absent, *FAILURES))
    log.log(
        logging.ERROR if fault_of_ours else logging.WARNING,
        "%s: %s: %s",
        where,
        what,
        _described(error),
        exc_info=error if fault_of_ours else None,
    )


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, Absent) else f"{type(error).__name__}: {error}"


class Watch:
    """One source, its last batch, and how its reads went. Only its own thread writes to it."""

    def __init__(
        self, source: Source | View, place: Place, read: Callable[[], Reading | None], clock: Clock
    ) -> None:
        self.source = source
        self.place = place
        self.read = read
        self.clock = clock
        self.batch: Batch | None = None
        self.begun: float | None = None
        self.last_success: float | None = None
        self.longest = source.every
        self.late = 0
        self.skipped = 0
        self.durations = Distribution(DURATION.buckets)
        self.cpu_seconds: float | None = None
        self.stopped = threading.Event()
        self._complaint = ""

    def step(self) -> None:
        """Read the source once; a failure affects this source alone."""
        begin, cpu = self.clock.monotonic(), self.clock.thread_cpu()
        self.begun = begin if self.begun is None else self.begun
        reading = isolated(self.read)
        if isinstance(reading, Exception):
            self.batch = None
            self._complain(reading)
        else:
            self._complain(None)
            if reading is not None:
                end = self.clock.monotonic()
                self.last_success = self.clock.time()
                self.longest = max(self.longest, self.source.every)
                good_until = end + OVERDUE * self.longest
                self.batch = Batch(reading, self.last_success, end, good_until)
        self.durations.add([self.clock.monotonic() - begin])
        took = self.clock.thread_cpu()
        if cpu is not None and took is not None:
            self.cpu_seconds = (self.cpu_seconds or 0.0) + took - cpu

    @property
    def subject(self) -> Place | str:
        """What appears and disappears as one: the place, or a source of the whole node."""
        return self.source.name if self.place == WHOLE_NODE else self.place

    def up(self, now: float) -> bool:
        """Whether the last read succeeded and is not overdue."""
        return self.batch is not None and now <= self.batch.good_until

    def told(self, now: float) -> bool:
        """Whether a read has returned a result or failed, or takes too long to wait for."""
        if self.batch is not None or self._complaint:
            return True
        return self.begun is not None and now - self.begun > OVERDUE * self.source.every

    def next_due(self, due: float) -> float:
        """When to read again after the read that was due at ``due``; missed times are skipped."""
        now, every = self.clock.monotonic(), self.source.every
        missed = max(0, int((now - due) / every))
        self.skipped += missed
        return due + (missed + 1) * every

    def run(self, delay: float) -> None:
        """Read repeatedly until stopped; the body of the source's thread."""
        due = self.clock.monotonic() + delay
        while not self.stopped.wait(max(0.0, due - self.clock.monotonic())):
            if self.clock.monotonic() - due > 0.1 * self.source.every:
                self.late += 1
            self.step()
            due = self.next_due(due)

    def _complain(self, error: Exception | None) -> None:
        """Log a failure when it begins and when it ends, not at every read."""
        complaint = "" if error is None else _described(error)
        if complaint == self._complaint:
            return
        gpu, name = self.place.gpu, self.source.name
        where = f"{name}, GPU {gpu}" if gpu else name
        if error is None:
            log.info("%s: reads succeed again", where)
        else:
            complain(where, "read failed, its series stop", error)
        self._complaint = complaint


class Loop:
    """All watches of a node: those of the sources found, then those of the views.

    The views come last, so that in a replay they see what the sources have just read.
    """

    def __init__(
        self,
        clock: Clock,
        finders: Sequence[Finder],
        views: Sequence[View] = (),
        *,
        find_every: float,
    ) -> None:
        self.clock = clock
        self.finders = finders
        self.views = views
        self.find_every = find_every
        self.watches: dict[tuple[str, Place], Watch] = {}
        self.absent: dict[str, str] = {}
        self._found: dict[str, list[tuple[Place, Source]]] = {}
        self._replays = False
        self._stop = threading.Event()

    def find(self) -> list[Watch]:
        """Update the watches to what the finders find; returns the new ones."""
        for finder in self.finders:
            self._look(finder)
        wanted: dict[tuple[str, Place], tuple[Source | View, Callable[[], Reading | None]]] = {
            (source.name, place): (source, source.read)
            for found in self._found.values()
            for place, source in found
        }
        for view in self.views:
            wanted[view.name, WHOLE_NODE] = view, partial(view.read, self)
        kept = {
            key: watch
            for key, watch in self.watches.items()
            if key in wanted and wanted[key][0] is watch.source
        }
        fresh = {
            (name, place): Watch(source, place, read, self.clock)
            for (name, place), (source, read) in wanted.items()
            if (name, place) not in kept
        }
        for key, watch in self.watches.items():
            if key not in kept:
                watch.stopped.set()
        self.watches = {**kept, **fresh}
        return list(fresh.values())

    def _look(self, finder: Finder) -> None:
        """Ask one finder; if it finds nothing, its earlier sources stay and fail visibly."""
        found = isolated(lambda: list(finder.find()))
        if isinstance(found, Exception):
            if self.absent.get(finder.name) != _described(found):
                what = f"none found, looking again every {self.find_every:g} s"
                complain(finder.name, what, found)
            self.absent[finder.name] = _described(found)
            self._found.setdefault(finder.name, [])
        else:
            self._found[finder.name] = found
            if self.absent.pop(finder.name, None) is not None:
                log.info("%s: found", finder.name)

    @property
    def ready(self) -> bool:
        """Whether every finder has looked, and every kind of source has reported.

        A failure counts as a report; a source that hangs is not waited for.
        """
        now = self.clock.monotonic()
        kinds = {watch.source.name for watch in self.watches.values()}
        told = {watch.source.name for watch in self.watches.values() if watch.told(now)}
        return len(self._found) == len(self.finders) and kinds == told

    def start(self) -> None:
        """Start the thread that finds the sources and starts a thread for each."""
        threading.Thread(target=self._keep_finding, name="find", daemon=True).start()

    def stop(self) -> None:
        """Tell every thread to end after its current read, without waiting."""
        self._stop.set()
        for watch in self.watches.values():
            watch.stopped.set()

    def _keep_finding(self) -> None:
        while True:
            for place, watch in enumerate(self.find()):
                name = f"{watch.source.name}-{watch.place.gpu}"
                delay = STAGGER * place
                threading.Thread(target=watch.run, args=(delay,), name=name, daemon=True).start()
            if self._stop.wait(self.find_every):
                return

    def replay(self, clock: SteppedClock, end: float) -> Iterator[float]:
        """Step through the tape's time in this thread; yields the time before each step.

        Every source is read a last time at ``end``, which closes its last window.
        """
        self._replays = True
        due: list[tuple[float, int, Watch]] = []
        next_find = clock.monotonic()
        while True:
            upcoming = min([next_find, *(time for time, _, _ in due)])
            yield min(upcoming, end)
            clock.now = min(upcoming, end)
            if upcoming >= end:
                break
            if upcoming == next_find:
                for watch in self.find():
                    heapq.heappush(due, (upcoming, len(due), watch))
                next_find += self.find_every
                continue
            time, order, watch = heapq.heappop(due)
            watch.step()
            heapq.heappush(due, (time + watch.source.every, order, watch))
        for _, _, watch in sorted(due, key=lambda entry: entry[1]):
            watch.step()

    def batches(self) -> list[tuple[Place, Batch]]:
        """What to export of each source now, in a stable order.

        All sources of a device are left out unless its most frequent one succeeds, so that a lost
        GPU disappears completely.
        """
        now = self.clock.monotonic()
        watches = self._ordered()
        quickest: dict[Place | str, Watch] = {}
        for watch in watches:
            best = quickest.setdefault(watch.subject, watch)
            if watch.source.every < best.source.every:
                quickest[watch.subject] = watch
        return [
            (watch.place, watch.batch)
            for watch in watches
            if watch.batch is not None and watch.up(now) and quickest[watch.subject].up(now)
        ]

    def _ordered(self) -> list[Watch]:
        return sorted(
            self.watches.values(),
            key=lambda watch: (watch.source.name, watch.place.uuid, watch.place.mountpoint),
        )

    def details(self, kind: type[D]) -> list[Told[D]]:
        """The reported details of this type, ordered by place."""
        return [
            Told(place, batch.time, batch.reading.detail)
            for place, batch in self.batches()
            if isinstance(batch.reading.detail, kind)
        ]

    def values(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        """Current values of these metrics, with the times (monotonic) of their reads."""
        return {
            (sample.metric, sample.labels): (sample.value, batch.moment)
            for _, batch in self.batches()
            for sample in batch.reading.samples
            if sample.metric in metrics and not isinstance(sample.value, Distribution)
        }

    def samples(self) -> Iterator[Sample]:
        """Everything to export now, including the metrics about the sources."""
        for _, batch in self.batches():
            yield from batch.reading.samples
        yield from self._own_samples()

    def _own_samples(self) -> Iterator[Sample]:
        now = self.clock.monotonic()
        for name, found in self._found.items():
            unrecorded = self._replays and name in self.absent  # only missing from the tape
            nothing_to_find = not found and name not in self.absent
            if (name, WHOLE_NODE) not in self.watches and not (unrecorded or nothing_to_find):
                yield from UP.at(float(name not in self.absent), name, *WHOLE_NODE)
        by_name: dict[str, list[Watch]] = {}
        for watch in self._ordered():
            by_name.setdefault(watch.source.name, []).append(watch)
            at = watch.source.name, *watch.place
            yield from UP.at(float(watch.up(now)), *at)
            yield from LAST_SUCCESS.at(watch.last_success, *at)
        for name, watches in by_name.items():
            durations = Distribution(DURATION.buckets)
            for watch in watches:
                durations.include(watch.durations)
            yield Sample(DURATION, (name,), durations)
            known = [watch.cpu_seconds for watch in watches if watch.cpu_seconds is not None]
            yield from CPU_SECONDS.at(sum(known) if known else None, name)
            yield from LATE.at(float(sum(watch.late for watch in watches)), name)
            yield from SKIPPED.at(float(sum(watch.skipped for watch in watches)), name)
