"""What a source is: one thing read from the node, on its own schedule, failing alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpunode.metric import Metric, Sample


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read found: the samples to export, and for the API what cannot be a sample."""

    samples: tuple[Sample, ...]
    detail: dict[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Something that is read every so often.

    ``device`` tells instances of one source apart and is empty for the node as a whole; a GPU's is
    its UUID, and ``gpu`` its index. ``every`` is in seconds, and may change from one read
    to the next.
    """

    name: str
    device: str
    gpu: str
    every: float

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that a read may emit."""
        ...

    def read(self) -> Reading | None:
        """Read it now, whole or not at all; None where there is nothing to tell yet.

        Any exception counts as a failed read of this source on this device alone.
        """
        ...


class Absent(Exception):
    """What a finder looks for is not on this node, in words for a person."""


class Finder(Protocol):
    """Finds the sources that a node has at this moment."""

    name: str

    def find(self) -> Iterable[Source]:
        """The present sources. Raises ``Absent``."""
        ...
