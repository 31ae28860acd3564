"""Finds the constants with which the ledger is least wrong on some programs.

The loss of a program is a smooth count of the limits that its worst state exceeds, and the sum of
all errors. Families count equally, however many programs they have. What the programs do not speak
for stays where it began: a small pull back sees to that.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gpunode.gpu.tuned import Tuned
from tests.windows.programs import Program

CLOSE, NEAR = 0.05, 0.10
"""Errors of a state that should not be exceeded on most GPUs, and on all."""

SMOOTH = 0.015
"""Width of the step in the count of limits that are exceeded."""

PULL = 20.0
"""How many families must speak for a constant that differs from where it began by a factor of e,
each by a loss of 1: with less, errors on families left out grow."""

FIRST_STEP, LAST_STEP, SHRINKS = 0.6, 0.08, 2.5
"""By what share of its value a constant is moved first, when its search ends, and by what a step
shrinks that found nothing better."""

NEARBY = 0.25
"""How far from the first place another search begins: the standard deviation of logarithms."""

NOTICED = 1e-9
"""A loss that changes by less has not changed."""

Place = tuple[str, int | None]
"""A number among the constants: its name, and which end of a ramp."""


def places() -> list[Place]:
    """Every number among the constants that can be moved by a factor."""
    found: list[Place] = []
    for field in fields(Tuned):
        ends: tuple[int | None, ...] = (0, 1) if isinstance(field.default, tuple) else (None,)
        found += [(field.name, end) for end in ends if at(Tuned(), (field.name, end))]
    return found


def best(programs: Sequence[Program], begin: Tuned, restarts: int = 0, seed: int = 0) -> Tuned:
    """The best constants found for some programs; equal arguments give equal ones."""
    chance = random.Random(seed)
    starts = [begin, *(_near(begin, chance) for _ in range(restarts))]
    ends = [_Descent(programs, begin, start, chance) for start in starts]
    return min(ends, key=lambda descent: descent.total).tuned


def loss(errors: Mapping[str, float]) -> float:
    """How bad the errors of one program are."""
    worst = max(map(abs, errors.values()))
    exceeded = sum(1.0 / (1.0 + math.exp((limit - worst) / SMOOTH)) for limit in (CLOSE, NEAR))
    return exceeded + 2.0 * sum(map(abs, errors.values()))


class _Descent:
    """Moves one number at a time, by smaller and smaller steps.

    What a large step of a number did not change, a small one is taken not to change: most numbers
    concern a few programs. The programs that a better place concerns are looked at anew.
    """

    def __init__(
        self, programs: Sequence[Program], begin: Tuned, start: Tuned, chance: random.Random
    ) -> None:
        sizes = Counter(program.family for program in programs)
        self._programs = programs
        self._weights = [1.0 / (len(sizes) * sizes[program.family]) for program in programs]
        self._begin, self._pull = begin, PULL / len(sizes)
        self.tuned = start
        self._losses = [loss(program.errors(start)) for program in programs]
        self.total = self._sum(self._losses, start)
        self._concerned: dict[Place, set[int]] = {}
        steps = dict.fromkeys(places(), FIRST_STEP)
        while live := [place for place, step in steps.items() if step > LAST_STEP]:
            chance.shuffle(live)
            for place in live:
                if not self._step(place, steps[place]):
                    steps[place] /= SHRINKS

    def _step(self, place: Place, step: float) -> bool:
        """Move a number if that is better."""
        which = self._concerned.get(place, set(range(len(self._programs))))
        lowest, changed = self.total, set[int]()
        for tuned in _moves(self.tuned, place, step):
            losses = list(self._losses)
            for number in which:
                losses[number] = loss(self._programs[number].errors(tuned))
                if abs(losses[number] - self._losses[number]) > NOTICED:
                    changed.add(number)
            total = self._sum(losses, tuned)
            if total < lowest - NOTICED:
                lowest, found = total, (tuned, losses)
        self._concerned[place] = changed
        if lowest == self.total:
            return False
        self.total, (self.tuned, self._losses) = lowest, found
        for numbers in self._concerned.values():
            numbers |= changed
        return True

    def _sum(self, losses: Sequence[float], tuned: Tuned) -> float:
        pull = sum(math.log(at(tuned, p) / at(self._begin, p)) ** 2 for p in places())
        return sum(w * x for w, x in zip(self._weights, losses, strict=True)) + self._pull * pull


def _moves(tuned: Tuned, place: Place, step: float) -> Iterator[Tuned]:
    """The constants with one number larger or smaller, where that is possible."""
    for factor in (1.0 + step, 1.0 / (1.0 + step)):
        try:
            yield put(tuned, place, at(tuned, place) * factor)
        except ValueError:
            continue


def _near(tuned: Tuned, chance: random.Random) -> Tuned:
    for place in places():
        try:
            tuned = put(tuned, place, at(tuned, place) * math.exp(chance.gauss(0.0, NEARBY)))
        except ValueError:
            continue
    return tuned


def at(tuned: Tuned, place: Place) -> float:
    """The number at a place."""
    name, end = place
    value = getattr(tuned, name)
    return float(value if end is None else value[end])


def put(tuned: Tuned, place: Place, value: float) -> Tuned:
    """The constants with another number there; ``ValueError`` where it cannot be."""
    name, end = place
    number: Any = float(f"{value:.3g}")
    if end is not None:
        low, high = getattr(tuned, name)
        number = (number, high) if end == 0 else (low, number)
    return replace(tuned, **{name: number})
