"""Energy of one GPU by the state of the ledger: exact in sum, an estimate in its division.

The sum follows the driver's energy counter. Reading that counter takes 3.5 ms, so the integral of
the 50 Hz samples is counted in between, and what it lacks or has too much is settled at the next
read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.driver.driver import DriverError, Gpu, optional
from gpunode.gpu.buffers import PowerBuffer
from gpunode.gpu.ledger import STATES

SETTLE_INTERVAL = 120.0
"""Seconds between reads of the energy counter."""

SETTLED_FIRST = 10.0
"""Seconds until the first read, and until one where samples are missing. Each later pause is as
long as all before it together: samples are up to 0.2 s late, so a load that begins at a read makes
the comparison over 10 s wrong by 1 % (H200), and over longer times by less."""

MISSING = 0.5
"""Seconds without samples from which the energy counter is read early."""

EXACT = 30.0
"""Seconds of samples that count as exact beside those that were compared with the counter: a load
that begins at a read would otherwise make all that follow wrong."""

PLAUSIBLE = (0.8, 1.25)
"""Energy counter over samples that cover all of the time; outside, the counter was reset."""

MAX_DRAW_RATIO = 2.0
"""Draw over the power limit that no GPU reaches as a mean over seconds."""

PAID_BACK = 0.5
"""How much of a window's energy makes up for what was counted too much: a counter cannot fall."""

ABOVE_REST = {
    "compute": 450.0,
    "communication": 170.0,
    "blocked": 10.0,
    "copy": 40.0,
    "starved": 10.0,
    "idle": 1.0,
    "free": 1.0,
    "unknown": 250.0,
}
"""What each state draws above a resting GPU, in proportion to the others: watts of an H200, from
the signatures in ``docs/ledger.md``; of ``unknown``, half of what work draws."""


def divided(
    joules: float, shares: Mapping[str, float], mean: float | None, rest: float | None
) -> dict[str, float]:
    """The energy of a window by state; it sums to ``joules``.

    Every state gets what a resting GPU draws (``rest``) for its share of the time. What the GPU
    drew beyond that (``mean``, in watts) goes to the states in proportion to their shares and to
    ``ABOVE_REST``. Without either of the two, all of it does.
    """
    at_rest = min(1.0, rest / mean) if mean and rest else 0.0
    weights = {state: share * ABOVE_REST[state] for state, share in shares.items()}
    all_shares, all_weights = sum(shares.values()), sum(weights.values())
    if all_weights <= 0.0:
        return {}
    return {
        state: joules
        * (at_rest * share / all_shares + (1.0 - at_rest) * weights[state] / all_weights)
        for state, share in shares.items()
        if share > 0.0
    }


@dataclass(frozen=True, slots=True)
class _Start:
    """The energy counter when it was last read, and what the samples had come to by then."""

    at: float
    counter: float
    drawn: float
    covered: float
    wait: float
    """Seconds until it is read again, if no samples are missing."""


class StateEnergy:
    """Counts the joules of one GPU by state."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.joules: dict[str, float] = {}
        """Since the daemon started, by state; empty until the GPU has shown its draw."""

        self._start: _Start | None = None
        self._fails = False
        """Whether the last read of the energy counter failed; then it is read in each window."""

        self._factor = 1.0
        """Energy counter over samples, in all the time of ``_compared`` and in ``EXACT``."""

        self._compared = 0.0, 0.0
        """The joules by the counter and by the samples in the same time."""

        self._drawn = 0.0
        self._covered = 0.0
        self._estimated = 0.0
        self._too_much = 0.0

    @property
    def counter(self) -> float | None:
        """The driver's energy counter in joules, as last read; None without one, or if it fails."""
        return self._start.counter if self._start and not self._fails else None

    def begin(self, now: float) -> None:
        """Take the energy counter's value as the start."""
        counter = self._read()
        if counter is not None:
            self._start = _Start(now, counter, self._drawn, self._covered, SETTLED_FIRST)
            self._estimated = 0.0

    def count(
        self,
        buffer: PowerBuffer,
        now: float,
        shares: Mapping[str, float],
        rest: float | None,
        limit: float | None,
    ) -> None:
        """Add the window that the buffer was drained for last.

        ``rest`` and ``limit`` are the watts of a resting GPU and the power limit.
        """
        new, seconds = buffer.joules - self._drawn, buffer.seconds - self._covered
        self._drawn, self._covered = buffer.joules, buffer.seconds
        mean = new / seconds if seconds > 0.0 else None
        joules = new * self._factor
        self._estimated += joules
        joules += self._settlement(now, limit)
        if joules < 0.0:
            self._too_much -= joules
            joules = 0.0
        paid = min(self._too_much, PAID_BACK * joules)
        self._too_much -= paid
        if not self.joules:
            self.joules = dict.fromkeys(STATES, 0.0)
        for state, part in divided(joules - paid, shares, mean, rest).items():
            self.joules[state] += part

    def _settlement(self, now: float, limit: float | None) -> float:
        """What was counted too little since the energy counter was read, if it is read now."""
        start = self._start
        if start is None:
            if self._fails:
                self.begin(now)
            return 0.0
        elapsed, covered = now - start.at, self._covered - start.covered
        missing = elapsed - covered > MISSING
        if elapsed < (SETTLED_FIRST if missing else start.wait):
            return 0.0
        counter = self._read()
        if counter is None:
            return 0.0
        told, drawn = counter - start.counter, self._drawn - start.drawn
        estimated, self._estimated = self._estimated, 0.0
        wait = min(SETTLE_INTERVAL, self._covered)
        self._start = _Start(now, counter, self._drawn, self._covered, wait)
        if missing:
            # A counter that was reset tells less than the samples, or falls.
            possible = (
                PLAUSIBLE[0] * drawn <= told <= MAX_DRAW_RATIO * (limit or math.inf) * elapsed
            )
            return told - estimated if possible else 0.0
        if drawn <= 0.0 or not PLAUSIBLE[0] < told / drawn < PLAUSIBLE[1]:
            return 0.0
        counted, sampled = self._compared
        self._compared = counted + told, sampled + drawn
        trusted = EXACT * drawn / covered
        self._factor = (trusted + counted + told) / (trusted + sampled + drawn)
        return told - estimated

    def _read(self) -> float | None:
        """The energy counter; if it fails, the samples alone are counted until it can be read."""
        self._fails = False
        try:
            return optional(self.gpu.energy)
        except DriverError:
            self._fails = True
            return None
