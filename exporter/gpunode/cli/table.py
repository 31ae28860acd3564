"""The table of GPUs: what each does, and where its time went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from rich.table import Table
from rich.text import Text

from gpunode.export.palette import STATES
from gpunode.export.web.node import GpuNow
from gpunode.gpu.activity import WindowDetail
from gpunode.loop import Loop
from gpunode.text import printable
from gpunode.verdict.causes.limits import THERMAL
from gpunode.verdict.guidance import Urgency

BAR = 8

CAUSE = 38
"""Characters of what a GPU does before others are beside it: most causes have fewer."""

MAX_TEXT = 200
"""Characters of a text."""


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU: in an incident so far, or on a node now."""

    gpu: str
    shares: Mapping[str, float]
    watts: float | None
    period: float | None = None
    incident: str = ""
    seconds: float = 0.0
    swings: int = 0
    memory: float | None = None
    """Share in use."""

    owner: str = ""
    does: str = ""
    lasts: str = ""
    """For how long it has done that."""

    chosen: bool = False
    urgency: Urgency = "fine"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, the width that it should have, and what it shows of a row."""

    heading: str
    width: int
    cell: Callable[[Row], Text]
    right: bool = False
    first: bool = False
    """Whether others are left out before it where the terminal is too narrow for all."""

    gives: bool = False
    """Whether it is cut where the terminal is too narrow for all."""

    fitted: bool = False
    """Whether it is as wide as ``width`` says, whatever it shows."""


GPU = Column("GPU", 3, lambda row: Text(row.gpu), first=True)
TIME = Column("time", BAR, lambda row: _bar(row.shares))
TIME_SHARES = Column("went to", 12, lambda row: _shares_text(row.shares), gives=True)
WATTS = Column("watts", 5, lambda row: Text(_figure(row.watts, "{:.0f}")), right=True)
SWINGS = Column("swings/s", 8, lambda row: Text(_figure(_swings(row), "{:.1f}")), right=True)
STEP = Column("step s", 6, lambda row: Text(f"{row.period:.2f}" if row.period else ""))

INCIDENT_COLUMNS = (
    Column("incident", 12, lambda row: Text(row.incident), gives=True),
    GPU,
    TIME,
    TIME_SHARES,
    WATTS,
    SWINGS,
    STEP,
)
NOW = Column(
    "now", 24, lambda row: Text(row.does, style=URGENCIES[row.urgency]), first=True, gives=True
)
NODE_COLUMNS = (
    GPU,
    NOW,
    Column("for", 6, lambda row: Text(row.lasts), right=True, first=True),
    TIME_SHARES,
    TIME,
    WATTS,
    Column("memory", 6, lambda row: Text(_figure(row.memory, "{:.0%}")), right=True),
    STEP,
    Column("owner", 16, lambda row: Text(row.owner), first=True, gives=True),
)

URGENCIES: dict[Urgency, str] = {"now": "bold red", "soon": "yellow", "note": "cyan", "fine": ""}
"""Styles of what a GPU does."""


def fitting(columns: Sequence[Column], width: int, entries: Sequence[Row]) -> list[Column]:
    """As many of the columns that have anything to show as fit with the width each should have.

    What is left goes to those that are cut, to the one that lacks least first.
    """
    said = [one for one in columns if any(one.cell(row).plain.strip(" -") for row in entries)]
    beside_a_gpu = max(1, width - 5)
    wanted = [replace(one, width=min(one.width, beside_a_gpu)) for one in said or columns]
    wanted.sort(key=lambda column: not column.first)
    # What a GPU does comes before where its time went.
    room = max(0, width - sum(column.width + 1 for column in wanted if column.first))
    wanted = [
        replace(one, width=min(one.width + room, max(one.width, _longest(one, entries)), CAUSE))
        if one.heading == NOW.heading
        else one
        for one in wanted
    ]
    ends = accumulate(column.width + 1 for column in wanted)
    fit = [one for one, end in zip(wanted, ends, strict=True) if end <= width]
    left = width - sum(column.width + 1 for column in fit)
    found = {column.heading: column for column in fit}
    lacking = {one.heading: max(0, _longest(one, entries) - one.width) for one in fit if one.gives}
    for heading in sorted(lacking, key=lacking.__getitem__):
        more = min(left, lacking[heading])
        left -= more
        found[heading] = replace(found[heading], width=found[heading].width + more, fitted=True)
    return [found[column.heading] for column in columns if column.heading in found]


def _longest(column: Column, entries: Sequence[Row]) -> int:
    return max((0, *(column.cell(row).cell_len for row in entries)))


def rows(loop: Loop, incident: str) -> list[Row]:
    """The ledger of every GPU so far."""
    return [_row(incident, one.place.gpu, one.detail) for one in loop.details(WindowDetail)]


def _row(incident: str, gpu: str, window: WindowDetail) -> Row:
    total = sum(window.ledger.values())
    return Row(
        incident=incident,
        gpu=gpu,
        seconds=total,
        shares={state: seconds / total for state, seconds in window.ledger.items() if total},
        watts=window.power_mean_watts,
        swings=window.power_swings,
        period=window.step_period_seconds,
    )


def row(gpu: GpuNow, lasts: str = "", chosen: bool = False) -> Row:
    """One GPU of a node now."""
    used, size = gpu.memory_used_bytes, gpu.memory_size_bytes
    ranks = f"rank {', '.join(gpu.ranks)}  " if gpu.ranks else ""
    return Row(
        gpu=gpu.label,
        shares=gpu.states,
        watts=gpu.power_watts,
        period=gpu.step_period_seconds,
        memory=used / size if used is not None and size else None,
        owner=printable(ranks + ", ".join(gpu.owners), MAX_TEXT),
        does="; ".join(filter(None, (does(gpu), gpu.serves))),
        lasts=lasts,
        chosen=chosen,
        urgency=gpu.urgency,
    )


def does(gpu: GpuNow) -> str:
    """What a GPU does; with its temperature, where that is what slows it down."""
    hot = gpu.cause == THERMAL.name and gpu.temperature_celsius is not None
    return f"{gpu.does}, {gpu.temperature_celsius:.0f} °C" if hot else gpu.does


def table(
    entries: Iterable[Row], caption: str = "", columns: Iterable[Column] = INCIDENT_COLUMNS
) -> Table:
    """All rows, with a bar and the shares of the largest states."""
    result = Table(caption=Text(caption), caption_justify="left", box=None, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["right", "left"] = "right" if column.right else "left"
        heading = _line(Text(column.heading))
        width = column.width if column.fitted else None
        result.add_column(heading, no_wrap=not column.gives, justify=justify, width=width)
    for entry in entries:
        style = "reverse" if entry.chosen else ""
        result.add_row(*(_line(column.cell(entry)) for column in columns), style=style)
    return result


def _line(text: Text) -> Text:
    """The text on one line, cut where its column ends."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _figure(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _swings(row: Row) -> float | None:
    return row.swings / row.seconds if row.seconds else None


def _by_share(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _bar(shares: Mapping[str, float]) -> Text:
    bar = Text()
    for state, share in _by_share(shares):
        bar.append("█" * round(min(share, 1.0) * BAR), style=_style(state))
    bar.truncate(BAR)
    return bar


def _shares_text(shares: Mapping[str, float]) -> Text:
    words = Text()
    for state, share in _by_share(shares)[:2]:
        if share >= 0.03:
            words.append(" " if words else "")
            words.append(f"{state} {min(share, 1.0):.0%}", style=_style(state))
    return words


def _style(state: str) -> str:
    """The colour of a state; of one that only a newer daemon knows, that of ``unknown``."""
    return STATES.get(state, STATES["unknown"])
