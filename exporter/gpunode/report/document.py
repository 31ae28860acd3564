"""What a report is made of: sections with figures and tables, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.report.words import Unit

Value = float | str | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``promql`` gives it, asked at the report's ``moment``."""

    name: str
    title: str
    value: float | None
    unit: Unit
    promql: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """What a column of a table holds."""

    name: str
    title: str
    unit: Unit = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures, and the PromQL behind them. A ``hidden`` one is behind a chart."""

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Value, ...], ...]
    promql: tuple[str, ...]
    note: str = ""
    nothing: str = "None."
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A question that the report answers: in words, in figures and in tables."""

    name: str
    title: str
    says: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the report says, whatever its format."""

    title: str
    start: str
    end: str
    moment: int
    """When to ask the PromQL of a figure, in Unix seconds."""

    source: str
    price: float | None
    finding: str
    sections: tuple[ReportSection, ...]
    warnings: tuple[str, ...]

    reading: str = ""
    """How its figures are to be read."""

    currency: str = ""
    """Of its prices, as the site writes it."""
