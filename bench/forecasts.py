"""Whether the report's 80 % intervals hold what they should, on fleets whose growth is known."""

from __future__ import annotations

from bench.report import Report, Result, machine
from tests.report.demand import AHEAD, KINDS, WEEK, interval_coverage

FLEETS = 200
LEAST, MOST = 0.72, 0.88


def forecasts() -> Report:
    """How many of the intervals hold the truth."""
    results = []
    for weeks in (3, 4, 8, 12, 26):
        for what, share in interval_coverage(FLEETS, weeks * WEEK).items():
            results.append(
                Result(
                    f"{what} within its 80 % interval, after {weeks} weeks",
                    f"{share:.0%}",
                    f"{LEAST:.0%} to {MOST:.0%}",
                    LEAST <= share <= MOST,
                )
            )
    return Report(
        "Forecasts of demand",
        machine(),
        f"{FLEETS} simulated fleets of five kinds ({', '.join(KINDS)}), each with its own jobs at "
        "random. The truth is the mean of many such fleets: what the busiest hour gains in "
        f"{AHEAD} days, and the day on which it has gained that.",
        results,
        [],
    )
