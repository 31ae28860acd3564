"""When demand reaches supply if it goes on as it did, and how sure that is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WEEK = 7
LEAST_DAYS = 14
"""Days of data from which on a trend is worth stating: each weekday twice."""

RESAMPLED = 400
HORIZON = 730
"""Days after the end beyond which nothing is foretold."""

INTERVAL = (0.1, 0.9)
SEED = 1
"""A report on the same data says the same."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through days: its value at the end, what it gains a day, and what else both may be."""

    level: float
    gain: float
    others: tuple[tuple[float, float], ...]

    def gains(self) -> tuple[float, float]:
        """The interval in which the gain lies with 80 % confidence."""
        return _interval([gain for _, gain in self.others])

    def at(self, day: float) -> tuple[float, float, float]:
        """The line so many days after the end, and its interval."""
        low, high = _interval([level + gain * day for level, gain in self.others])
        return self.level + self.gain * day, low, high

    def reaches(self, value: float) -> tuple[float | None, float | None, float | None]:
        """In how many days it comes to a value: likely, at the earliest and at the latest.

        None where that is beyond the horizon.
        """
        all_days = [_days(level, gain, value) for level, gain in self.others]
        early, late = _interval(all_days)
        likely = _days(self.level, self.gain, value)
        return _within(likely), _within(early), _within(late)


def trend(values: Mapping[float, float]) -> Trend | None:
    """The trend of values by day, of which the end is 0; None for less than two weeks of them.

    A straight line by least squares. What it may be else comes from a moving-block bootstrap:
    residuals are put together anew in blocks of a week, because what is left over of one day
    resembles the next, and one Sunday the other.
    https://otexts.com/fpp3/bootstrap.html
    """
    days = sorted(values)
    if len(days) < LEAST_DAYS:
        return None
    found = [values[day] for day in days]
    gain, level = statistics.linear_regression(days, found)
    line = [level + gain * day for day in days]
    left = [value - fitted for value, fitted in zip(found, line, strict=True)]
    chance = random.Random(SEED)  # noqa: S311 no secret
    others = []
    for _ in range(RESAMPLED):
        drawn: list[float] = []
        while len(drawn) < len(days):
            begin = chance.randrange(len(left) - WEEK + 1)
            drawn += left[begin : begin + WEEK]
        anew = [fitted + error for fitted, error in zip(line, drawn, strict=False)]
        other_gain, other_level = statistics.linear_regression(days, anew)
        others.append((other_level, other_gain))
    return Trend(level, gain, tuple(others))


def _days(level: float, gain: float, value: float) -> float:
    if level >= value:
        return 0.0
    return (value - level) / gain if gain > 0 else float("inf")


def _within(days: float) -> float | None:
    return days if days <= HORIZON else None


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in INTERVAL)
    return low, high
