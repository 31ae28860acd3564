"""What figures of dashboards must come to together, by the answers to their own queries.

A reader who adds those of Fleet up finds that they agree, also while a job begins or ends; and on
Node, no GPU does more than all the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from dashboards import FOLDER
from dashboards.panels import SAYS_NONE
from tests.dashboards.queries import CHOSEN, filled

GPUS, HELD, HELD_UP = "GPUs, whole fleet", "Held", "Held up"
GRAPH, CAUSES, JOBS = "GPUs held up, by cause", "What holds GPUs up", "Jobs that lose most"
PLACES = "Racks and fabric, whole fleet"
STATES, WAITS = "Compute: GPUs by state", "Communication: GPUs wait or move data"


def figure_sum(
    title: str,
    letter: str = "A",
    chosen: Mapping[str, str] = CHOSEN,
    uid: str = "gpunode-fleet",
    over: str = "sum",
) -> str:
    """The sum of what a query answers."""
    panels = json.loads((FOLDER / f"{uid}.json").read_text())["panels"]
    (panel,) = (one for one in panels if one["title"] == title)
    (target,) = (one for one in panel["targets"] if one["refId"] == letter)
    return f"{over} ({filled(target['expr'].partition(SAYS_NONE)[0], chosen)})"


def highest(title: str, over: str) -> str:
    """The highest of what a graph of Node draws in a quarter of an hour, which differs by scrape.

    By the minute, as Grafana asks where scrapes are 15 seconds apart.
    """
    lately = figure_sum(
        title, chosen={**CHOSEN, "$__rate_interval": "1m"}, uid="gpunode-node", over=over
    )
    return f"max_over_time(({lately})[15m:15s])"


SUMS: Mapping[str, str] = {
    title: figure_sum(title) for title in (GPUS, HELD, HELD_UP, GRAPH, CAUSES, JOBS)
} | {
    PLACES: f"max ({figure_sum(PLACES, 'C').replace('sum', 'sum by (kind)', 1)})",
    "useful now": figure_sum("Useful share"),
    "useful of 7 days": figure_sum("Useful share", "B"),
    STATES: highest(STATES, "sum"),
    WAITS: highest(WAITS, "max"),
}
"""By name, the expressions of what is compared."""

SHARES = ("useful now", "useful of 7 days", WAITS)

AT_ANY_TIME = (
    *((HELD, GPUS), (HELD_UP, HELD)),
    *((GRAPH, HELD_UP), (CAUSES, HELD_UP), (PLACES, HELD_UP)),
    (STATES, GPUS),
)
"""Each is no more than the other, whatever begins or ends just now."""

ONCE_SETTLED = (*AT_ANY_TIME, (JOBS, HELD))
"""With what a job lost in the minutes before, which is no more either once these have passed."""


def impossible(value: Callable[[str], float]) -> Iterator[str]:
    """What cannot be, by what expressions come to once nothing has changed for five minutes."""
    found = {name: value(expression) for name, expression in SUMS.items()}
    for less, more in ONCE_SETTLED:
        if not found[less] <= found[more] + 0.05:
            yield f"{less} is {found[less]:g}, and {more} {found[more]:g}"
    for name in SHARES:
        if not 0 <= found[name] <= 1:
            yield f"{name} is {found[name]:g}"
    if found[HELD_UP] != found[GRAPH]:
        yield f"{HELD_UP} is {found[HELD_UP]:g}, and {GRAPH} {found[GRAPH]:g}"
