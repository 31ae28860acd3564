"""What ``gpunode doctor`` prints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpunode.cli import rights, streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.doctor import SourceHealth, examine
from gpunode.cli.settings.doctor import DoctorSettings
from gpunode.cli.this_node import WAKE_TIMEOUT, local_node
from gpunode.loop import MORE_THREADS
from gpunode.mistake import UsageError
from gpunode.source import Met
from gpunode.text import printable
from gpunode.unread import MAX_EXAMPLE


def doctor(settings: DoctorSettings) -> None:
    """Examine every source for some seconds and print what it gives."""
    logging.getLogger("gpunode").setLevel(logging.ERROR)  # what fails is in the table
    try:
        rights.lower()
        found = examine(
            local_node(settings.path, settings.dcgm, WAKE_TIMEOUT), settings, WAKE_TIMEOUT
        )
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{error}: {MORE_THREADS}") from error
    with streams.printing():
        if settings.json_output:
            print(json.dumps(asdict(found), indent=2))
        else:
            console = PipedConsole()
            console.print(doctor_table(found.sources, console.width))
            for said in found.less_accurate:
                console.print(f"\n{said}.", highlight=False, markup=False)
            console.print("\n", unread_table(found.unread), sep="")
            console.print(f"\n{found.process}; {found.daemon}.", highlight=False, markup=False)
            for line in found.reporting:
                console.print(f"{line}.", highlight=False, markup=False)
            if found.chart:
                print("\nThe Helm chart needs these values on this node:\n")
                for name, value in found.chart.items():
                    print(f"    {name}: {value}")
            for said in found.chart_limits:
                console.print(f"\n{said}.", highlight=False, markup=False)


DOCTOR = {
    "failed": "bold red",
    "nothing": "yellow",
    "untried": "dim",
    "data": "green",
}
"""Colours by status of a source."""

NARROW = 110
"""Characters of a terminal below which what is said of a source stands under its name: beside it,
names of metrics and commands would be broken."""


def doctor_table(findings: Iterable[SourceHealth], width: int) -> RenderableType:
    """Every source, how much it gives, and what it takes where something is missing."""
    if width < NARROW:
        return Group(*(each for finding in findings for each in _stacked(finding)))
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("source", "", "metrics"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what is missing, and what it takes", overflow="fold")
    for finding in findings:
        table.add_row(finding.source, *_status_cells(finding), _advice_cell(finding))
    return table


def unread_table(unread: Iterable[Met]) -> RenderableType:
    """What was met and not understood, with examples, and what a bound left out."""
    found = list(unread)
    tables = [
        _encounter_table(heading, of_kind)
        for heading, of_kind in (
            ("met and not understood", [met for met in found if not met.bound]),
            ("left out, as there was too much of it", [met for met in found if met.bound]),
        )
        if of_kind
    ]
    return Group(*tables) if tables else Text("Everything that was read was understood.")


def _encounter_table(heading: str, found: Iterable[Met]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("source", heading):
        table.add_column(name, overflow="fold")
    for met in found:
        said = Text(f"{met.what.replace('_', ' ')}, {met.times} times: {met.meaning}")
        for example in met.examples:
            said.append(f"\n{printable(example, MAX_EXAMPLE)}", style="cyan")
        table.add_row(met.source, said)
    return table


def _stacked(finding: SourceHealth) -> Iterator[RenderableType]:
    status, given = _status_cells(finding)
    yield Text.assemble(finding.source, " ", status, f" {given}")
    if said := _advice_cell(finding):
        yield Padding(said, (0, 0, 0, 2))


def _status_cells(finding: SourceHealth) -> tuple[Text, str]:
    """How a source does, and how many of its metrics it gives."""
    given = finding.metrics - len(finding.missing)
    return Text(finding.status, style=DOCTOR[finding.status]), f"{given} of {finding.metrics}"


def _advice_cell(finding: SourceHealth) -> Text:
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
    """The first names, and the number of the others."""
    more = f" and {len(metrics) - 3} more" if len(metrics) > 3 else ""
    return ", ".join(metrics[:3]) + more
