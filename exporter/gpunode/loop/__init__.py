"""Runs the sources in a few threads, so that one that hangs does not affect the others.

Threads share only finished batches. Live, a clock has workers do what is due, finders and sources
alike (``workers.py``). A replay steps the same watches in one thread on the tape's clock, so that
it always gives the same result.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from gpunode.loop import complaints
from gpunode.loop.complaints import News, isolated
from gpunode.loop.door import Door, label_text
from gpunode.loop.metrics import LAST_SUCCESS, REST_CPU_SECONDS, UP
from gpunode.loop.search import Search
from gpunode.loop.watch import OVERDUE, Batch, Counts, Published, Watch
from gpunode.loop.workers import TICK, Workers
from gpunode.metric import Metric, Sample
from gpunode.node.node import Clock, SteppedClock
from gpunode.source import (
    WHOLE_NODE,
    Absent,
    DetailReading,
    Finder,
    Key,
    Met,
    Place,
    Reading,
    SilentPlace,
    Source,
    View,
)

log = logging.getLogger(__name__)

D = TypeVar("D")


AT_ONCE, APART = 12, 0.2
"""As many first reads follow each other, and then none for so many seconds: what one finds in the
caches of the processor costs half, and nobody waits long for the interpreter."""

MAX_HUNG_READS = 16
"""The most reads of sources of one name that may hang on after their place is gone, each with its
thread; until one returns, no other place of that name is read."""

MORE_THREADS = "raise pids.max, RLIMIT_NPROC or the limit of memory"
"""What to do where no thread can be started."""


@dataclass(frozen=True, slots=True)
class ExportedBatches:
    """The batches that are exported until a time (monotonic), or until anything is published."""

    after: object
    """What was published last before."""

    until: float
    batches: list[tuple[Place, Batch]]
    quickest: dict[tuple[str, Place], Watch]
    """Of what appears and disappears as one, its most frequent source."""

    details: dict[type, list[Any]] = field(default_factory=dict)
    """By their type, once they were asked for."""


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
        self._looked = threading.Event()
        self.searches = [Search(finder, find_every, clock, self._looked) for finder in finders]
        self.workers = Workers(find_every)
        self.views = views
        self.find_every = find_every
        self.watches: dict[tuple[str, Place], Watch] = {}
        self._ordered: list[Watch] = []
        """The watches in the order of what is exported."""

        self._counts: dict[str, Counts] = {}
        """By the name of a source; what was counted of it stays when its last place is gone."""

        self._published = Published()
        self._exported = ExportedBatches(None, -math.inf, [], {})
        self._gone: list[Watch] = []
        """Watches whose source is gone while they read it."""

        self._began: tuple[float, float] | None = None
        """The CPU seconds of the process and of its main thread when it began; None in a replay."""

        self._checked: float | None = None
        """When it was last seen to that all are read; None in a replay."""

        self._news_of_threads = News(clock)
        self._news_of_finders = News(clock)
        self._replays = False
        self._stop = threading.Event()

    def find(self) -> list[Watch]:
        """Update the watches to what the finders find; returns the new ones."""
        for search in self.searches:
            search.look()
        return self._update()

    def _update(self) -> list[Watch]:
        """Update the watches to what has been found; returns the new ones."""
        wanted: dict[tuple[str, Place], tuple[Source | View, Callable[[], Reading | None]]] = {}
        for search in self.searches:
            for place, source in search.found or ():
                wanted.setdefault((source.name, place), (source, source.read))
        for view in self.views:
            wanted[view.name, WHOLE_NODE] = view, partial(view.read, self)
        kept = {
            key: watch
            for key, watch in self.watches.items()
            if key in wanted and wanted[key][0] is watch.source
        }
        new = {name: Counts() for name, _ in wanted if name not in self._counts}
        self._counts = {**self._counts, **new}
        fresh = {
            (name, place): Watch(
                source,
                place,
                read,
                self.clock,
                self._counts[name],
                Door(self._doors),
                self._published,
            )
            for (name, place), (source, read) in wanted.items()
            if (name, place) not in kept
        }
        gone = [watch for key, watch in self.watches.items() if key not in kept]
        for watch in gone:
            watch.stopped = True
        self._gone = [watch for watch in (*self._gone, *gone) if watch.reading]
        self.watches = {**kept, **fresh}
        self._ordered = sorted(
            self.watches.values(),
            key=lambda watch: (watch.source.name, watch.place.uuid, watch.place.mountpoint),
        )
        self._published.again()
        return list(fresh.values())

    @property
    def ready(self) -> bool:
        """Whether every finder has looked, and every kind of source has reported.

        A failure counts as a report; what hangs is not waited for, what has no thread is.
        """
        now = self.clock.monotonic()
        if self._checked is not None and now - self._checked > OVERDUE * self.find_every:
            return False
        kinds = {watch.source.name for watch in self.watches.values()}
        reported = {watch.source.name for watch in self.watches.values() if watch.reported(now)}
        all_looked = all(search.reported(now) for search in self.searches)
        found = {source.name for search in self.searches for _, source in search.found or ()}
        return self.workers.refused is None and all_looked and kinds == reported >= found

    def start(self) -> None:
        """Start the clock. Raises ``RuntimeError`` if there can be no thread for it."""
        self._checked = self.clock.monotonic()
        self._began = time.process_time(), time.clock_gettime(_clock_of_main_thread())
        for search in self.searches:
            self.workers.add(search, 0.0)
        threading.Thread(target=self._keep_running, name="loop", daemon=True).start()

    def stop(self) -> None:
        """Tell every thread to end after its current read, without waiting."""
        self._stop.set()
        self._looked.set()
        self.workers.stop()

    def _keep_running(self) -> None:
        """Have read what finders have found, and what could not be; see to it that all is."""
        due = time.monotonic()
        while not self._stop.is_set():
            if self._looked.is_set() or time.monotonic() >= due:
                self._looked.clear()
                due = time.monotonic() + self.find_every
                failed = isolated(self._run)
                if isinstance(failed, BaseException):
                    isolated(partial(complaints.complain, "loop", "sources not begun", failed))
                else:
                    self._checked = self.clock.monotonic()
            wait = isolated(self._tend)
            self._looked.wait(wait if isinstance(wait, float) else TICK)

    def _run(self) -> None:
        """Begin to read each source that is new, or was behind a read that hung."""
        self._update()
        kinds: dict[str, list[Watch]] = {}
        for watch in self._startable():
            kinds.setdefault(watch.source.name, []).append(watch)
        delay, together = 0.0, 0
        for kind in kinds.values():
            if together and together + len(kind) > AT_ONCE:
                delay, together = delay + APART, 0
            together += len(kind)
            for watch in kind:
                watch.begin(delay)
                self.workers.add(watch, delay)
        self._tell_hung()

    def _startable(self) -> Iterator[Watch]:
        """The watches that are not read yet; those behind a read that hangs fail instead."""
        hung = {watch.key for watch in self._gone if watch.reading}
        by_name = Counter(name for name, _ in hung)
        for watch in self.watches.values():
            if watch.begins:
                continue
            if watch.key in hung:
                watch.fail(Absent("not read again before an earlier read of it returns"))
            elif by_name[watch.source.name] >= MAX_HUNG_READS:
                watch.fail(Absent(f"not read while {MAX_HUNG_READS} reads of what is gone hang"))
            else:
                yield watch

    def _tend(self) -> float:
        """See to it that what is due has a thread; returns the seconds until the next look."""
        wait = self.workers.tend()
        refused = self.workers.refused
        if self._news_of_threads.worth(str(refused or "")):
            if refused is None:
                log.info("every source has its thread")
            else:
                late = ", ".join(self.workers.late())
                log.warning("no thread for %s; %s", label_text(f"{late}: {refused}"), MORE_THREADS)
        return wait

    def _tell_hung(self) -> None:
        now = self.clock.monotonic()
        hung = ", ".join(search.where for search in self.searches if search.overdue(now))
        if self._news_of_finders.worth(hung) and hung:
            log.warning("%s: looking for more than %g s", hung, OVERDUE * self.find_every)

    def replay(self, clock: SteppedClock, end: float) -> Iterator[float]:
        """Step through the tape's time in this thread; yields the time before each step.

        Every source is read a last time at ``end``, which closes its last window.
        """
        self._replays = True
        due: list[tuple[float, int, Watch]] = []
        number = itertools.count()
        next_find = clock.monotonic()
        while True:
            upcoming = min([next_find, *(time for time, _, _ in due)])
            yield min(upcoming, end)
            clock.now = min(upcoming, end)
            if upcoming >= end:
                break
            if upcoming == next_find:
                for watch in self.find():
                    heapq.heappush(due, (upcoming, next(number), watch))
                next_find += self.find_every
                continue
            time, order, watch = heapq.heappop(due)
            if not watch.stopped:
                watch.step()
                heapq.heappush(due, (time + watch.source.every, order, watch))
        for _, _, watch in sorted(due, key=lambda entry: entry[1]):
            if not watch.stopped:
                watch.step()

    def batches(self) -> list[tuple[Place, Batch]]:
        """What to export of each source now, in a stable order.

        The sources of a device are left out unless its most frequent one succeeds, so that a lost
        GPU disappears; those that outlast it tell of it as long as they can.
        """
        return self._export().batches

    def _export(self) -> ExportedBatches:
        now, after = self.clock.monotonic(), self._published.last
        known = self._exported
        if known.after is not after or now > known.until:
            known = self._exported = self._exported_at(now, after)
        return known

    def _exported_at(self, now: float, after: object) -> ExportedBatches:
        watches = self._ordered
        quickest: dict[tuple[str, Place], Watch] = {}
        for watch in watches:
            best = quickest.get(watch.subject)
            if best is None or watch.source.every < best.source.every:
                quickest[watch.subject] = watch
        present = {subject for subject, watch in quickest.items() if watch.up(now)}
        batches = [
            (watch.place, watch.batch)
            for watch in watches
            if watch.subject in present and watch.batch is not None and watch.up(now)
        ]
        until = min((batch.good_until for _, batch in batches), default=math.inf)
        return ExportedBatches(after, until, batches, quickest)

    def _doors(self) -> list[Door]:
        return [watch.door for watch in self.watches.values()]

    def details(self, kind: type[D]) -> list[DetailReading[D]]:
        """The reported details of this type, ordered by place."""
        known = self._export()
        if kind not in known.details:
            known.details[kind] = [
                DetailReading(place, batch.time, batch.reading.detail)
                for place, batch in known.batches
                if isinstance(batch.reading.detail, kind)
            ]
        return list(known.details[kind])

    def unread(self) -> list[Met]:
        """What was met and not understood since the start, ordered by source and kind."""
        return [met for name, counts in sorted(self._counts.items()) for met in counts.met(name)]

    def values(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        """Current values of these metrics, with the times (monotonic) of their reads."""
        wanted, found = frozenset(metrics), dict[Key, tuple[float, float]]()
        for _, batch in self.batches():
            found.update(batch.values(wanted))
        return found

    def last(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        """The values of these metrics when they were last read, also of what is not read now."""
        wanted, found = frozenset(metrics), dict[Key, tuple[float, float]]()
        for watch in self._ordered:
            if watch.last is not None:
                found.update(watch.last.values(wanted))
        return found

    def samples(self) -> Iterator[Sample]:
        """Everything to export now, including the metrics about the sources."""
        for _, batch in self.batches():
            yield from batch.reading.samples
        yield from self._own_samples()

    def silent(self) -> list[SilentPlace]:
        """The sources that do not answer now; one that has only begun is not among them."""
        now = self.clock.monotonic()
        found = [
            SilentPlace(search.finder.name, WHOLE_NODE, None, search.absent or "looks for too long")
            for search in self.searches
            if not search.up(now) and not (self._replays and search.absent)
        ]
        for watch in self._ordered:
            if watch.reported(now) and not watch.up(now) and not watch.unrecorded:
                why = watch.failure or "a read has not returned"
                found.append(SilentPlace(watch.source.name, watch.place, watch.last_success, why))
        return found

    def _own_samples(self) -> Iterator[Sample]:
        now = self.clock.monotonic()
        for search in self.searches:
            name, up = search.finder.name, search.up(now)
            unrecorded = self._replays and search.absent  # only missing from the tape
            nothing_to_find = up and not search.found
            if (name, WHOLE_NODE) not in self.watches and not (unrecorded or nothing_to_find):
                yield from UP.at(float(up), name, *WHOLE_NODE)
        quickest = self._export().quickest
        for watch in self._ordered:
            at = watch.source.name, *watch.place
            if watch.unrecorded:
                continue
            up = watch.up(now)
            of_gpu = watch.subject == ("", watch.place) and watch is quickest[watch.subject]
            if not up or not watch.place.gpu or of_gpu:
                yield from UP.at(float(up), *at)
            if not up:  # else it is no longer ago than its interval
                yield from LAST_SUCCESS.at(watch.last_success, *at)
        of_sources = 0.0
        for name, counts in sorted(self._counts.items()):
            yield from counts.samples(name)
            of_sources += counts.cpu_seconds or 0.0
        if self._began is not None:
            yield from self._rest(*self._began, of_sources)

    def _rest(self, whole: float, main: float, of_sources: float) -> Iterator[Sample]:
        """The CPU time that no source used; of the process and its main thread, that of start."""
        web = time.clock_gettime(_clock_of_main_thread()) - main
        finders = sum(search.cpu_seconds for search in self.searches)
        parts = {"start": whole, "web": web, "finders": finders}
        parts["other"] = time.process_time() - of_sources - sum(parts.values())
        for part, seconds in parts.items():
            yield from REST_CPU_SECONDS.at(max(0.0, seconds), part)


def _clock_of_main_thread() -> int:
    return time.pthread_getcpuclockid(threading.main_thread().ident or 0)
