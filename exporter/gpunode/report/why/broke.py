"""What broke in a run and what that cost, and how often it had best save its state."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpunode.incidents.incident import PRICE_PARTS, Price
from gpunode.report.history import HOUR
from gpunode.report.job import FLEET
from gpunode.report.view import added, clean
from gpunode.report.why.view import JobView
from gpunode.report.words import MIN_HOURS, amount, lasting, number

MAX_NAMED = 3
MIN_STARTS = 3
"""New starts of jobs of its cluster from which on they have a rate."""

MIN_CHECKPOINTS = 3


def broke(view: JobView) -> Iterator[str]:
    """What incidents cost the run, and the time between checkpoints that would lose least."""
    past = view.past
    costs = {of: sum(parts.values()) for of, parts in past.incidents.items()}
    whole = sum(costs.values())
    told = sum(parts.get("repeating", 0.0) for parts in past.incidents.values())
    if whole >= MIN_HOURS:
        costliest = sorted(costs, key=lambda of: -costs[of])[:MAX_NAMED]
        named = ", ".join(f"{clean(one)} on {clean(node)}" for node, one in costliest)
        spent = added(past.incidents.values())
        waiting, starting, repeating = (HOUR * spent.get(part, 0.0) for part in PRICE_PARTS)
        price = Price(waiting, starting, repeating, known=True)
        yield f"{amount(len(costs), 'incident')} cost it {price}{_worth(view, whole)} ({named})."
    if (again := past.repeated.get("estimate", 0.0) * view.gpus / HOUR) >= MIN_HOURS:
        low, high = (
            past.repeated.get(bound, 0.0) * view.gpus / HOUR for bound in ("lower", "upper")
        )
        within = f" ({number(low)} to {number(high)})" if high > low else ""
        yield (
            f"It did {amount(again, 'GPU hour')}{within} of work again that it had done before it "
            f"began anew{'' if told else _worth(view, again)}."
        )
    yield from _interval(view)


def _worth(view: JobView, hours: float) -> str:
    return f", worth {number(hours * view.price)}" if view.price is not None else ""


def best_interval(cost: float, between: float) -> float:
    """Seconds of work between two checkpoints that lose least, where each takes ``cost`` seconds.

    ``between`` is the mean time between two faults. J. T. Daly, A higher order estimate of the
    optimum checkpoint interval for restart dumps, 2006, equation 37; Young's of 1974 is its first
    term: https://doi.org/10.1016/j.future.2004.11.016
    """
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def _interval(view: JobView) -> Iterator[str]:
    """How often to save, beside how often it does; nothing where too little is known."""
    past = view.past
    if past.new_starts < MIN_STARTS or past.checkpoints < MIN_CHECKPOINTS:
        return
    cost = past.checkpoint_seconds / past.checkpoints
    if not (cost > 0 and past.fleet_hours > 0 and view.gpus):
        return
    between = past.fleet_hours / past.new_starts / view.gpus * HOUR
    does = view.run.seconds / past.checkpoints - cost
    yield (
        f"A checkpoint takes it {lasting(cost)}, and it works {lasting(does)} between two; jobs of "
        f"its cluster began again {number(past.new_starts)} times in {number(past.fleet_hours)} "
        f"GPU hours of the last {lasting(FLEET)}, which is once in {lasting(between)} for "
        f"{amount(view.gpus, 'GPU')}: then {lasting(best_interval(cost, between))} between two "
        "loses least (Young and Daly)."
    )
