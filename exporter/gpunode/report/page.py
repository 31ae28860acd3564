"""Writes the report: one HTML file without anything from elsewhere, or JSON, or CSV."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import asdict

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from gpunode import __version__
from gpunode.export import palette
from gpunode.report import charts
from gpunode.report.charts import Bar, Chart, ChartPart
from gpunode.report.document import Report, ReportSection, Table, TableColumn, Value
from gpunode.report.words import as_text, hourly
from gpunode.text import json_for_terminal

FORMULAS = ("=", "+", "-", "@")

SENTENCE_COLUMNS = ("meaning", "evidence", "remedy")
MAX_WORD = 24
"""Characters of a word from which on it may break."""

MAX_DAY_BARS = 120
"""Days from which on a bar is a week."""


def html(report: Report) -> str:
    """The report as a page."""
    environment = Environment(
        loader=PackageLoader("gpunode.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["written"] = as_text
    environment.filters["hourly"] = hourly
    environment.filters["said"] = _sentence_columns
    environment.filters["unit"] = _unit
    environment.filters["breakable"] = _breakable
    environment.filters["code"] = _code
    drawn = {
        section.name: SECTION_CHARTS[section.name](section)
        for section in report.sections
        if section.name in SECTION_CHARTS
    }
    page = environment.get_template("report.html")
    return page.render(report=report, charts=drawn, version=__version__, palette=palette)


def _sentence_columns(table: Table) -> tuple[str, ...]:
    """Columns of sentences, which have a row of their own below the figures, as wide as the table.

    So that what helps is seen on paper and on a telephone as well.
    """
    names = {column.name for column in table.columns}
    return (
        tuple(name for name in SENTENCE_COLUMNS if name in names)
        if names & {"remedy", "evidence"}
        else ()
    )


def _unit(column: TableColumn) -> str:
    """The unit below a column's title, where neither the title nor the figures have it."""
    shown = column.unit in ("GPU hours", "kWh") and column.unit not in column.title
    return column.unit if shown else ""


def _code(text: str, within: Callable[[str], Markup] = escape) -> Markup:
    """A text with what is between backticks as code."""
    parts = re.split(r"`([^`\n]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(within(part)) if at % 2 else within(part)
        for at, part in enumerate(parts)
    )


def _breakable(text: str) -> Markup:
    """A text whose longest words may break, where they have a sign or else after a length."""
    return _code(text, _breakable_words)


def _breakable_words(text: str) -> Markup:
    parts = []
    for word in text.split(" "):
        if len(word) > MAX_WORD:
            pieces = [
                piece[at : at + MAX_WORD]
                for piece in re.findall(r"[^-_/.]*[-_/.]|[^-_/.]+", word)
                for at in range(0, len(piece), MAX_WORD)
            ]
            parts.append(Markup("<wbr>").join(pieces))
        else:
            parts.append(escape(word))
    return Markup(" ").join(parts)


def as_json(report: Report) -> str:
    """The report as JSON."""
    return json_for_terminal(json.dumps(asdict(report), indent=1, ensure_ascii=False)) + "\n"


def as_csv(report: Report) -> str:
    """Every figure as a line: section, table, row, name, value, unit and the PromQL behind it."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    out.writerow(("section", "table", "row", "name", "value", "unit", "promql"))
    for section in report.sections:
        for figure in section.figures:
            value = "" if figure.value is None else repr(figure.value)
            out.writerow((section.name, "", "", figure.name, value, figure.unit, figure.promql))
        for table in section.tables:
            asked = " ; ".join(table.promql)
            for number, row in enumerate(table.rows, 1):
                for column, cell in zip(table.columns, row, strict=True):
                    out.writerow(
                        (
                            section.name,
                            table.name,
                            number,
                            column.name,
                            _cell(cell),
                            column.unit,
                            asked,
                        )
                    )
    return file.getvalue()


FORMATS: dict[str, Callable[[Report], str]] = {"html": html, "json": as_json, "csv": as_csv}


def _cell(value: Value) -> str:
    """A cell that no spreadsheet takes for a formula.

    https://owasp.org/www-community/attacks/CSV_Injection
    """
    if value is None:
        return ""
    if isinstance(value, str):
        first = unicodedata.normalize("NFKC", value).lstrip()[:1]  # or full-width, or after blanks
        return f"'{value}" if first in FORMULAS or value[:1].isspace() else value
    return repr(value)


def _numbers(table: Table, name: str) -> list[float | None]:
    at = [column.name for column in table.columns].index(name)
    return [
        value if isinstance(value, float) else None for value in (row[at] for row in table.rows)
    ]


def _texts(table: Table, name: str) -> list[str]:
    at = [column.name for column in table.columns].index(name)
    return [str(row[at]) for row in table.rows]


WATERFALL = {
    "installed": "var(--plain)",
    "free": "var(--free)",
    "held": "var(--plain)",
    "useful": palette.STATES["compute"],
    "lost": "var(--limit)",
    "back": "var(--accent)",
    "stays": "var(--free)",
}


def _summary(section: ReportSection) -> list[Chart]:
    fall = section.table("waterfall")
    parts, whats = _texts(fall, "part"), _texts(fall, "what")
    hours = [value or 0.0 for value in _numbers(fall, "gpu_hours")]
    useful = hours[parts.index("useful")] if hours[0] else 0.0
    rows, at, before = [], 0.0, ""
    for of, part, what, value in zip(_texts(fall, "of"), parts, whats, hours, strict=True):
        at = at if of == before else useful if of in ("lost", "lost by cause") else 0.0
        colour = WATERFALL.get(part) or palette.CAUSES.get(part, "var(--quiet)")
        share = as_text(value / hours[0] if hours[0] else None, "share")
        rows.append(Bar(what, at, value, colour, f"{as_text(value, 'GPU hours')} · {share}"))
        at, before = at + value, of
    title = "From installed to what can be had back, in GPU hours and of all installed"
    return [charts.bars(title, "The parts of a whole add up to it.", rows)] if useful else []


def _change(section: ReportSection) -> list[Chart]:
    days = section.table("days")
    begins = _texts(days, "day")
    each = 7 if len(begins) > MAX_DAY_BARS else 1
    parts = []
    for state, colour in palette.STATES.items():
        values = [value or 0.0 for value in _numbers(days, state)]
        sums = [sum(values[at : at + each]) for at in range(0, len(values), each)]
        if any(sums):
            parts.append(ChartPart(state, "var(--free)" if state == "free" else colour, sums))
    what = "day" if each == 1 else "week"
    return [
        charts.stacks(
            f"GPU hours by {what} and state",
            section.says,
            begins[::each],
            parts,
            "GPU hours",
        )
    ]


def _demand(section: ReportSection) -> list[Chart]:
    days = section.table("trend")
    if not days.rows:
        return []
    return [
        charts.lines(
            "GPUs held in the busiest hour of each day, GPUs there were, and the trend",
            section.says,
            _texts(days, "day"),
            [
                ChartPart("GPUs", "var(--limit)", _numbers(days, "supply"), dots=False),
                ChartPart("trend", "var(--ink)", _numbers(days, "trend"), dots=False),
                ChartPart("busiest hour of a day", "var(--plain)", _numbers(days, "busiest")),
            ],
            "GPUs",
            band=(_numbers(days, "low"), _numbers(days, "high")),
        )
    ]


def _run_charts(section: ReportSection) -> list[Chart]:
    timeline = section.table("timeline")
    parts = [
        ChartPart(state, "var(--free)" if state == "free" else colour, numbers)
        for state, colour in palette.STATES.items()
        if any(numbers := [value or 0.0 for value in _numbers(timeline, state)])
    ]
    if not parts:
        return []
    begins = [begin.split(" ")[-1] for begin in _texts(timeline, "at")]
    says = "A gap is time of which nothing is recorded."
    return [charts.stacks("GPU hours over the run, by state", says, begins, parts, "GPU hours")]


SECTION_CHARTS: dict[str, Callable[[ReportSection], list[Chart]]] = {
    "summary": _summary,
    "seconds": _run_charts,
    "demand": _demand,
    "change": _change,
}
"""The charts of a section, by its name."""
