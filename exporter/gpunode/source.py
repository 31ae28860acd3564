"""The interface of a source: it reads one thing on the node, on its own schedule, and fails alone.

A ``NODE_SOURCE`` declared in a module of ``host/``, ``audit/`` or ``nccl/`` is read on every node;
a ``GPU_SOURCE`` or ``HOLDERS_SOURCE`` (``holders/source.py``) declared in a module of ``gpu/``,
``jobs/`` or ``nccl/`` is read on every GPU.
``sources.py`` finds these declarations; nothing else registers a source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError, Gpu
from gpunode.metric import Metric, Sample
from gpunode.node.node import Clock, Node, NoDescriptors
from gpunode.unread import Unknown, Unread

D = TypeVar("D")
T = TypeVar("T")

MAX_ITEMS = 64
"""The most items (disks, ports, mounts, XIDs) that a source distinguishes, so that no node, however
unusual, creates an unbounded number of series."""


def limit(what: str) -> Unknown:
    """Things of which a source reads so many at most: a word for them, in plural."""
    words = what.replace("_", " ")
    said = f"there were more {words} than gpunode reads; the rest is left out or counted as one"
    return Unknown(what, said, bound=True)


MORE_PROCESSES, MORE_SOCKETS, MORE_XIDS = limit("processes"), limit("sockets"), limit("xids")

FAILURES = (DriverError, OSError, ValueError, NoDescriptors)
"""What a read may raise: errors of the driver, of a file, or of its content. Any other exception is
a bug in gpunode; the daemon isolates it as well, tests do not."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one read: samples to export, and details that are not samples.

    ``detail`` is a dataclass defined by the source. The API, the tables and the views look it up by
    its type. ``unread`` is what this read met and did not understand; it is counted at each read.
    """

    samples: tuple[Sample, ...]
    detail: object | None = None
    unread: tuple[Unread, ...] = ()


def bounded(
    found: Iterable[T],
    limited: Unknown,
    most: int = MAX_ITEMS,
    of: str = "",
    whose: Callable[[T], tuple[str, ...]] | None = None,
) -> tuple[list[T], tuple[Unread, ...]]:
    """The first of what was found, and a note of those left out, as ``80 disks, 64 are read``.

    ``of`` is a more precise word for them. What tenants make has an owner, and then a GPU:
    ``whose`` tells both. Each owner has a turn before any has a second, and so has each of his
    GPUs; the note says of whom most was left out. It is asked only where there is too much.
    """
    kept = list(found)
    if len(kept) <= most:
        return kept, ()
    words = of or limited.what.replace("_", " ")
    said = f"{len(kept)} {words}, {most} are read"
    if whose is not None:
        owned = [(whose(one), one) for one in kept]
        turns = list(in_turns(owned))
        kept = [one for _, one in turns]
        ((owner, times),) = Counter(keys[0] for keys, _ in turns[most:]).most_common(1)
        said += f"; {times} of {owner or 'an unknown owner'} are left out"
    return kept[:most], (limited.seen(said, len(kept) - most),)


def in_turns(
    owned: Iterable[tuple[tuple[str, ...], T]], level: int = 0
) -> Iterator[tuple[tuple[str, ...], T]]:
    """One of each owner, then a second of each, and so on; of an owner, one of each GPU in turn."""
    groups: dict[str, list[tuple[tuple[str, ...], T]]] = {}
    for keys, one in owned:
        groups.setdefault(keys[level], []).append((keys, one))
    queues = [
        iter(group if len(group[0][0]) == level + 1 else in_turns(group, level + 1))
        for group in groups.values()
    ]
    while queues:
        waiting, queues = queues, []
        for queue in waiting:
            with suppress(StopIteration):
                yield next(queue)
                queues.append(queue)


class Source(Protocol):
    """Something that is read at intervals.

    ``every`` is the interval in seconds; it may change from one read to the next.
    """

    name: str
    every: float

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that a read may emit."""
        ...

    def read(self) -> Reading | None:
        """Read it now, completely or not at all; None if there is nothing to report yet.

        Raises one of ``FAILURES``, which counts as a failed read of this source at this place.
        """
        ...


@runtime_checkable
class HasUnknowns(Protocol):
    """A source that may read what it does not understand."""

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """Every kind of it that a read may report."""
        ...


@runtime_checkable
class OutlastsGpu(Protocol):
    """A source that also tells something of a GPU whose driver does not answer."""

    outlasts_the_gpu: bool


class Place(NamedTuple):
    """The part of the node that a source reads: a GPU, a mount, or the whole node.

    The fields are labels, empty if they do not apply.
    """

    gpu: str = ""
    uuid: str = ""
    mountpoint: str = ""


WHOLE_NODE = Place()

Divided = Literal["both", "board", "instances", "divided_board"]
"""Which parts of a GPU in MIG mode a source reads; ``divided_board`` only while it has instances,
and nothing of another GPU."""


class NodeSource(Protocol):
    """A class whose instances each read the whole node."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> str:
        """What it takes to have data from it, for a user who has none."""
        ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    def __call__(self, node: Node, settings: Settings) -> Source: ...


class GpuSource(Protocol):
    """A class whose instances each read one GPU or MIG instance."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> str:
        """What it takes to have data from it, for a user who has none."""
        ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def divided(self) -> Divided: ...
    def __call__(self, node: Node, gpu: Gpu, settings: Settings) -> Source: ...


class Absent(Exception):
    """The hardware or service is not on this node; ``str()`` says so to the user."""


class Finder(Protocol):
    """Finds the sources that the node has now."""

    name: str

    def find(self) -> Iterable[tuple[Place, Source]]:
        """The sources present now; each stays the same object for as long as it is present.

        Raises ``Absent``.
        """
        ...


Key = tuple[Metric, tuple[str, ...]]
"""A series: its metric and the values of its labels."""


@dataclass(frozen=True, slots=True)
class DetailReading(Generic[D]):
    """A detail from a source, with its place and time (seconds since the epoch)."""

    place: Place
    time: float
    detail: D


@dataclass(frozen=True, slots=True)
class Met:
    """What a source met and did not understand, or left out, of one kind, since the start."""

    source: str
    what: str
    meaning: str
    times: int
    """How often a read met it: a line of a log once, what stays at each read."""

    last: float
    """When it was last met, in seconds since the epoch."""

    examples: tuple[str, ...]
    """The latest that differ, oldest first; numbers and what a tenant chose are only shapes."""

    bound: bool = False
    """Whether it is understood, and left out because there was too much of it."""


@dataclass(frozen=True, slots=True)
class SilentPlace:
    """A source that does not answer, or a finder that finds nothing: where, since when, and why.

    ``since`` is when it last answered, in seconds since the epoch, if it ever did.
    """

    source: str
    place: Place
    since: float | None
    why: str


class Readings(Protocol):
    """The latest readings of all sources."""

    @property
    def clock(self) -> Clock: ...

    def values(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        """Current values of these metrics, with the times (monotonic) of their reads."""
        ...

    def details(self, kind: type[D]) -> list[DetailReading[D]]:
        """The reported details of this type, ordered by place."""
        ...

    def last(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        """The values of these metrics when they were last read, also of what is not read now."""
        ...

    def silent(self) -> list[SilentPlace]:
        """The sources that do not answer now; one that has only begun is not among them."""
        ...

    def unread(self) -> list[Met]:
        """What was met and not understood since the start, ordered by source and kind."""
        ...


def by_metric(
    readings: Readings, metrics: Collection[Metric]
) -> dict[Metric, dict[tuple[str, ...], float]]:
    """Current values of these metrics: of each, by the labels of its series."""
    found: dict[Metric, dict[tuple[str, ...], float]] = {}
    for (metric, labels), (value, _) in readings.values(metrics).items():
        found.setdefault(metric, {})[labels] = value
    return found


class View(Protocol):
    """Something that evaluates the readings of the sources at intervals."""

    name: str
    every: float

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that a read may emit."""
        ...

    def read(self, readings: Readings) -> Reading:
        """The result of evaluating the readings now."""
        ...
