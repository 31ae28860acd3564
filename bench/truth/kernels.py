"""Truth from traced kernels: which state a GPU was in at each moment.

At each moment a process computes if any of its own kernels runs; else it runs a collective, copies
or runs nothing, in this order. A collective is ``blocked`` until its last rank has started it, and
``communication`` from then on. A GPU that runs nothing is ``starved``, also while a copy waits for
a CPU: ``copy`` is what copy engines need for the bytes that PCIe moved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]
"""Begin and end in seconds since the epoch, an interval a row."""

SHORT_GAP = 0.02
"""Seconds of a gap up to which it is the time between two launches."""

ENGINES = 55e9
"""Bytes per second that a copy engine moves over PCIe 5 (H200 and H100)."""

TURN = 1e6
"""Nanoseconds that a kernel waits at least if another process has its turn; on an H200, 2.5 ms."""

COLLECTIVE = re.compile(r"nccl", re.IGNORECASE)
HOST_COPY = re.compile(r"memcpy.*(HtoD|DtoH|host)", re.IGNORECASE)
PEER_COPY = re.compile(r"memcpy.*PtoP", re.IGNORECASE)

TURNS = "turns"
"""The time for which kernels of a process waited for their turn."""

KINDS = ("compute", "collective", "communication", "copy", TURNS)
PRIORITY = ("compute", "communication", "blocked", "copy")
STATES = (*PRIORITY, "starved")


def kind_of(name: str) -> str:
    """What a kernel or copy of that name does."""
    if HOST_COPY.search(name):
        return "copy"
    if PEER_COPY.search(name):
        return "communication"
    return "collective" if COLLECTIVE.search(name) else "compute"


class Event(Protocol):
    """What the tracer says of a kernel, a copy or a call of the CUDA runtime."""

    def name(self) -> str: ...

    def start_ns(self) -> int: ...

    def duration_ns(self) -> int: ...


Traced = TypeVar("Traced", bound=Event)


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank ran on its GPU, by kind."""

    kernels: Mapping[str, Intervals]
    names: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name of kernel or copy, where it was not loaded from a file."""

    @property
    def begin(self) -> float:
        """When the first kernel began; infinite if there is none."""
        begins = (float(kernels[:, 0].min()) for kernels in self.kernels.values() if len(kernels))
        return min(begins, default=math.inf)

    @staticmethod
    def of(
        events: Iterable[Traced], on_gpu: Callable[[Traced], bool], in_turns: bool = False
    ) -> Trace:
        """Of what ran on a GPU, alone or in turns with other processes.

        A name is looked at once: a trace has a million events.
        """
        times: dict[str, list[tuple[int, int]] | None] = {}
        for event in events:
            name = event.name()
            if name not in times:
                times[name] = [] if on_gpu(event) else None
            kept = times[name]
            if kept is not None:
                kept.append((event.start_ns(), event.duration_ns()))
        kernels: dict[str, list[Intervals]] = {kind: [np.empty((0, 2))] for kind in KINDS}
        names = {}
        for name, kept in times.items():
            if kept is not None:
                ran, waited = _seconds(kept, in_turns)
                names[name] = float((ran[:, 1] - ran[:, 0]).sum())
                kernels[kind_of(name)].append(ran)
                kernels[TURNS].append(waited)
        return Trace({kind: np.concatenate(found) for kind, found in kernels.items()}, names)

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = dict(self.kernels)
        np.savez(path, **arrays)

    @staticmethod
    def load(path: Path) -> Trace:
        with np.load(path) as kept:
            return Trace({kind: kept[kind] for kind in KINDS})


def _seconds(times: Sequence[tuple[int, int]], in_turns: bool) -> tuple[Intervals, Intervals]:
    """When the kernels of one name ran and waited for a turn, from begins and durations in ns.

    A kernel that lasts a turn longer than others of its name waited for one. It ran for as long as
    they do.
    """
    columns = np.array(times, dtype=np.int64).reshape(-1, 2)
    begins, ends = columns[:, 0], columns.sum(axis=1)
    ran = ends.copy()
    if in_turns:
        usual = np.median(columns[:, 1])
        late = columns[:, 1] > usual + TURN
        ran[late] = begins[late] + int(usual)
    waited = np.column_stack((ran, ends))[ran < ends]
    return np.column_stack((begins, ran)) * 1e-9, waited * 1e-9


def merged(intervals: Intervals) -> Intervals:
    """The union of intervals, as disjoint intervals in order."""
    if not len(intervals):
        return intervals.reshape(-1, 2)
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate(([True], ordered[1:, 0] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((ordered[first, 0], ends[last]))


def divided(own: Intervals, peers: Sequence[Intervals]) -> tuple[Intervals, Intervals]:
    """The waiting and the moving part of each collective of a rank.

    The same collective on a peer is the one that ends closest to it and overlaps it: no rank can
    leave a collective long before the others. Without one, the rank waited throughout.
    """
    joined = own[:, 0]
    for peer in peers:
        joined = np.maximum(joined, _began(own, peer))
    return np.column_stack((own[:, 0], joined)), np.column_stack((joined, own[:, 1]))


def _began(own: Intervals, peer: Intervals) -> NDArray[np.float64]:
    """When a peer began each collective; its end on this rank if the peer did not join it."""
    if not len(peer):
        return own[:, 1]
    by_end = peer[np.argsort(peer[:, 1])]
    after = np.searchsorted(by_end[:, 1], own[:, 1]).clip(0, len(by_end) - 1)
    before = (after - 1).clip(0)
    ends = own[:, 1]
    nearer = np.abs(by_end[before, 1] - ends) < np.abs(by_end[after, 1] - ends)
    same = by_end[np.where(nearer, before, after)]
    overlaps = (same[:, 0] < ends) & (same[:, 1] > own[:, 0])
    return np.where(overlaps, same[:, 0], ends)


def states(trace: Trace, peers: Sequence[Trace]) -> dict[str, Intervals]:
    """When a process had its GPU in which state, before gaps are considered."""
    waiting, moving = divided(
        trace.kernels["collective"], [peer.kernels["collective"] for peer in peers]
    )
    found = {kind: merged(trace.kernels[kind]) for kind in ("compute", "copy")}
    found[TURNS] = merged(trace.kernels[TURNS])
    found["blocked"] = merged(waiting)
    found["communication"] = merged(np.concatenate((moving, trace.kernels["communication"])))
    return found


def shares(
    processes: Sequence[Mapping[str, Intervals]], begin: float, end: float, moved: float
) -> dict[str, float]:
    """Shares of the time from ``begin`` to ``end`` by state, for the processes of one GPU.

    ``moved`` is bytes per second over PCIe meanwhile. Processes take turns of some milliseconds.
    Time in which several ran, or waited for their turns, is shared out in proportion.
    """
    seconds = dict.fromkeys(PRIORITY, 0.0)
    for busy in processes:
        above = np.empty((0, 2))
        for state in PRIORITY:
            covered = _length(above)
            above = merged(np.concatenate((above, _clipped(busy[state], begin, end))))
            seconds[state] += _length(above) - covered
    together = _length(_ran(processes, begin, end)) / (sum(seconds.values()) or 1.0)
    found = {state: together * spent / (end - begin) for state, spent in seconds.items()}
    found["copy"] = min(found["copy"], moved / ENGINES)
    return {**found, "starved": max(0.0, 1.0 - sum(found.values()))}


def short_gaps(processes: Sequence[Mapping[str, Intervals]], begin: float, end: float) -> float:
    """The share of the time that is gaps too short for anything but a launch."""
    ran = _ran(processes, begin, end)
    gaps = ran[1:, 0] - ran[:-1, 1]
    return float(gaps[gaps < SHORT_GAP].sum()) / (end - begin)


def _ran(processes: Sequence[Mapping[str, Intervals]], begin: float, end: float) -> Intervals:
    """When the GPU ran anything."""
    every = [_clipped(times, begin, end) for busy in processes for times in busy.values()]
    return merged(np.concatenate(every))


def _length(intervals: Intervals) -> float:
    """The length of disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _clipped(intervals: Intervals, begin: float, end: float) -> Intervals:
    inside = intervals[(intervals[:, 1] > begin) & (intervals[:, 0] < end)]
    return np.clip(inside, begin, end)
