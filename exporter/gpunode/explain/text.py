"""What ``gpunode rules explain`` prints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from gpunode.explain.alert import AlertExplanation, ClauseResult, Sample
from gpunode.explain.rule_files import THRESHOLD
from gpunode.report.prometheus import Labels
from gpunode.text import lasting

MAX_LINE = 160
MAX_SERIES = 3
MAX_RAW_SERIES = 10
MOMENT = re.compile("(timestamp_seconds|:start|:timestamp)({|$)")
AGE = re.compile("[:_]seconds({|$)")
MIN_TIMESTAMP = 1e9
"""Seconds since 1970 from which on a figure is no age."""


def lines(explained: AlertExplanation, labels: Labels) -> Iterator[str]:
    """An alert for a person: the answer first, then its clauses, its rules and its series."""
    rule = explained.rule
    yield f"{rule.name} ({rule.severity}): {_state(explained)}"
    yield ""
    for n, parts in enumerate(explained.alternatives):
        if n:
            yield "  or"
        for part in parts:
            yield from _clause_lines(part, "  ", labels, silent=not explained.holds)
    if explained.records:
        yield ""
        yield "Rules behind it, each below what first reads it:"
        for one in explained.records:
            yield from _series(one.name, one.found, "  " * one.depth, labels, MAX_SERIES)
    yield ""
    yield "Raw series that they read:"
    for one in explained.raw:
        yield from _series(one.name, one.found, "  ", labels, MAX_RAW_SERIES)


def _state(explained: AlertExplanation) -> str:
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


def _why(explained: AlertExplanation) -> str:
    """The clause that silences it; of several alternatives, that which came the furthest."""
    furthest = max(explained.alternatives, key=lambda parts: sum(1 for part in parts if part.left))
    for part in furthest:
        if part.silences:
            return f"{_reason(part)}: {_short(_clause_text(part))}"
    return "no clause of it holds"


def _reason(part: ClauseResult) -> str:
    if part.clause.operator == "unless":
        return "this matches"
    if part.sides and not part.found:
        return "this is not met"
    return "this has no series" if not part.found else "this does not match"


def _clause_text(part: ClauseResult) -> str:
    on = part.clause.on
    matched = "" if on is None else f" on ({', '.join(on)})"
    return f"{part.clause.operator}{matched} {part.clause.text}".strip()


def _clause_lines(part: ClauseResult, indent: str, labels: Labels, silent: bool) -> Iterator[str]:
    yield f"{indent}{_clause_state(part, silent):9} {_short(_clause_text(part))}"
    below = f"{indent}{'':9}   "
    if part.sides:
        for found, left, right in part.sides[:MAX_SERIES]:
            met = any(_bare(one) == found for one, _ in part.found)
            yield _cut_line(
                f"{below}{_figure(left)} {part.compared} {_figure(right)}"
                f"{'' if met else ' is not so'}{_other_labels(found, labels)}"
            )
        yield from _more(part.sides, MAX_SERIES, below)
    else:
        for found, value in part.found[:MAX_SERIES]:
            yield _cut_line(f"{below}{_figure(value)}{_other_labels(found, labels)}")
        yield from _more(part.found, MAX_SERIES, below)
        if not part.found:
            yield f"{below}no series"
    for n, parts in enumerate(part.within):
        if n:
            yield f"{below}or"
        for one in parts:
            yield from _clause_lines(one, below, labels, silent=False)


def _clause_state(part: ClauseResult, silent: bool) -> str:
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
        yield _cut_line(f"{indent}{name} = {_figure(value, name)}{_other_labels(one, labels)}")
        return
    yield f"{indent}{name}:"
    for one, value in found[:most]:
        yield _cut_line(f"{indent}      {_figure(value, name)}{_other_labels(one, labels)}")
    yield from _more(found, most, f"{indent}      ")


def _more(found: Sequence[object], most: int, indent: str) -> Iterator[str]:
    if len(found) > most:
        yield f"{indent}… and {len(found) - most} more"


def _bare(labels: Labels) -> Labels:
    return {name: value for name, value in labels.items() if name != "__name__"}


def _other_labels(found: Labels, asked: Labels) -> str:
    """The labels of a series that were not asked for."""
    shown = [
        f'{name}="{value}"'
        for name, value in sorted(found.items())
        if name != "__name__" and value and name not in asked
    ]
    return f"  {{{', '.join(shown)}}}" if shown else ""


def _figure(value: float, name: str = "") -> str:
    if value >= MIN_TIMESTAMP and (not name or MOMENT.search(name)):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    told = f"{value:.6g}"
    if name and not name.startswith(THRESHOLD) and AGE.search(name) and 90 <= value < MIN_TIMESTAMP:
        told += f" ({lasting(value)})"
    return told


def _short(text: str) -> str:
    return _cut_line(" ".join(text.split()))


def _cut_line(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"
