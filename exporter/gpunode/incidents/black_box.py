"""Keeps what is known of each incident, from ten minutes before it until minutes after.

It lasts as long as its signs do. Its tape ends five minutes after it began; what happens, where
processes stand and how they end are noted until five minutes after it is over: PyTorch ends a job
that hangs only after ten.
"""

from __future__ import annotations

import errno
import gzip
import logging
import re
import threading
import time as clocks
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpunode import __version__
from gpunode.config.daemon import IncidentSettings
from gpunode.gpu import GPU
from gpunode.holders.owner import Started
from gpunode.incidents.folder import Folder, age, incidents
from gpunode.incidents.history import GpuHistory, History
from gpunode.incidents.incident import (
    KINDS,
    Brief,
    Happening,
    Incident,
    Kind,
    OnGpu,
    What,
    as_json,
    clean,
    parse,
    without_tape,
)
from gpunode.incidents.moments import SharedMoments, SourcedMoment
from gpunode.incidents.overheard import LogRecorder
from gpunode.incidents.price import COST, Prices
from gpunode.incidents.signs import (
    IncidentSign,
    Signs,
    labels_of,
    owners_of,
    processes_on,
    urgent_finding,
)
from gpunode.metric import Metric, Sample
from gpunode.mistake import UsageError
from gpunode.nccl.ras import AWAITED
from gpunode.node.endings import in_words
from gpunode.node.node import Node
from gpunode.node.rolling_tape import CHUNK, MAX_LAST, RollingTape, without_code
from gpunode.node.tape import RecordingNode
from gpunode.source import MORE_PROCESSES, Reading, Readings, bounded, limit
from gpunode.unread import Unread
from gpunode.verdict.case import WaitedFor
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.facts import At
from gpunode.verdict.findings import PRESSING, Finding, NodeStatus, gpu_list, status
from gpunode.verdict.reasons import GONE
from gpunode.verdict.shortages import NodeFigure
from gpunode.verdict.where import Looks, StackLook

log = logging.getLogger(__name__)

BEFORE, AFTER = 600.0, 300.0
"""Seconds before an incident begins, and after, that its tape has."""

MAX_BYTES = 16 << 20
"""Bytes that are kept in memory in all."""

MAX_TAPE_BYTES = 5 << 20
"""Bytes of the tape that rolls."""

MAX_INCIDENT_BYTES = MAX_BYTES - MAX_TAPE_BYTES - MAX_LAST - CHUNK
"""Bytes of the incidents that are kept, with their tapes."""

CONFIRMED: dict[Kind, float] = {"stall": 6.0, "gpu_lost": 6.0, "slow": 30.0}
"""Seconds for which a sign that lasts must do so before an incident begins: what is shorter harms
nobody. A stall looks like slowness at first."""

MISSED = 6.0
"""Seconds for which a sign may be missed and still be the same."""

OVER = 60.0
"""Seconds without a sign after which an incident is over."""

MAX_DURATION = 3600.0
"""Seconds after which nothing is added to an incident, even if it goes on."""

HISTORY_SECONDS = 900.0
"""Seconds after its beginning up to which an incident has the history of the GPUs."""

KEPT_EVERY, TAPED_EVERY = 10.0, 60.0
"""Seconds between two versions of an incident that goes on, and of its tape."""

FOLDER_WAIT = 5.0
"""Seconds for the folder to answer at the start; later, what it has is taken when it does."""

RESUMED = 600.0
"""Seconds after which an incident that was cut short does not go on: its daemon was off."""

MAX_OPEN_INCIDENTS = 8
"""Incidents that go on at a time."""

MOST_MOMENTS, MOST_LOOKS, MOST_PROCESSES = 600, 16, 256
"""What an open incident has recorded."""

MAX_GPUS = 64
"""GPUs of an incident in ``INFO``."""

MAX_WHERE = 160
"""Characters of where a process stands, in a label."""

COUNT = Metric(
    "gpunode_incidents_total",
    "counter",
    "Incidents that began, of each of which the black box keeps what is known (docs/incidents.md).",
    ("kind",),
)
INFO = Metric(
    "gpunode_incident_info",
    "gauge",
    "Always 1, during an incident and for five minutes after; `id` is what `gpunode incident` "
    "takes. `where` is where the process stands that others wait for, if incident.where is set.",
    (*GPU, "incident", "kind", "where"),
)
UNWRITTEN = Metric(
    "gpunode_incident_write_failures_total",
    "counter",
    "Times that an incident could not be written to `incident.folder`; it is in memory.",
)
MORE_INCIDENTS, MORE_MOMENTS = limit("incidents"), limit("moments")


@dataclass(slots=True)
class OpenIncident:
    """An incident that goes on, or was over a short time ago."""

    id: str
    kind: Kind
    began: float
    moment: float
    """When it began on the monotonic clock."""

    seen: float
    """When a sign of it was last seen, on the same clock."""

    sign: IncidentSign
    gpus: set[At]
    finding: Finding | None = None
    """The finding about it, once there is one."""

    found: float = 0.0
    """When the finding was last current, in seconds since the epoch."""

    owners: tuple[str, ...] = ()
    waits: tuple[WaitedFor, ...] = ()
    moments: SharedMoments = field(
        default_factory=lambda: SharedMoments(MOST_MOMENTS, latest_makes_way=True)
    )
    looks: dict[tuple[int, float], StackLook] = field(default_factory=dict)
    processes: dict[tuple[str, int, float], OnGpu] = field(default_factory=dict)
    figures: tuple[NodeFigure, ...] = ()
    history: tuple[list[float], list[GpuHistory]] = field(default_factory=lambda: ([], []))
    left_out: int = 0
    kept: float | None = None
    taped: float | None = None
    unwritten: bool = False
    """Whether the folder lacks what was kept last, for want of space, say."""

    complete: bool = False
    """Whether nothing is added any more, though it may go on for days."""

    def notice(self, key: tuple[str, int, float], process: OnGpu) -> None:
        """Add a process that is on one of its GPUs."""
        self.processes.setdefault(key, process)
        if len(self.processes) > MOST_PROCESSES:  # whoever has most makes way
            of_most, _ = Counter(map(_whose, self.processes.values())).most_common(1)[0]
            latest = reversed(self.processes.items())
            del self.processes[next(key for key, one in latest if _whose(one) == of_most)]

    def note(self, moment: Happening) -> None:
        """Add what happened to it."""
        self.moments.add([(moment.what, moment)])


@dataclass(frozen=True, slots=True)
class StoredIncident:
    """A stored incident: its summary, its compressed JSON and its tape."""

    brief: Brief
    packed: bytes
    tape: bytes

    @property
    def size(self) -> int:
        return len(self.packed) + len(self.tape)


class BlackBox:
    """Evaluates what was read, and keeps incidents; its own readings are what it keeps."""

    name = "incidents"
    every = 2.0
    metrics = (COUNT, INFO, COST, UNWRITTEN)
    unknowns = (MORE_INCIDENTS, MORE_MOMENTS, MORE_PROCESSES)

    def __init__(self, node: Node, settings: IncidentSettings, *, code: bool) -> None:
        """Raises ``UsageError`` for a folder that cannot be used."""
        self.tape = RollingTape(node.clock, BEFORE + AFTER + TAPED_EVERY, MAX_TAPE_BYTES, code=code)
        self.overheard = LogRecorder(node.clock, self.tape)
        self.node: Node = RecordingNode(node, self.overheard)
        self.where = settings.where
        self.folder: Folder | None = None
        self.kept: tuple[StoredIncident, ...] = ()
        """The latest first. It is replaced, never changed: requests read it."""

        self._cut_short: list[Incident] = []
        """Those that went on when a daemon ended a moment ago, and may go on."""

        if settings.folder is not None:
            self._open_folder(settings.folder, settings.folder_bytes)
        self._signs = Signs()
        self.prices = Prices()
        self._watched: list[OpenIncident] = []
        self._pending: dict[tuple[Kind, frozenset[At]], tuple[float, float, float]] = {}
        self._moments = SharedMoments(MOST_MOMENTS)
        self._told: dict[tuple[tuple[str, ...], str], str] = {}
        self._causes: dict[At, str] = {}
        self._processes: dict[tuple[str, int, float], OnGpu] | None = None
        self._ended_well: set[tuple[int, float]] = set()
        """Those that have ended since the last look, without an error as the kernel says."""

        self._statuses: dict[tuple[int, float], int] = {}
        """How processes ended that are told to be gone next."""

        self._awaited: set[tuple[str, ...]] = set()
        self._count = dict.fromkeys(KINDS, 0)
        self._unwritten = 0
        self._complaint = ""
        self._left_out = 0
        self._crowd: tuple[Unread, ...] = ()
        """The processes on GPUs that the last look left out."""

    def _open_folder(self, path: Path, most_bytes: int) -> None:
        """Raises ``UsageError``; one that cannot be written to, or does not answer, is told."""
        failed: list[OSError] = []

        def opened() -> None:
            try:
                folder = Folder(path, most_bytes)
                kept, cut_short = _load_folder(folder)
            except OSError as error:
                failed.append(error)
            else:
                self._cut_short = cut_short
                self.kept = self.kept or kept
                self.folder = folder

        thread = threading.Thread(target=opened, name="incident_folder", daemon=True)
        thread.start()
        thread.join(FOLDER_WAIT)
        why = "it does not answer" if thread.is_alive() else ""
        for error in failed:
            why = error.strerror or str(error)
            if error.errno not in (errno.EROFS, errno.EIO, errno.ESTALE):
                raise UsageError(f"incident.folder: {path}: {why}") from error
        if why:
            log.error("incidents are kept in memory alone: incident.folder: %s: %s", path, why)

    def find(self, incident: str) -> StoredIncident | None:
        """An incident by its ID."""
        return next((one for one in self.kept if one.brief.id == incident), None)

    def read(self, readings: Readings) -> Reading:
        """Note what happened since the last look, and begin, keep and end incidents."""
        now, time = readings.clock.monotonic(), readings.clock.time()
        node = status(readings)
        happened = list(self._happened(readings, node, time))
        for moments in (self._moments, *(one.moments for one in self._open)):
            moments.add(happened)
        refused = sum(
            [self._take(sign, readings, node) for sign in self._confirmed(node, readings)]
        )
        going = [one for one in self._watched if now - one.seen < OVER]
        priced = self.prices.look(readings, {o.id: (o.kind, o.moment, o.gpus) for o in going})
        for one in self._open:
            looked = self._note_positions(one, readings, node)
            over = now - one.seen >= AFTER
            one.complete = over or now - one.moment >= MAX_DURATION
            due = one.kept is None or now - one.kept >= KEPT_EVERY or self._is_told_anew(one)
            if one.complete or looked or due:  # a job may end before the next is due
                self._keep(one, readings, node)
        for incident in priced:
            self._keep_price(incident)
        self._watched = [one for one in self._watched if now - one.seen < AFTER]
        left_out, self._left_out = self._left_out, self.tape.left_out
        unread = [
            *([MORE_INCIDENTS.seen(f"{MAX_OPEN_INCIDENTS} go on", refused)] if refused else []),
            *(
                [MORE_MOMENTS.seen("answers too long for a tape", self._left_out - left_out)]
                if self._left_out > left_out
                else []
            ),
            *self._crowd,
        ]
        return Reading(tuple(self._samples()), self, tuple(unread))

    @property
    def _open(self) -> list[OpenIncident]:
        """The incidents to which something may be added."""
        return [one for one in self._watched if not one.complete]

    def _samples(self) -> Iterator[Sample]:
        for kind, count in self._count.items():
            yield from COUNT.at(float(count), kind)
        for one in self._watched:
            where = one.finding.detail if one.finding and self.where else ""
            for at in sorted(one.gpus)[:MAX_GPUS] or [("", "")]:
                yield from INFO.at(1.0, *at, one.id, one.kind, _in_a_label(clean(where)))
        yield from self.prices.samples()
        if self.folder is not None:
            yield from UNWRITTEN.at(float(self._unwritten))

    def _happened(
        self, readings: Readings, node: NodeStatus, time: float
    ) -> Iterator[SourcedMoment]:
        """What has changed on the node since the last look."""
        told = {
            (one.gpus, one.remedy): one.title
            for one in node.findings
            if one.gpus or one.urgency in PRESSING
        }
        for key, title in told.items():
            if key not in self._told:
                yield "finding", _moment(time, "finding", title, key[0])
        for key, title in self._told.items():
            if key not in told:
                yield "finding", _moment(time, "finding", f"No longer: {title}", key[0])
        self._told = told
        causes = {gpu.at: gpu.verdict.cause for gpu in node.gpus if gpu.verdict is not None}
        changed: dict[str, list[str]] = {}
        for gpu in node.gpus:
            if gpu.at in causes and causes[gpu.at] != self._causes.get(gpu.at):
                changed.setdefault(causes[gpu.at], []).append(gpu.label)
        for cause, labels in changed.items():
            text = f"{gpu_list(labels)}: {CAUSES[cause].meaning}"
            yield "verdict", _moment(time, "verdict", text, tuple(labels))
        self._causes = causes
        yield from self._processes_changed(processes_on(readings), time)
        awaited = {of for metric, of in readings.values({AWAITED}) if metric is AWAITED}
        for communicator, rank, host, pid, _, reason in sorted(awaited - self._awaited):
            text = f"RAS: rank {rank} of communicator {communicator} on {host}, process {pid}, "
            yield "ras", _moment(time, "nccl", f"{text}is {reason}", ())
        self._awaited = awaited
        owners = {str(one.pid): _whose(one) for one in (self._processes or {}).values()}
        for pid, line in self.overheard.new():
            yield owners.get(pid, line.what), line

    def _processes_changed(
        self, on: Mapping[At, Iterable[Started]], time: float
    ) -> Iterator[SourcedMoment]:
        """Note which processes came to GPUs and which are gone."""
        before = self._processes
        found: dict[tuple[str, int, float], OnGpu] = {}
        self._ended_well.clear()
        there = [(gpu, process) for (gpu, _), processes in on.items() for process in processes]
        kept, self._crowd = bounded(
            there,
            MORE_PROCESSES,
            MOST_PROCESSES,
            "processes on all GPUs",
            whose=lambda one: (one[1].owner.in_short(), one[0]),
        )
        for gpu, process in kept:
            key = gpu, process.pid, process.start
            found[key] = (before or {}).get(key) or OnGpu(
                gpu,
                process.pid,
                process.start,
                process.rank,
                clean(process.owner.in_short()),
                time,
            )
        read = {gpu for gpu, _ in on}
        silent = {key: one for key, one in (before or {}).items() if one.gpu not in read}
        found |= {key: one for key, one in silent.items() if not self._has_ended(one)}
        self._processes = found
        for key, one in found.items():
            for watched in self._open:
                if any(gpu == one.gpu for gpu, _ in watched.gpus):
                    watched.notice(key, one)
            if key not in (before or {}):
                with suppress(OSError):  # from now on, the kernel tells how it ends
                    self.node.ended(one.pid, one.start)
            if before is not None and key not in before:
                text = f"{_process_text(one)} came to GPU {one.gpu}"
                yield _whose(one), _moment(time, "process", text, (one.gpu,))
        left_out = {(gpu, one.pid, one.start) for gpu, one in there} - found.keys()
        for key, one in (before or {}).items():
            if key not in found and key not in left_out:
                gone = replace(one, gone=time, end=self._end(one, time))
                if self._statuses.pop((one.pid, one.start), None) == 0:
                    self._ended_well.add((one.pid, one.start))
                for watched in self._open:
                    if key in watched.processes:
                        watched.processes[key] = gone
                ended = f": {gone.end}" if gone.end else ""
                text = f"{_process_text(one)} is gone from GPU {one.gpu}{ended}"
                yield _whose(one), _moment(time, "process", text, (one.gpu,))

    def _has_ended(self, one: OnGpu) -> bool:
        """Whether the kernel says that a process has ended; a silent driver says nothing."""
        with suppress(OSError):
            status = self.node.ended(one.pid, one.start)
            if status is not None:
                self._statuses[one.pid, one.start] = status
        return (one.pid, one.start) in self._statuses

    def _end(self, one: OnGpu, time: float) -> str:
        """How a process ended, as far as the kernel says."""
        self._has_ended(one)
        status = self._statuses.get((one.pid, one.start))
        ended = "" if status is None else in_words(status)
        about = (line for line in self.overheard.kernel_since(time - OVER) if _names(line, one.pid))
        return "; ".join(filter(None, (ended, next(about, ""))))

    def _confirmed(self, node: NodeStatus, readings: Readings) -> Iterator[IncidentSign]:
        """The signs that count: at once, or once they have lasted."""
        now = readings.clock.monotonic()
        time = readings.clock.time()
        pending = self._pending
        self._pending = {}
        for sign in self._signs.found(readings, node, self._ended_well):
            if not sign.lasts:
                yield sign
                continue
            first, began = now, time
            for (_, gpus), (since, at, seen) in pending.items():
                if gpus & sign.gpus and now - seen <= MISSED:
                    first, began = min(first, since), min(began, at)
            self._pending[sign.kind, sign.gpus] = first, began, now
            if now - first >= CONFIRMED[sign.kind]:
                yield sign
        for key, (since, at, seen) in pending.items():
            if now - seen <= MISSED:
                self._pending.setdefault(key, (since, at, seen))

    def _take(self, sign: IncidentSign, readings: Readings, node: NodeStatus) -> bool:
        """Let a sign begin an incident, or be part of one; returns whether there are too many."""
        now, time = readings.clock.monotonic(), readings.clock.time()
        for one in self._watched:
            if one.complete and not (sign.lasts and sign.kind == one.kind):
                continue
            # A kill for memory somewhere on the node says nothing of a job that hangs.
            if one.gpus & sign.gpus or (one.kind == sign.kind and not (one.gpus and sign.gpus)):
                anew = now - one.seen >= OVER or (one.kind, sign.kind) == ("slow", "stall")
                one.seen = now
                one.gpus |= sign.gpus
                if sign.title != one.sign.title and not sign.lasts:
                    one.note(_moment(time, "finding", sign.title, labels_of(node, sign.gpus)))
                if (one.kind, sign.kind) == ("slow", "stall"):
                    one.kind = "stall"
                    self._count["stall"] += 1
                if sign.kind == one.kind and sign.finding is not None:
                    waits = _awaited_gpus(one.gpus, node)
                    if _seen_before(() if anew else one.waits, waits):
                        return False
                    one.waits = waits or one.waits
                    one.sign, one.finding, one.found = sign, sign.finding, time
                return False
        owners = owners_of(node, sign.gpus)
        if len(self._open) >= MAX_OPEN_INCIDENTS and not self._makes_way(owners):
            return True
        since, began, _ = self._pending.get((sign.kind, sign.gpus), (now, time, now))
        labels = labels_of(node, sign.gpus)
        before = self._goes_on(sign.kind, labels)
        if before is not None:
            began = before.brief.began
            since = now - max(0.0, time - began)
        one = OpenIncident(
            before.brief.id if before else self._new_id(began, sign.kind, next(iter(labels), "")),
            sign.kind,
            began,
            since,
            now,
            sign,
            set(sign.gpus),
            sign.finding,
            time,
            owners,
            figures=node.figures,
        )
        one.moments.add(self._moments.since(began - BEFORE))
        if before is not None:
            one.moments.add((moment.what, moment) for moment in before.moments)
            one.looks = {(look.pid, look.time): look for look in before.looks}
            one.processes = {(p.gpu, p.pid, p.start): p for p in before.processes}
        if not sign.lasts:
            one.note(_moment(time, "finding", sign.title, labels_of(node, sign.gpus)))
        for key, process in (self._processes or {}).items():
            if any(gpu == process.gpu for gpu, _ in one.gpus) or not one.gpus:
                one.notice(key, process)
        self._watched.append(one)
        self._count[sign.kind] += before is None
        log.warning("incident %s %s: %s", one.id, "goes on" if before else "begins", sign.title)
        return False

    def _goes_on(self, kind: Kind, labels: tuple[str, ...]) -> Incident | None:
        """The incident of these GPUs that a daemon saw which has ended; it goes on once."""
        for one in self._cut_short:
            if one.brief.kind == kind and {*one.brief.gpus} & {*labels}:
                self._cut_short.remove(one)
                return one
        return None

    def _makes_way(self, owners: tuple[str, ...]) -> bool:
        """Let the latest incident of whom most go on be complete, if these owners have fewer."""
        goes_on = Counter(one.owners for one in self._open)
        crowd, most = goes_on.most_common(1)[0]
        if goes_on[owners] + 1 >= most:
            return False
        latest = max((one for one in self._open if one.owners == crowd), key=lambda one: one.moment)
        latest.complete = True
        return True

    def _new_id(self, began: float, kind: Kind, first: str) -> str:
        """An ID that no incident has."""
        stamp = clocks.strftime("%Y%m%dT%H%M%SZ", clocks.gmtime(began))
        name = f"{stamp}-{kind}-{''.join(filter(str.isalnum, first))[:8] or 'node'}"
        taken = {one.brief.id for one in self.kept} | {one.id for one in self._watched}
        return next(
            each for each in (name, *(f"{name}-{n}" for n in range(2, 9999))) if each not in taken
        )

    def _note_positions(self, one: OpenIncident, readings: Readings, node: NodeStatus) -> bool:
        """Note where processes stand, whom they wait for, and whose they are.

        Returns whether somebody has looked since.
        """
        before = len(one.looks)
        one.owners = owners_of(node, one.gpus) or one.owners
        if one.finding is None:
            one.finding, one.found = urgent_finding(node, one.gpus), readings.clock.time()
        waits = _awaited_gpus(one.gpus, node)
        if waits and not _seen_before(one.waits, waits):
            one.waits = waits
        for told in readings.details(Looks):
            for look in told.detail.looks:
                key = look.pid, look.time
                if look.at not in one.gpus or key in one.looks or look.time < one.began:
                    continue
                if len(one.looks) >= MOST_LOOKS:
                    one.left_out += 1
                    continue
                kept = look if told.detail.code else replace(look, stacks=without_code(look.stacks))
                one.looks[key] = kept
                if not look.waits and (said := told.detail.sentence(look)):
                    one.note(_moment(look.time, "where", said, (look.at[0],)))
        return len(one.looks) > before

    def _is_told_anew(self, one: OpenIncident) -> bool:
        """Whether more is known of an incident than what is kept says first."""
        kept = self.find(one.id)
        return kept is not None and kept.brief.title != clean(one.sign.title)

    def _keep(self, one: OpenIncident, readings: Readings, node: NodeStatus) -> None:
        """Keep an incident as it is known now, in memory and in the folder."""
        now = readings.clock.monotonic()
        before = self.find(one.id)
        tape, anew = before.tape if before else b"", False
        wanted = now - one.moment <= AFTER + KEPT_EVERY or one.taped is None
        if wanted and (one.taped is None or now - one.taped >= TAPED_EVERY or one.complete):
            title = clean(f"{one.id}: {one.sign.title}")
            tape, anew, one.taped = self.tape.cut(one.moment - BEFORE, title), True, now
        one.kept = now
        incident = self._incident(one, readings, node, len(tape))
        kept = StoredIncident(incident.brief, gzip.compress(as_json(incident), 1, mtime=0), tape)
        self._remember(kept)
        if self.folder is not None:
            tape = tape if anew or one.unwritten else b""
            one.unwritten = not self._write(self.folder, kept, tape)

    def _keep_price(self, incident: str) -> None:
        """Keep what an incident cost, once that is known: its job may take hours to go on."""
        before = self.find(incident)
        if before is None:
            return
        found = replace(parse(gzip.decompress(before.packed)), price=self.prices.of(incident))
        kept = replace(before, packed=gzip.compress(as_json(found), 1, mtime=0))
        self._remember(kept)
        if self.folder is not None:
            self._write(self.folder, kept, b"")

    def _write(self, folder: Folder, kept: StoredIncident, tape: bytes) -> bool:
        """Write an incident, and its tape unless that is empty; whether that succeeded."""
        complaint = ""
        try:
            folder.write(kept.brief.id, kept.packed, tape)
        except OSError as error:
            self._unwritten += 1
            complaint = f"{folder.path}: {error.strerror}"
        if complaint and complaint != self._complaint:
            log.warning("an incident is kept in memory alone: %s", complaint)
        self._complaint = complaint
        return not complaint

    def _remember(self, kept: StoredIncident) -> None:
        """Keep the latest in memory: tapes make way first, then the oldest incidents."""
        others = [one for one in self.kept if one.brief.id != kept.brief.id]
        now = self.node.clock.time()
        ordered = sorted((kept, *others), key=lambda one: age(one.brief.id, now), reverse=True)
        while sum(one.size for one in ordered) > MAX_INCIDENT_BYTES:
            taped = [place for place, one in enumerate(ordered) if one.tape]
            if len(ordered) > 1 and taped:
                oldest = ordered[taped[-1]]
                brief = replace(oldest.brief, tape_bytes=0)
                ordered[taped[-1]] = StoredIncident(brief, oldest.packed, b"")
            else:
                ordered.pop()
        self.kept = tuple(ordered)

    def _incident(
        self, one: OpenIncident, readings: Readings, node: NodeStatus, tape: int
    ) -> Incident:
        """The incident as it is known now."""
        finding = one.finding
        time, now = readings.clock.time(), readings.clock.monotonic()
        # The clock may have been set meanwhile.
        over = one.began + (one.seen - one.moment) if now - one.seen >= OVER else None
        brief = Brief(
            one.id,
            one.kind,
            clean(node.node),
            one.began,
            over,
            one.complete,
            clean(one.sign.title),
            clean(finding.detail if finding else ""),
            labels_of(node, one.gpus),
            tuple(map(clean, one.owners)),
            tape,
        )
        for told in (
            readings.details(History) if time <= one.began + HISTORY_SECONDS + KEPT_EVERY else ()
        ):
            one.history = told.detail.after(one.began - BEFORE)
        times, drawn = one.history
        count = sum(at <= one.began + HISTORY_SECONDS for at in times)
        return Incident(
            brief,
            __version__,
            finding.remedy if finding else "",
            finding.evidence if finding else (),
            one.waits,
            tuple(one.moments),
            tuple(one.looks.values()),
            tuple(one.processes.values()),
            one.figures,
            tuple(times[:count]),
            tuple(gpu.first(count) for gpu in drawn),
            one.left_out + one.moments.left_out,
            round(one.found, 1),
            self.prices.of(one.id),
        )


def _load_folder(folder: Folder) -> tuple[tuple[StoredIncident, ...], list[Incident]]:
    """The latest incidents of a folder, and those that were cut short, which are complete now.

    Raises ``OSError``.
    """
    size = 0
    found, cut_short = [], []
    for incident, packed, tape in incidents(folder):
        if not incident.brief.complete:
            if clocks.time() - folder.written(incident.brief.id) < RESUMED:
                cut_short.append(incident)
            brief = replace(incident.brief, complete=True)
            incident = replace(incident, brief=brief)
            packed = gzip.compress(as_json(incident), 1, mtime=0)
        if size + len(packed) > MAX_INCIDENT_BYTES:
            break
        if size + len(packed) + len(tape) > MAX_INCIDENT_BYTES:
            tape = b""
        if not tape:
            incident = without_tape(incident)
        size += len(packed) + len(tape)
        found.append(StoredIncident(incident.brief, packed, tape))
    return tuple(found), cut_short


def _awaited_gpus(gpus: Collection[At], node: NodeStatus) -> tuple[WaitedFor, ...]:
    """The GPUs for which these wait now."""
    judged = [gpu.verdict for gpu in node.gpus if gpu.at in gpus and gpu.verdict]
    return tuple({late.at: late for one in judged for late in one.waits_for}.values())


def _seen_before(before: Iterable[WaitedFor], now: Collection[WaitedFor]) -> bool:
    """Whether those only have ended since then of whom it was seen where they stood.

    That tells more than their end: whoever gives up a job that hangs ends its processes.
    """
    stood = {late.at for late in before if late.where and late.reason != GONE.name}
    return bool(now) and all(late.reason == GONE.name and late.at in stood for late in now)


def _in_a_label(where: str) -> str:
    """Where a process stands, without what does not fit: first where those stand that wait."""
    cut = where[:MAX_WHERE]
    return where if cut == where else cut.rpartition("; ")[0] or f"{cut[:-1]}…"


def _moment(time: float, what: What, text: str, gpus: tuple[str, ...]) -> Happening:
    return Happening(round(time, 1), what, clean(text), gpus)


def _whose(one: OnGpu) -> str:
    return one.owner or f"GPU {one.gpu}"


def _process_text(one: OnGpu) -> str:
    rank = f", rank {one.rank}" if one.rank else ""
    owner = f" of {one.owner}" if one.owner else ""
    return f"Process {one.pid}{rank}{owner}"


def _names(line: str, pid: int) -> bool:
    """Whether a line of the kernel is about a process: ``process 812``, ``[812]``, ``pid=812``."""
    return re.search(rf"(?:process |pid[= ]|\[){pid}\b", line) is not None
