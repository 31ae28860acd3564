"""Prints a report in a terminal, or into the output of a job: words first, no colour alone."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from gpunode.export import palette
from gpunode.report.document import Report, ReportSection, Table, TableColumn, Value
from gpunode.report.words import as_text

WORDS = ("evidence", "remedy")
"""Columns that are too long for a table: a row that has them is a paragraph."""

COLOURS = {**palette.STATES, **palette.CAUSES}


MAX_FILE_WIDTH = 2000
"""Characters of a line in a file."""

THIN_SPACE = "\u202f"
"""What is between a figure and %: a terminal may lack it, and a line would break there."""


def _text(text: str, style: str = "") -> Text:
    return Text(text.replace(THIN_SPACE, ""), style=style)


def print_report(report: Report, console: Console, *, wide: bool = True) -> None:
    """Print what a report says, without the PromQL and what is behind charts.

    A table for which lines are too short has longer ones in a file or pipe; unless ``wide``, its
    rows are paragraphs.
    """
    console.print(_text(report.title, style="bold"))
    console.print(_text(report.finding))
    for warning in report.warnings:
        console.print(_text(f"The server warns: {warning}", style="bold"))
    for section in report.sections:
        _section(section, console, wide)
    console.print()
    console.print(_text(f"From {report.source}. {report.reading}", style="dim"))


def _section(section: ReportSection, console: Console, wide: bool) -> None:
    console.print()
    console.print(_text(section.title, style="bold"))
    console.print(_text(section.says))
    known = [figure for figure in section.figures if figure.value is not None]
    if known:
        figures = RichTable.grid(padding=(0, 2))
        for figure in known:
            figures.add_row(
                _text(figure.title),
                _text(f"{as_text(figure.value, figure.unit)} {figure.note}".rstrip()),
            )
        console.print(Padding(figures, (0, 0, 0, 2), expand=False))
    for table in section.tables:
        if table.hidden:
            continue
        if not table.rows:
            console.print(Padding(_text(table.nothing), (0, 0, 0, 2), expand=False))
        elif any(column.name in WORDS for column in table.columns):
            _paragraphs(table, console)
        else:
            _figures(table, console, wide)


def _figures(table: Table, console: Console, wide: bool) -> None:
    """Print a table; into a file or pipe, no cell is cut or broken."""
    grid = Padding(_grid(table), (0, 0, 0, 2), expand=False)
    needs = Measurement.get(console, console.options.update(max_width=MAX_FILE_WIDTH), grid).maximum
    if console.is_terminal or needs <= console.width:
        console.print(grid)
    elif wide:
        type(console)(file=console.file, width=needs).print(grid)
    else:
        _paragraphs(table, console)


def _grid(table: Table) -> RichTable:
    """A table of figures, with a bar for a share of the whole."""
    grid = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in table.columns:
        grid.add_column(_text(column.title), justify="left" if column.unit == "text" else "right")
    for row in table.rows:
        grid.add_row(
            *(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))
        )
    return grid


def _cell(value: Value, column: TableColumn) -> Text:
    name = value if isinstance(value, str) else ""
    return _text(as_text(value, column.unit), style=COLOURS.get(name, ""))


def _inline_title(title: str) -> str:
    """A title within a sentence; what follows its first letter stays as it is."""
    return title[:1].lower() + title[1:]


def _sentence_part(column: TableColumn, cells: Mapping[str, Value]) -> str:
    """A figure of a row as part of a sentence; empty where there is none, or another says it."""
    value = cells[column.name]
    if value in ("", None) or column.name == "given_back_lower":
        return ""
    title, _, currency = _inline_title(column.title).partition(", ")
    said = " ".join(filter(None, (currency, as_text(value, column.unit))))
    said += f" {column.unit}" if column.unit == "GPU hours" else ""
    if column.name == "given_back_upper":
        return f"gives back at most {said}" if cells["given_back"] is None else ""
    bounds = [cells.get(f"given_back_{bound}") for bound in ("lower", "upper")]
    if column.name == "given_back" and None not in bounds:
        low, high = (as_text(bound, column.unit) for bound in bounds)
        said += f" ({low} to {high})"
    return f"{title} {said}"


def _paragraphs(table: Table, console: Console) -> None:
    """A paragraph for each row: its name, its figures, and what is said of it."""
    for row in table.rows:
        cells = dict(zip((column.name for column in table.columns), row, strict=True))
        titles = {column.name: column for column in table.columns}
        name, *figures = (column for column in table.columns if column.name not in WORDS)
        said = [text for column in figures if (text := _sentence_part(column, cells))]
        head = _text(
            str(cells[name.name]), style=f"bold {COLOURS.get(str(cells.get('cause')), '')}"
        )
        console.print(Padding(head, (0, 0, 0, 2), expand=False))
        console.print(Padding(_text(", ".join(said)), (0, 0, 0, 4), expand=False))
        for word in WORDS:
            if word in cells:
                console.print(
                    Padding(
                        _text(f"{titles[word].title}: {cells[word]}"), (0, 0, 0, 4), expand=False
                    )
                )
    if table.note:
        console.print(Padding(_text(table.note, style="dim"), (0, 0, 0, 2), expand=False))
