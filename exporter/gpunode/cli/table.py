"""Tables for the terminal: the ledger, the audit and the NCCL benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpunode.audit.source import Result
from gpunode.cli.doctor import SourceHealth
from gpunode.driver.driver import Identity
from gpunode.export.palette import STATES
from gpunode.export.web.node import GpuNow
from gpunode.gpu.activity import WindowDetail
from gpunode.gpu.models import Ceilings, calibration_of
from gpunode.loop import Loop
from gpunode.nccl.bench import GB, Measurement
from gpunode.nccl.fabric import LONGEST_NAME, FabricRun
from gpunode.source import Met
from gpunode.text import printable
from gpunode.unread import LONGEST
from gpunode.verdict.advice import Urgency

BAR = 8

LONGEST_TEXT = 200
"""Characters of a text."""


class PipedConsole(Console):
    """A console that lets its user find out that the pipe is closed: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


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
    since: str = ""
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
WENT_TO = Column("went to", 12, lambda row: _words(row.shares), gives=True)
WATTS = Column("watts", 5, lambda row: Text(_figure(row.watts, "{:.0f}")), right=True)
SWINGS = Column("swings/s", 8, lambda row: Text(_figure(_swings(row), "{:.1f}")), right=True)
STEP = Column("step s", 6, lambda row: Text(f"{row.period:.2f}" if row.period else ""))

OF_INCIDENTS = (
    Column("incident", 12, lambda row: Text(row.incident), gives=True),
    GPU,
    TIME,
    WENT_TO,
    WATTS,
    SWINGS,
    STEP,
)
NOW = Column(
    "now", 24, lambda row: Text(row.does, style=URGENCIES[row.urgency]), first=True, gives=True
)
OF_A_NODE = (
    GPU,
    NOW,
    Column("since", 6, lambda row: Text(row.since), right=True),
    TIME,
    WENT_TO,
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
    ends = accumulate(column.width + 1 for column in wanted)
    fit = [one for one, end in zip(wanted, ends, strict=True) if end <= width]
    left = width - sum(column.width + 1 for column in fit)
    found = {column.heading: column for column in fit}
    lacking = {
        one.heading: max((0, *(one.cell(row).cell_len - one.width for row in entries)))
        for one in fit
        if one.gives
    }
    for heading in sorted(lacking, key=lacking.__getitem__):
        more = min(left, lacking[heading])
        left -= more
        found[heading] = replace(found[heading], width=found[heading].width + more, fitted=True)
    return [found[column.heading] for column in columns if column.heading in found]


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


def row(gpu: GpuNow, since: str = "", chosen: bool = False) -> Row:
    """One GPU of a node now."""
    used, size = gpu.memory_used_bytes, gpu.memory_size_bytes
    ranks = f"rank {', '.join(gpu.ranks)}  " if gpu.ranks else ""
    return Row(
        gpu=gpu.label,
        shares=gpu.states,
        watts=gpu.power_watts,
        period=gpu.step_period_seconds,
        memory=used / size if used is not None and size else None,
        owner=printable(ranks + ", ".join(gpu.owners), LONGEST_TEXT),
        does="; ".join(filter(None, (gpu.does, gpu.serves))),
        since=since,
        chosen=chosen,
        urgency=gpu.urgency,
    )


def table(
    entries: Iterable[Row], caption: str = "", columns: Iterable[Column] = OF_INCIDENTS
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


STATUS = {"failed": "bold red", "ok": "green"}
"""Colours by status, in the order in which the table shows them."""


def audit_table(results: Iterable[Result]) -> RenderableType:
    """Every check with its finding, and the remedy if it failed; below, why others cannot tell."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("check", "", "found", "advised, and the remedy"):
        table.add_column(heading, overflow="fold")
    untold: dict[str, list[str]] = {}
    decided: list[Result] = []
    for result in results:
        if result.status in STATUS:
            decided.append(result)
        else:
            untold.setdefault(result.found, []).append(result.check)
    for result in sorted(decided, key=lambda result: list(STATUS).index(result.status)):
        advice = Text(result.advised)
        if result.status == "failed":
            advice.append(f"\n{result.why}\n", style="dim").append(result.remedy, style="cyan")
        status = Text(result.status, style=STATUS[result.status])
        table.add_row(result.check, status, Text(result.found), advice)
    reasons = [
        Text.assemble(f"\nNot checked: {why}\n", (", ".join(checks), "dim"))
        for why, checks in untold.items()
    ]
    return Group(table, *reasons)


DOCTOR = {
    "failed": "bold red",
    "nothing": "yellow",
    "untried": "dim",
    "data": "green",
}
"""Colours by status of a source."""


NARROW = 72
"""Characters of a terminal below which what is said of a source stands under its name."""


def doctor_table(findings: Iterable[SourceHealth], width: int) -> RenderableType:
    """Every source, how much it gives, and what it takes where something is missing."""
    if width < NARROW:
        return Group(*(each for finding in findings for each in _stacked(finding)))
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("source", "", "metrics"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what is missing, and what it takes", overflow="fold")
    for finding in findings:
        table.add_row(finding.source, *_given(finding), _said(finding))
    return table


def unread_table(unread: Iterable[Met]) -> RenderableType:
    """What was met and not understood, with examples, and what a bound left out."""
    found = list(unread)
    tables = [
        _met_table(heading, of_kind)
        for heading, of_kind in (
            ("met and not understood", [met for met in found if not met.bound]),
            ("left out, as there was too much of it", [met for met in found if met.bound]),
        )
        if of_kind
    ]
    return Group(*tables) if tables else Text("Everything that was read was understood.")


def _met_table(heading: str, found: Iterable[Met]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("source", heading):
        table.add_column(name, overflow="fold")
    for met in found:
        said = Text(f"{met.what.replace('_', ' ')}, {met.times} times: {met.meaning}")
        for example in met.examples:
            said.append(f"\n{printable(example, LONGEST)}", style="cyan")
        table.add_row(met.source, said)
    return table


def _stacked(finding: SourceHealth) -> Iterator[RenderableType]:
    status, given = _given(finding)
    yield Text.assemble(finding.source, " ", status, f" {given}")
    if said := _said(finding):
        yield Padding(said, (0, 0, 0, 2))


def _given(finding: SourceHealth) -> tuple[Text, str]:
    """How a source does, and how many of its metrics it gives."""
    given = finding.metrics - len(finding.missing)
    return Text(finding.status, style=DOCTOR[finding.status]), f"{given} of {finding.metrics}"


def _said(finding: SourceHealth) -> Text:
    """What is missing of a source, and what it takes."""
    said = Text(finding.why, overflow="fold")
    if finding.failed and finding.places > 1:
        said.append(f" (at {finding.failed} of {finding.places} places)")
    if finding.series and finding.empty:
        said.append(f"{'; ' if said else ''}nothing at {finding.empty} of {finding.places} places")
    if finding.also:
        said.append(f"{'; so ' if said else ''}there is no {', '.join(finding.also)}")
    if finding.status == "data" and finding.missing:
        said.append(f"{'; ' if said else ''}no {_some(finding.missing)}", style="dim")
    if finding.needs:
        said.append("\n" if said else "").append(finding.needs, style="cyan")
    return said


def _some(metrics: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(metrics) - 3} more" if len(metrics) > 3 else ""
    return ", ".join(metrics[:3]) + more


def _largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _bar(shares: Mapping[str, float]) -> Text:
    bar = Text()
    for state, share in _largest(shares):
        bar.append("█" * round(min(share, 1.0) * BAR), style=_style(state))
    bar.truncate(BAR)
    return bar


def _words(shares: Mapping[str, float]) -> Text:
    words = Text()
    for state, share in _largest(shares)[:2]:
        if share >= 0.03:
            words.append(" " if words else "")
            words.append(f"{state} {min(share, 1.0):.0%}", style=_style(state))
    return words


def _style(state: str) -> str:
    """The colour of a state; of one that only a newer daemon knows, that of ``unknown``."""
    return STATES.get(state, STATES["unknown"])


def bench_table(measured: Measurement) -> Table:
    """Bus bandwidth by size, with the best and the expected one below."""
    expected = f", expected {measured.expected / 1e9:.0f}" if measured.expected else ""
    shown = Table(
        title=f"{measured.collective}, {measured.gpus} x {measured.model}",
        caption=f"best {measured.best / 1e9:.1f} GB/s{expected}",
    )
    shown.add_column("bytes", justify="right")
    shown.add_column("bus bandwidth, GB/s", justify="right")
    for size, speed in sorted(measured.bandwidth.items()):
        shown.add_row(f"{size:,}", f"{speed / 1e9:.1f}")
    return shown


def fabric_table(fabric: FabricRun) -> Table:
    """Each collective over all nodes, and what the typical and the slowest pair exchange."""
    model = printable(fabric.model, LONGEST_NAME)
    shown = Table(title=Text(f"{len(fabric.hosts)} nodes, {fabric.gpus} x {model}"))
    shown.add_column("bus bandwidth")
    shown.add_column("GB/s", justify="right")
    shown.add_column("expected", justify="right")
    speeds = sorted(speed for *_, speed in fabric.exchanges)
    rows = {name: max(of.values()) for name, of in fabric.collectives.items() if of}
    for name, speed in {**rows, "sendrecv": median(speeds)}.items():
        expected = fabric.expected.get(name)
        beside = f"{expected / GB:.3g}" if expected else "unknown"
        shown.add_row(Text(printable(name, LONGEST_NAME)), f"{speed / GB:.3g}", beside)
    shown.add_row("sendrecv, slowest pair", f"{speeds[0] / GB:.3g}", "")
    return shown


def calibration_table(who: Identity, measured: Ceilings) -> Table:
    """What was measured on a GPU, beside what is assumed of its model without."""
    whose = calibration_of(who)
    assumed = asdict(whose.ceilings)
    shown = Table(title=who.name, caption="read by the daemon when it starts")
    shown.add_column("ceiling")
    shown.add_column("measured", justify="right")
    shown.add_column(f"of {whose.measured_on}", justify="right")
    for name, value in asdict(measured).items():
        if value != assumed[name]:
            shown.add_row(name, f"{value:.3g}", f"{assumed[name]:.3g}")
    return shown
