"""What ``gpunode rules explain`` prints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from gpunode.explain.alert import Explained, Part, Sample
from gpunode.explain.rule_files import THRESHOLD
from gpunode.report.prometheus import Labels
from gpunode.text import lasting

LONGEST_LINE = 160
SHOWN = 3
SHOWN_RAW = 10
MOMENT = re.compile("(timestamp_seconds|:start|:timestamp)({|$)")
AGE = re.compile("[:_]seconds({|$)")
A_MOMENT_FROM = 1e9
"""Seconds since 1970 from which on a figure is no age."""


def lines(explained: Explained, labels: Labels) -> Iterator[str]:
    """An alert for a person: the answer first, then its clauses, its rules and its series."""
    rule = explained.rule
    yield f"{rule.name} ({rule.severity}): {_state(explained)}"
    yield ""
    for n, parts in enumerate(explained.alternatives):
        if n:
            yield "  or"
        for part in parts:
            yield from _part(part, "  ", labels, silent=not explained.holds)
    if explained.records:
        yield ""
        yield "Rules behind it, each below what first reads it:"
        for one in explained.records:
            yield from _series(one.name, one.found, "  " * one.depth, labels, SHOWN)
    yield ""
    yield "Raw series that they read:"
    for one in explained.raw:
        yield from _series(one.name, one.found, "  ", labels, SHOWN_RAW)


def _state(explained: Explained) -> str:
    states = sorted({one.get("alertstate", "") for one in explained.states})
    if explained.holds:
        if "firing" in states:
            return "fires"
        if explained.rule.lasting:
            return f"would fire once it has held for {explained.rule.lasting}" + (
                ", and is pending" if "pending" in states else ""
            )
        return "would fire" if not states else "is pending"
    if "firing" in states:
        return f"fires still (keep_firing_for: {explained.rule.kept}), but now {_why(explained)}"
    return f"is silent: {_why(explained)}"


def _why(explained: Explained) -> str:
    """The clause that silences it; of several alternatives, that which came the furthest."""
    furthest = max(explained.alternatives, key=lambda parts: sum(1 for part in parts if part.left))
    for part in furthest:
        if part.silences:
            return f"{_reason(part)}: {_short(_written(part))}"
    return "no clause of it holds"


def _reason(part: Part) -> str:
    if part.clause.operator == "unless":
        return "this matches"
    if part.sides and not part.found:
        return "this is not met"
    return "this has no series" if not part.found else "this does not match"


def _written(part: Part) -> str:
    on = part.clause.on
    matched = "" if on is None else f" on ({', '.join(on)})"
    return f"{part.clause.operator}{matched} {part.clause.text}".strip()


def _part(part: Part, indent: str, labels: Labels, silent: bool) -> Iterator[str]:
    yield f"{indent}{_mark(part, silent):9} {_short(_written(part))}"
    below = f"{indent}{'':9}   "
    if part.sides:
        for found, left, right in part.sides[:SHOWN]:
            met = any(_bare(one) == found for one, _ in part.found)
            yield _cut(
                f"{below}{_figure(left)} {part.compared} {_figure(right)}"
                f"{'' if met else ' is not so'}{_rest(found, labels)}"
            )
        yield from _more(part.sides, SHOWN, below)
    else:
        for found, value in part.found[:SHOWN]:
            yield _cut(f"{below}{_figure(value)}{_rest(found, labels)}")
        yield from _more(part.found, SHOWN, below)
        if not part.found:
            yield f"{below}no series"
    for n, parts in enumerate(part.within):
        if n:
            yield f"{below}or"
        for one in parts:
            yield from _part(one, below, labels, silent=False)


def _mark(part: Part, silent: bool) -> str:
    if silent and part.silences:
        return "SILENCES"
    if part.clause.operator == "unless":
        return "quiet" if not part.found else "matches"
    return "holds" if part.found else "fails"


def _series(
    name: str, found: Sequence[Sample], indent: str, labels: Labels, most: int
) -> Iterator[str]:
    if not found:
        yield f"{indent}{name}: no series"
        return
    if len(found) == 1:
        ((one, value),) = found
        yield _cut(f"{indent}{name} = {_figure(value, name)}{_rest(one, labels)}")
        return
    yield f"{indent}{name}:"
    for one, value in found[:most]:
        yield _cut(f"{indent}      {_figure(value, name)}{_rest(one, labels)}")
    yield from _more(found, most, f"{indent}      ")


def _more(found: Sequence[object], most: int, indent: str) -> Iterator[str]:
    if len(found) > most:
        yield f"{indent}… and {len(found) - most} more"


def _bare(labels: Labels) -> Labels:
    return {name: value for name, value in labels.items() if name != "__name__"}


def _rest(found: Labels, asked: Labels) -> str:
    """The labels of a series that were not asked for."""
    shown = [
        f'{name}="{value}"'
        for name, value in sorted(found.items())
        if name != "__name__" and value and name not in asked
    ]
    return f"  {{{', '.join(shown)}}}" if shown else ""


def _figure(value: float, name: str = "") -> str:
    if value >= A_MOMENT_FROM and (not name or MOMENT.search(name)):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    told = f"{value:.6g}"
    if name and not name.startswith(THRESHOLD) and AGE.search(name) and 90 <= value < A_MOMENT_FROM:
        told += f" ({lasting(value)})"
    return told


def _short(text: str) -> str:
    return _cut(" ".join(text.split()))


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"
