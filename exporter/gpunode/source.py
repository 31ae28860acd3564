"""What a source is: one thing read from the node, on its own schedule, failing alone.

A module of ``host/``, ``audit/`` or ``nccl/`` that declares ``NODE_SOURCE`` has its source read on
every node; one of ``gpu/``, ``jobs/`` or ``nccl/`` that declares ``GPU_SOURCE``, on every GPU.
Nothing else is to be told of it: ``sources.py`` finds the declarations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from gpunode.config import Settings
from gpunode.driver.driver import DriverError, Gpu
from gpunode.metric import Metric, Sample
from gpunode.node.node import Clock, Node

D = TypeVar("D")

MANY = 64
"""How many of anything a source tells apart (disks, ports, mounts, XIDs), so that no node, however
odd, makes series without bound."""

FAILURES = (DriverError, OSError, ValueError)
"""What a read may raise: the driver, a file, or what was in it. Anything else is a fault of ours,
which is isolated all the same, but not in tests."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read found: the samples to export, and what cannot be a sample.

    ``detail`` is a dataclass of the source's own, for the API, the tables and the views: they ask
    for it by its type.
    """

    samples: tuple[Sample, ...]
    detail: object | None = None


class Source(Protocol):
    """Something that is read every so often.

    ``every`` is in seconds, and may change from one read to the next.
    """

    name: str
    every: float

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that a read may emit."""
        ...

    def read(self) -> Reading | None:
        """Read it now, whole or not at all; None where there is nothing to tell yet.

        Raises one of ``FAILURES``, which counts as a failed read of this source in this place.
        """
        ...


class Place(NamedTuple):
    """What of the node a source is read of: a GPU, a mount, or the node as a whole.

    The fields are labels, and empty where they do not apply.
    """

    gpu: str = ""
    uuid: str = ""
    mountpoint: str = ""


WHOLE_NODE = Place()

Divided = Literal["both", "board", "instances"]
"""Which of a GPU in MIG mode a source is read of."""


class NodeSource(Protocol):
    """A class whose instances are read of the node as a whole."""

    @property
    def name(self) -> str: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    def __call__(self, node: Node, settings: Settings) -> Source: ...


class GpuSource(Protocol):
    """A class whose instances are each read of one GPU or MIG instance."""

    @property
    def name(self) -> str: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def divided(self) -> Divided: ...
    def __call__(self, node: Node, gpu: Gpu, settings: Settings) -> Source: ...


class Absent(Exception):
    """What a finder looks for is not on this node, in words for a person."""


class Finder(Protocol):
    """Finds the sources that a node has at this moment."""

    name: str

    def find(self) -> Iterable[tuple[Place, Source]]:
        """The sources that are present, the same objects for as long as they are.

        Raises ``Absent``.
        """
        ...


Key = tuple[Metric, tuple[str, ...]]
"""A series: its metric and the values of its labels."""


@dataclass(frozen=True, slots=True)
class Told(Generic[D]):
    """What a source told beside its samples, of which place, and when (seconds since the epoch)."""

    place: Place
    time: float
    detail: D


class Readings(Protocol):
    """What all sources have read, as it stands at this moment."""

    @property
    def clock(self) -> Clock: ...

    def values(self, metrics: Collection[Metric]) -> dict[Key, tuple[float, float]]:
        """Present values of these metrics, with the moments (monotonic) they were read at."""
        ...

    def details(self, kind: type[D]) -> list[Told[D]]:
        """What sources told that is of this type, in the order of their places."""
        ...


class View(Protocol):
    """Something that looks every so often at what the sources have read."""

    name: str
    every: float

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that a read may emit."""
        ...

    def read(self, readings: Readings) -> Reading:
        """What there is to say of it now."""
        ...
