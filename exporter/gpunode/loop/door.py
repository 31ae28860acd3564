"""Makes what a source read fit to export, as it enters the loop: valid labels, each series once.

Names come from anyone: a file name need not be UTF-8, a job names its kernels, a peer its host. One
label that cannot be encoded would cost the whole exposition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Set
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from gpunode.metric import Sample
from gpunode.source import Key, Reading, bounded, limit
from gpunode.text import printable

SERIES = 10_000
"""The most series of one read. A node of 2500 cores has as many in its largest source; the
verdicts on 72 GPUs, each in 7 MIG instances, are 8000."""

MORE_SERIES = limit("series")
"""Of any source; it counts only once it happens, as it does to none."""

MAX_LABEL = 512
"""Characters of a label, after which it is cut; the longest that is usual is a mount point."""

one_at_a_time = threading.Lock()
"""Held while a door compares new series with those of others, so that no two admit the same."""


def label_text(text: str) -> str:
    """The text as a label."""
    return printable(text, MAX_LABEL)


PLAIN_TYPES = frozenset({bool, float, int, type(None)})


@cache
def _parts(kind: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass, none of what is no dataclass."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def prints(detail: Any) -> bool:
    """Whether every text in a detail is printable: nearly always, so this is what must be quick."""
    parts: Iterable[Any]
    if isinstance(detail, str):
        return detail.isprintable()
    if isinstance(detail, dict):
        parts = (*detail, *detail.values())
    elif isinstance(detail, tuple | list):
        parts = detail
    else:
        parts = [getattr(detail, name) for name in _parts(detail.__class__)]
    return all(
        type(part) in PLAIN_TYPES or (part.isprintable() if type(part) is str else prints(part))
        for part in parts
    )


def presentable(detail: Any) -> Any:
    """A detail in which every text is printable: itself, unless one in it was not.

    A surrogate in it would cost the whole answer of the API, which is UTF-8.
    """
    if prints(detail):
        return detail
    if isinstance(detail, str):
        return printable(detail, len(detail))
    if isinstance(detail, dict):
        return {presentable(name): presentable(value) for name, value in detail.items()}
    if isinstance(detail, tuple | list):
        return type(detail)(map(presentable, detail))
    parts = ((name, getattr(detail, name)) for name in _parts(detail.__class__))
    return replace(detail, **{name: presentable(part) for name, part in parts if not prints(part)})


class Door:
    """Admits the series of one source at one place, and counts those that it drops.

    ``doors`` are those of all sources: Prometheus refuses a series that a scrape has twice.
    """

    def __init__(self, doors: Callable[[], Iterable[Door]] = tuple) -> None:
        self.doors = doors
        self.dropped = 0
        self.series: Set[Key] = frozenset()
        """What was admitted of the last read."""

        self._last: tuple[Reading, Reading] | None = None
        """That read, and as it was admitted."""

    def admit(self, reading: Reading) -> Reading:
        """The reading with valid labels, of equal series the first, and a detail that prints.

        A read that brings no series but those of the last is only compared with it, which takes
        about half a microsecond a series.
        """
        if self._last is None or self._last[0] is not reading:
            self._last = reading, self._fit(reading)
        return self._last[1]

    def _fit(self, reading: Reading) -> Reading:
        detail = presentable(reading.detail)
        within, left_out = bounded(reading.samples, MORE_SERIES, SERIES)
        if left_out:
            reading = replace(reading, unread=(*reading.unread, *left_out))
        keys = {(sample.metric, sample.labels) for sample in within}
        if len(keys) == len(reading.samples) and keys <= self.series:
            self.series = keys
            return reading if detail is reading.detail else replace(reading, detail=detail)
        with one_at_a_time:
            admitted = self._admitted(within)
            self.series = set(admitted)
        self.dropped += len(reading.samples) - len(admitted)
        return replace(reading, samples=tuple(admitted.values()), detail=detail)

    def _admitted(self, samples: Iterable[Sample]) -> dict[Key, Sample]:
        admitted: dict[Key, Sample] = {}
        for sample in samples:
            key = sample.metric, sample.labels
            if key in self.series:
                admitted.setdefault(key, sample)
            else:
                labels = tuple(map(label_text, sample.labels))
                made_valid = Sample(sample.metric, labels, sample.value)
                admitted.setdefault((sample.metric, labels), made_valid)
        fresh = admitted.keys() - self.series
        for door in self.doors():
            if door is not self:
                for key in fresh & door.series:
                    admitted.pop(key, None)
        return admitted

    def close(self) -> None:
        """Leave the series of the last read to whoever tells them next."""
        self.series, self._last = frozenset(), None
