"""When demand reaches supply if it goes on as it did, and how sure that is."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WEEK = 7
MIN_DAYS = 14
"""Days of data from which on a line is worth drawing: each weekday twice."""

MIN_INTERVAL_DAYS = 21
"""Days of data from which on its interval holds what it says (``bench/forecasts.py``)."""

DRAWS = 1000
HORIZON = 730
"""Days after the end beyond which nothing is foretold."""

INTERVAL = (0.1, 0.9)
SEED = 1
"""A report on the same data says the same."""

AUTOCORRELATIONS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.86, 0.9, 0.94, 0.97, 0.99)
"""What may be left of a day's difference from the line on the next day."""

AUTOCORRELATION_EDGES = (
    0.0,
    *((one + next_one) / 2 for one, next_one in pairwise(AUTOCORRELATIONS)),
    1.0,
)
"""Each stands for what is nearest to it, of which all is as likely beforehand."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""The part of the variance that lasts; the rest is of each day alone."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through days: its value at the end, what it gains a day, and what else both may be."""

    level: float
    gain: float
    others: tuple[tuple[float, float], ...]
    """None for a history that is too short to tell."""

    def gains(self) -> tuple[float, float] | None:
        """The interval in which the gain lies with 80 % confidence."""
        return _interval([gain for _, gain in self.others]) if self.others else None

    def at(self, day: float) -> tuple[float, float | None, float | None]:
        """The line so many days after the end, and its interval."""
        value = self.level + self.gain * day
        if not self.others:
            return value, None, None
        return value, *_interval([level + gain * day for level, gain in self.others])

    def reaches(
        self, value: float, less: float = 0.0
    ) -> tuple[float | None, float | None, float | None]:
        """In how many days it comes to a value: likely, at the earliest and at the latest.

        ``less`` is what is taken from the line throughout. None is beyond the horizon.
        """
        likely = _within_horizon(_days(self.level - less, self.gain, value))
        if not self.others:
            return likely, None, None
        early, late = _interval([_days(level - less, gain, value) for level, gain in self.others])
        return likely, _within_horizon(early), _within_horizon(late)


@dataclass(frozen=True, slots=True)
class _Fit:
    """A line, if what is left over lasts as one assumes; how likely that is."""

    weight: float
    """Logarithm of the likelihood, up to a constant."""

    level: float
    gain: float
    squares: float
    """Sum of the squares of what is left over."""

    of_level: float
    of_gain: float
    of_both: float
    """Elements of the inverse of the normal equations' matrix."""


def trend(values: Mapping[float, float]) -> Trend | None:
    """The trend of values by day, of which the end is 0; None for less than two weeks of them.

    A straight line by generalised least squares, after the usual difference of each weekday is
    taken away. What is left over of a day lasts in part, as jobs do, and is a day's own in part: a
    first-order autoregression with noise. How much lasts, and how long, is not known from some
    weeks, so that the interval weighs every case by its restricted likelihood (Patterson, Thompson,
    https://doi.org/10.1093/biomet/58.3.545). A line that takes the days for independent gives
    intervals that hold half of what they say.
    """
    days = sorted(values)
    if len(days) < MIN_DAYS:
        return None
    found, weekdays = _without_weekdays(days, values)
    freedom = len(days) - 2 - weekdays
    fits = [
        fit
        for lasting in AUTOCORRELATIONS
        for share in SHARES
        if (fit := _fit(days, found, lasting, share))
    ]
    best = max(fits, key=lambda fit: fit.weight)
    if best.squares <= 1e-9 * sum(value * value for value in found):  # a line without noise
        return Trend(best.level, best.gain, ((best.level, best.gain),))
    weights = [math.exp(fit.weight - best.weight) for fit in fits]
    level, gain = (
        sum(weight * getattr(fit, name) for weight, fit in zip(weights, fits, strict=True))
        / sum(weights)
        for name in ("level", "gain")
    )
    if len(days) < MIN_INTERVAL_DAYS:
        return Trend(level, gain, ())
    chance = random.Random(SEED)  # noqa: S311 no secret
    others = tuple(
        _draw_line(fit, freedom, chance) for fit in chance.choices(fits, weights, k=DRAWS)
    )
    return Trend(level, gain, others)


def _without_weekdays(
    days: Sequence[float], values: Mapping[float, float]
) -> tuple[list[float], int]:
    """The values without the usual difference of each weekday, and how many figures that took."""
    found = [values[day] for day in days]
    if len(days) < MIN_INTERVAL_DAYS:
        return found, 0
    gain, level = statistics.linear_regression(days, found)
    of: dict[int, list[float]] = {}
    for day, value in zip(days, found, strict=True):
        of.setdefault(int(day) % WEEK, []).append(value - level - gain * day)
    usual = {weekday: statistics.fmean(left) for weekday, left in of.items()}
    return [value - usual[int(day) % WEEK] for day, value in zip(days, found, strict=True)], len(
        usual
    ) - 1


def _fit(
    days: Sequence[float], found: Sequence[float], lasting: float, share: float
) -> _Fit | None:
    """The line through values whose difference from it lasts so long, by a Kalman filter."""
    ones = dates = both = with_ones = with_dates = squares = logarithms = 0.0
    at = AUTOCORRELATIONS.index(lasting)
    for variance, (one, date, value) in _whitened(days, found, lasting, share):
        logarithms += math.log(variance)
        ones += one * one / variance
        dates += date * date / variance
        both += one * date / variance
        with_ones += one * value / variance
        with_dates += date * value / variance
        squares += value * value / variance
    determinant = ones * dates - both * both
    if determinant <= 0:
        return None
    level = (dates * with_ones - both * with_dates) / determinant
    gain = (ones * with_dates - both * with_ones) / determinant
    left = max(squares - level * with_ones - gain * with_dates, 1e-12 * squares, 1e-300)
    weight = -(logarithms + math.log(determinant) + (len(days) - 2) * math.log(left)) / 2
    weight += math.log(AUTOCORRELATION_EDGES[at + 1] - AUTOCORRELATION_EDGES[at])
    return _Fit(
        weight, level, gain, left, dates / determinant, ones / determinant, -both / determinant
    )


def _whitened(
    days: Sequence[float], found: Sequence[float], lasting: float, share: float
) -> Iterator[tuple[float, tuple[float, float, float]]]:
    """What is new in a constant, the day and the value on each day, and the variance of that."""
    states = (0.0, 0.0, 0.0)
    uncertain = share
    before = days[0]
    for day, value in zip(days, found, strict=True):
        left = lasting ** (day - before)
        states = (states[0] * left, states[1] * left, states[2] * left)
        uncertain = left * left * uncertain + share * (1 - left * left)
        variance = uncertain + 1 - share
        new = (1.0 - states[0], day - states[1], value - states[2])
        yield variance, new
        trust = uncertain / variance
        states = (
            states[0] + trust * new[0],
            states[1] + trust * new[1],
            states[2] + trust * new[2],
        )
        uncertain *= 1 - trust
        before = day


def _draw_line(fit: _Fit, freedom: int, chance: random.Random) -> tuple[float, float]:
    """A level and a gain that may be the true ones if a fit's assumption is."""
    variance = fit.squares / chance.gammavariate(freedom / 2, 2)
    of_gain = math.sqrt(variance * fit.of_gain)
    gain = chance.gauss(0, 1) * of_gain
    slope = fit.of_both / fit.of_gain
    rest = math.sqrt(max(0.0, variance * (fit.of_level - slope * fit.of_both)))
    return fit.level + slope * gain + chance.gauss(0, 1) * rest, fit.gain + gain


def _days(level: float, gain: float, value: float) -> float:
    if level >= value:
        return 0.0
    return (value - level) / gain if gain > 0 else float("inf")


def _within_horizon(days: float) -> float | None:
    return days if days <= HORIZON else None


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in INTERVAL)
    return low, high
