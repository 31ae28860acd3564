"""Energy of one GPU, by state of the ledger.

The draw of a window is known at 50 Hz, and the ledger divides its time. States differ in what they
draw, and often alternate faster than the samples: the energy of a resting GPU goes to all states by
their time, and what is beyond by their time and by what each commonly draws beyond it.

Samples may be missing. The driver's own counter has all, so the sum follows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.gpu.ledger import STATES

BEYOND_REST = {
    "compute": 1.0,
    "memory": 0.4,
    "communication": 0.35,
    "copy": 0.08,
    "launch": 0.03,
    "blocked": 0.02,
    "starved": 0.0,
    "idle": 0.0,
    "free": 0.0,
    "unknown": 0.5,
}
"""What each state commonly draws beyond a resting GPU, over what ``compute`` does: from the windows
in ``tests/windows`` and the signatures in docs/ledger.md. ``unknown`` may be any."""

PLAUSIBLE = (0.8, 1.25)
"""The driver's counter over the samples; outside, samples are missing."""

MOST_OVER_LIMIT = 1.25
"""Mean draw over the power limit beyond which the driver's counter was not read right."""


def divided(
    joules: float, seconds: float, shares: Mapping[str, float], resting: float | None
) -> dict[str, float]:
    """The energy of a window by state; ``resting`` is the draw of a resting GPU in watts.

    It adds up to ``joules``. If nothing drew more than a resting GPU, or its draw is not known,
    each state has as much as its share of the time.
    """
    beyond = {state: share * BEYOND_REST[state] for state, share in shares.items()}
    weight = sum(beyond.values())
    extra = max(0.0, joules - (resting or 0.0) * seconds) if weight and resting else 0.0
    rest = joules - extra
    return {
        state: rest * share + (extra * beyond[state] / weight if extra else 0.0)
        for state, share in shares.items()
    }


class Energy:
    """Adds up a GPU's energy by state; the sum follows the driver's counter."""

    def __init__(self) -> None:
        self.joules = dict.fromkeys(STATES, 0.0)
        self._factor = 1.0
        self._sampled = 0.0
        """Joules of all samples, of all states."""

        self._since: tuple[float, float, float] | None = None
        """The driver's counter at its last read, with the time and ``_sampled``."""

        self._scaled = 0.0
        """Joules that were due for booking since then."""

        self._debt = 0.0
        """Joules that were booked beyond the driver's counter."""

        self._recent = dict.fromkeys(STATES, 0.0)
        """What was booked since the last read of the counter."""

    def add(
        self, joules: float, seconds: float, shares: Mapping[str, float], resting: float | None
    ) -> None:
        """Book the samples of a window, which cover some seconds of it."""
        self._sampled += joules
        if joules <= 0.0:
            return
        scaled = joules * self._factor
        # What was booked too much is taken back from what comes: a counter never falls.
        taken = min(scaled, self._debt)
        self._debt -= taken
        self._scaled += scaled
        self._book(divided(scaled - taken, seconds, shares, resting))

    def follow(self, counter: float, now: float, limit: float | None) -> None:
        """Follow the driver's counter of joules, which was read at a time on the monotonic clock.

        What samples that are missing would have added goes to the states since the last read.
        """
        before, self._since = self._since, (counter, now, self._sampled)
        scaled, self._scaled = self._scaled, 0.0
        recent, self._recent = self._recent, dict.fromkeys(STATES, 0.0)
        if before is None:
            return
        counted, seconds, sampled = (
            new - old for new, old in zip(self._since, before, strict=True)
        )
        implausible = limit is not None and counted > MOST_OVER_LIMIT * limit * seconds
        if counted < 0.0 or implausible:  # the driver was loaded again
            return
        if sampled > 0.0 and PLAUSIBLE[0] < counted / sampled < PLAUSIBLE[1]:
            self._factor = counted / sampled
        missing = counted - scaled - self._debt
        self._debt = max(0.0, -missing)
        booked = sum(recent.values())
        if missing > 0.0 and booked > 0.0:
            self._book({state: missing * part / booked for state, part in recent.items()})
            self._recent = dict.fromkeys(STATES, 0.0)

    def _book(self, joules: Mapping[str, float]) -> None:
        for state, more in joules.items():
            self.joules[state] += more
            self._recent[state] += more
