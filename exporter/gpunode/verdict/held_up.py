"""What holds each GPU up now, and for how long already: one cause at most, in an order of need.

Rules add these up; they need not remember, and a cause that comes and goes has no part in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpunode import words
from gpunode.gpu import GPU
from gpunode.gpu.activity import BLOCKED_STREAK, PROCESSES, STOPPED, GpuActivity
from gpunode.jobs.owners import ALLOCATED, OwnersDetail
from gpunode.jobs.processes import JobDetail
from gpunode.jobs.steps import SECONDS as PHASES
from gpunode.metric import Metric, Sample
from gpunode.serving.requests import INFO, STARTING, TOKENLESS
from gpunode.source import Reading, Readings, by_metric
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.causes.communication import STALLED_COLLECTIVE
from gpunode.verdict.facts import At
from gpunode.verdict.reasons import (
    ANOTHER_PROCESS,
    CHECKPOINTING,
    CPU_BOUND,
    EVALUATING,
    LOCK,
    PREPARING,
    SLEEPING,
    SOCKET,
    UNINTERRUPTIBLE,
    UNKNOWN,
)
from gpunode.verdict.source import Judgement, Judgements

MOMENTARY_CAUSES = (
    "gpu_lost",
    "no_process",
    "stopped",
    "no_tokens",
    "starting",
    "checkpoint",
    "filesystem_silent",
    "preparing",
)
"""What takes the place of a verdict, the most telling first."""

HANGS = ("gpu_lost", "stopped", "no_tokens", "filesystem_silent")
"""Those in which somebody waits in vain."""

HANG_SECONDS = 20.0
"""Seconds from which what stands still hangs, for people: a large collective takes some."""

HELD_UP = Metric(
    "gpunode_gpu_held_up_seconds",
    "gauge",
    "For how long a GPU has been held up by what holds it up now: at most one cause, absent where "
    "nothing does. "
    + "; ".join(f"`{name}`: {words.CAUSES[name].sentence}" for name in MOMENTARY_CAUSES)
    + "; otherwise the cause of the verdict, where time is lost to it (docs/verdict.md).",
    (*GPU, "cause"),
)

READ_INTERVAL = 2.0
"""Seconds between looks, as often as verdicts fall."""

FLICKERS = 10.0
"""Seconds for which a cause may be away, or another in its place, before it is over."""

RESTING = ("serving", "interactive")
RESTS = frozenset(one.name for one in (ANOTHER_PROCESS, CPU_BOUND, LOCK, SLEEPING, SOCKET, UNKNOWN))
"""Kinds of work that wait for requests, and what a process may do meanwhile: some poll."""

USED = frozenset({ALLOCATED, BLOCKED_STREAK, INFO, PHASES, PROCESSES, STARTING, STOPPED, TOKENLESS})


@dataclass(slots=True)
class Hold:
    """What holds a GPU up, from when, and when (monotonic) it was last seen."""

    cause: str
    began: float
    seen: float


@dataclass(frozen=True, slots=True)
class CurrentHolds:
    """What holds each GPU up at this look, without causes that may be over."""

    causes: Mapping[At, str]


class HoldTracker:
    """Remembers what holds each GPU up."""

    name = "held_up"
    every = READ_INTERVAL
    metrics = (HELD_UP,)

    def __init__(self) -> None:
        self._holding: dict[At, Hold] = {}
        self._saving: dict[At, float] = {}
        """Seconds that each training had spent in checkpoints when it was last looked at."""

    def read(self, readings: Readings) -> Reading:
        now = readings.clock.monotonic()
        found = dict(self._holds(readings, now))
        for at, (cause, began) in found.items():
            held = self._holding.get(at)
            if held is None or (held.cause != cause and self._is_over(held, cause, now)):
                self._holding[at] = Hold(cause, began, now)
            elif held.cause == cause:
                held.seen, held.began = now, min(held.began, began)
        self._holding = {
            at: held
            for at, held in self._holding.items()
            if at in found or not self._is_over(held, "", now)
        }
        samples = (
            Sample(HELD_UP, (*at, held.cause), now - held.began)
            for at, held in self._holding.items()
        )
        causes = {at: held.cause for at, held in self._holding.items() if held.seen == now}
        return Reading(tuple(samples), CurrentHolds(causes))

    def _is_over(self, held: Hold, other: str, now: float) -> bool:
        """Whether a cause gives way at once, to one that needs somebody more, or has for long."""
        return other in MOMENTARY_CAUSES or stands_still(other) or now - held.seen >= FLICKERS

    def _holds(self, readings: Readings, now: float) -> Iterator[tuple[At, tuple[str, float]]]:
        """What holds each GPU up now, and from when on (monotonic)."""
        values = by_metric(readings, USED)
        verdicts = {
            (one.gpu, one.uuid): one
            for told in readings.details(Judgements)
            for one in told.detail.verdicts
        }
        told = dict(self._momentary(readings, values, verdicts, now))
        for at, began in told.items():
            yield at, began
        for at, verdict in verdicts.items():
            cause = CAUSES[verdict.cause]
            if at not in told and cause.costs and not _may_idle(verdict, verdicts.values()):
                streak = values.get(BLOCKED_STREAK, {}).get(at, 0.0)
                since = streak if cause is STALLED_COLLECTIVE else 0.0
                yield at, (cause.name, now - since)

    def _momentary(
        self,
        readings: Readings,
        values: dict[Metric, dict[tuple[str, ...], float]],
        verdicts: dict[At, Judgement],
        now: float,
    ) -> Iterator[tuple[At, tuple[str, float]]]:
        """What takes the place of a verdict, and from when on; the last of a GPU counts."""
        late = {one.at: one.reason for verdict in verdicts.values() for one in verdict.waits_for}
        states = _states(readings)
        for at, verdict in verdicts.items():
            reasons = {one.reason for one in verdict.waits_for} | {late.get(at, "")}
            if reasons & {EVALUATING.name, PREPARING.name}:
                yield at, ("preparing", now)
            if UNINTERRUPTIBLE.name in reasons or states.get(at) == {"D"}:
                yield at, ("filesystem_silent", now)
            if CHECKPOINTING.name in reasons or self._saves(at, values.get(PHASES, {})):
                yield at, ("checkpoint", now)
        for (gpu, uuid), seconds in values.get(STARTING, {}).items():
            yield (gpu, uuid), ("starting", now - seconds)
        for (_, first, *_), seconds in values.get(TOKENLESS, {}).items():
            if seconds > 0:
                for gpu, uuid, *_, of, _ in values.get(INFO, {}):
                    if of == first:
                        yield (gpu, uuid), ("no_tokens", now - seconds)
        on_each: dict[At, float] = {}
        for (gpu, uuid, *_), processes in values.get(PROCESSES, {}).items():
            on_each[gpu, uuid] = on_each.get((gpu, uuid), 0.0) + processes
        for (gpu, uuid), stopped in values.get(STOPPED, {}).items():
            waited_for = late.get((gpu, uuid)) == "stopped"
            if stopped and (waited_for or stopped >= on_each.get((gpu, uuid), 0.0)):
                yield (gpu, uuid), ("stopped", now)
        for (gpu, uuid), allocated in values.get(ALLOCATED, {}).items():
            if allocated and on_each.get((gpu, uuid)) == 0.0:
                yield (gpu, uuid), ("no_process", now)
        for one in readings.silent():
            if one.source == GpuActivity.name and one.place.gpu and one.since is not None:
                away = max(0.0, readings.clock.time() - one.since)
                yield (one.place.gpu, one.place.uuid), ("gpu_lost", now - away)

    def _saves(self, at: At, phases: dict[tuple[str, ...], float]) -> bool:
        """Whether a training has spent time in a checkpoint since the last look."""
        seconds = phases.get((*at, "checkpoint"))
        if seconds is None:
            return False
        before = self._saving.get(at, seconds)
        self._saving[at] = seconds
        return seconds > before


def _may_idle(verdict: Judgement, verdicts: Iterable[Judgement]) -> bool:
    """Whether a server of which no figures are known may wait for a request.

    Of some, all GPUs but the first spin until the process on that one asks them to work.
    """
    if verdict.cause != STALLED_COLLECTIVE.name or verdict.workload.kind not in RESTING:
        return False
    if not verdict.waits_for:
        return any(
            one.workload.kind == verdict.workload.kind
            and one.cause != STALLED_COLLECTIVE.name
            and int(one.gpu) < int(verdict.gpu)
            for one in verdicts
        )
    late = {one.at for one in verdict.waits_for if one.reason in RESTS}
    waiting = [int(one.gpu) for one in verdicts if late & {awaited.at for awaited in one.waits_for}]
    return bool(late) and all(int(gpu) < min(waiting) for gpu, _ in late)


def stands_still(cause: str) -> bool:
    """Whether the work stops while this holds a GPU up."""
    return cause in HANGS or (cause in CAUSES and CAUSES[cause].stands_still)


def _states(readings: Readings) -> dict[At, set[str]]:
    """The states of the processes that hold each GPU, as letters of ``ps``."""
    holders = {
        (one.place.gpu, one.place.uuid): {process.pid for process in one.detail.processes}
        for one in readings.details(OwnersDetail)
    }
    return {
        at: {listed.state for listed in one.detail.processes if listed.pid in holders.get(at, ())}
        for one in readings.details(JobDetail)
        if (at := (one.place.gpu, one.place.uuid))
    }
