"""Truth from traced kernels: which state a GPU was in at each moment.

At each moment a process computes if any of its kernels does; else it accesses memory, runs a
collective, copies or runs nothing, in this order. A collective is ``blocked`` until its last rank
has started it, and ``communication`` from then on. A gap of less than 20 ms is ``launch``, a longer
one ``starved``.
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

LONG_GAP = 0.02
"""Seconds from which a gap is no longer the time between two launches."""

TURN = 1e6
"""Nanoseconds that a kernel waits at least if another process has its turn; on an H200, 2.5 ms."""

AROUND = 1.0
"""Seconds before and after a window in which the true ends of its first and last gap are sought."""

COMPUTE = re.compile(
    r"gemm|nvjet|cutlass|xmma|conv(?!ert)|wgrad|dgrad|fprop|flash|fmha|attention|rnn|lstm|"
    r"_dot|splitkreduce|cublas|winograd",
    re.IGNORECASE,
)
POINTWISE = re.compile(r"elementwise|triton_(poi|red|per)_", re.IGNORECASE)
"""Kernels whose names also say for which layer they work, or into what they were fused."""

STREAMING = re.compile(r"gemv|nvjet_(?:\w+_)?(?:\d+x(?:8|16)|(?:8|16)x\d+)_", re.IGNORECASE)
"""Products with a vector or a few rows, as in decoding: all they do is read the matrix from HBM.

So do Fourier transforms (5 FLOPs for each value that a pass reads and writes), which therefore
count as ``memory`` as well.
"""

COLLECTIVE = re.compile(r"nccl", re.IGNORECASE)
HOST_COPY = re.compile(r"memcpy.*(HtoD|DtoH|host)", re.IGNORECASE)
PEER_COPY = re.compile(r"memcpy.*PtoP", re.IGNORECASE)

TURNS = "turns"
"""The time for which kernels of a process waited for their turn."""

KINDS = ("compute", "memory", "collective", "communication", "copy", TURNS)
PRIORITY = ("compute", "memory", "communication", "blocked", "copy")
STATES = (*PRIORITY, "launch", "starved")


def kind_of(name: str) -> str:
    """What a kernel or copy of that name does."""
    if HOST_COPY.search(name):
        return "copy"
    if PEER_COPY.search(name):
        return "communication"
    if COLLECTIVE.search(name):
        return "collective"
    if POINTWISE.search(name) or STREAMING.search(name):
        return "memory"
    return "compute" if COMPUTE.search(name) else "memory"


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
    found = {kind: merged(trace.kernels[kind]) for kind in ("compute", "memory", "copy")}
    found[TURNS] = merged(trace.kernels[TURNS])
    found["blocked"] = merged(waiting)
    found["communication"] = merged(np.concatenate((moving, trace.kernels["communication"])))
    return found


def shares(
    processes: Sequence[Mapping[str, Intervals]], begin: float, end: float
) -> dict[str, float]:
    """Shares of the time from ``begin`` to ``end`` by state, for the processes of one GPU.

    Processes take turns of some milliseconds. Time in which several ran, or waited for their turns,
    is shared out in proportion.
    """
    seconds = dict.fromkeys(STATES, 0.0)
    for busy in processes:
        above = np.empty((0, 2))
        for state in PRIORITY:
            covered = _length(above)
            above = merged(np.concatenate((above, _clipped(busy[state], begin, end))))
            seconds[state] += _length(above) - covered
    ran = [times for busy in processes for times in busy.values()]
    gaps = _gaps(ran, begin - AROUND, end + AROUND)
    without = _length(_clipped(gaps, begin, end))
    together = (end - begin - without) / (sum(seconds.values()) or 1.0)
    seconds = {state: together * seconds[state] for state in STATES}
    long = gaps[gaps[:, 1] - gaps[:, 0] >= LONG_GAP]
    seconds["starved"] = _length(_clipped(long, begin, end))
    seconds["launch"] = max(0.0, without - seconds["starved"])
    return {state: seconds[state] / (end - begin) for state in STATES}


def _gaps(ran: Sequence[Intervals], begin: float, end: float) -> Intervals:
    """When the GPU ran nothing."""
    busy = merged(np.concatenate([_clipped(times, begin, end) for times in ran]))
    return np.concatenate(([begin], busy.ravel(), [end])).reshape(-1, 2)


def _length(intervals: Intervals) -> float:
    """The length of disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _clipped(intervals: Intervals, begin: float, end: float) -> Intervals:
    inside = intervals[(intervals[:, 1] > begin) & (intervals[:, 0] < end)]
    return np.clip(inside, begin, end)
