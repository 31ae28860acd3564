"""What happened on the node, so much at most: of whom there is most makes way.

Else one tenant whose programs say much, or come and go, would push out what is about others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from gpunode.incidents.incident import Happening

SourcedMoment = tuple[str, Happening]
"""Something that happened, and through whom: an owner of processes, or else what told of it."""


@dataclass(slots=True)
class SharedMoments:
    """What happened, by whom; the oldest of somebody makes way, or the latest."""

    most: int
    latest_makes_way: bool = False
    left_out: int = 0
    _of: dict[str, deque[Happening]] = field(default_factory=dict)
    _size: int = 0

    def add(self, told: Iterable[SourcedMoment]) -> None:
        """Add what happened."""
        for whose, moment in told:
            self._of.setdefault(whose, deque()).append(moment)
            self._size += 1
            if self._size > self.most:
                loudest = max(self._of, key=lambda one: len(self._of[one]))
                if self.latest_makes_way:
                    self._of[loudest].pop()
                else:
                    self._of[loudest].popleft()
                if not self._of[loudest]:  # there is no end to those who come and go
                    del self._of[loudest]
                self._size -= 1
                self.left_out += 1

    def since(self, time: float) -> Iterator[SourcedMoment]:
        """What happened at a time or later, and through whom."""
        for whose, kept in self._of.items():
            yield from ((whose, moment) for moment in kept if moment.time >= time)

    def __iter__(self) -> Iterator[Happening]:
        return iter(sorted(chain.from_iterable(self._of.values()), key=lambda one: one.time))
