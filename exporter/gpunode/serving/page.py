"""What the page of an engine says, in our terms and within bounds.

The lines that are kept of a page are read here and not by ``prometheus_client.parser``, which makes
an object of each sample of whatever size: 120,000 lines of no use take it 12 s of CPU, and 0.1 s
to skip.
https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.node.http import name_of
from gpunode.serving.engines import (
    ENGINES,
    HISTOGRAM_SUFFIXES,
    ITEMS,
    MODEL,
    PARTED,
    RANK_LABELS,
    READ_SERIES,
    ROLE,
    ROLES,
    STEPS,
    Alias,
    Engine,
    EngineFigure,
    series_of,
)
from gpunode.text import printable

MAX_LINE = 4096
"""Characters of a line; one of vLLM has 150."""

MAX_MODEL = 64
"""Characters of a model's name."""

MODELS = 8
"""The most models of a server to tell apart; those beyond are one, ``other``."""

OTHER = "other"

MAX_BOUNDS = 64
"""The most buckets of a histogram; SGLang's have 40."""

MAX_VALUE = 1e15
"""More than any figure: tokens of a thousand years."""

LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>[^\n]*)\})? +(?P<value>\S+)(?: +-?\d+)?"
)
LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
"""A name is not looked for within a name: that would take square time where there is no label."""

ESCAPED = re.compile(r"\\(.)")

KNOWN_SERIES = frozenset(READ_SERIES.values())


@dataclass(slots=True)
class Histogram:
    """A histogram as it came: how many took at most so many seconds, and their sum."""

    upto: dict[float, float] = field(default_factory=dict)
    sum: float | None = None
    count: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The figures of a model; one that the engine does not export is absent."""

    figures: Mapping[EngineFigure, float]
    times: Mapping[EngineFigure, Histogram]
    role: str = ""
    """`prefill` or `decode`, where the engine says that it does only that."""


@dataclass(frozen=True, slots=True)
class EnginePage:
    """The figures of an engine, by the names of its models."""

    engine: Engine
    models: Mapping[str, ModelFigures]
    strange: int
    """Lines with a value that no figure can have, or that cannot be read."""

    partial: tuple[EngineFigure, ...] = ()
    """Sums of which the page has other parts than those that are known: they are absent."""


@dataclass(frozen=True, slots=True)
class PageLine:
    """A series and its value."""

    name: str
    labels: Mapping[str, str]
    value: float
    rank: tuple[int, ...]
    """Which of the ranks that compute the same requests says so."""

    alike: Hashable
    """What its series has in common with those of the other ranks."""


def parse(lines: Iterable[str]) -> EnginePage | None:
    """What the kept lines of a page say; None if they are of no engine that is known.

    A page that only declares its series is of an engine that has had no request yet.
    """
    lines = list(lines)
    series = [text for text in lines if not text.startswith("#")]
    read = [_line(text) for text in series]
    unreadable = {
        _canonical(name_of(text)) for text, line in zip(series, read, strict=True) if line is None
    }
    whole = [line for line in read if line is not None and not line.labels.get(PARTED)]
    first: dict[Hashable, tuple[int, ...]] = {}
    for line in whole:
        first[line.alike] = min(line.rank, first.get(line.alike, line.rank))
    found: dict[str, list[PageLine]] = {}
    for line in whole:
        if line.rank == first[line.alike]:
            found.setdefault(line.name, []).append(line)
    declared = () if series else {name for text in lines for name in _declared_series(text)}
    engine = next((e for e in ENGINES if _has_engine(e, found.keys() | declared)), None)
    if engine is None:
        return None
    taken, partial = _names(engine, found, unreadable)
    return EnginePage(engine, _model_figures(engine, taken, found), read.count(None), partial)


def _declared_series(text: str) -> Iterator[str]:
    """The series of a line that says the type of a metric."""
    name = text.split()[2]
    yield from (
        READ_SERIES[one]
        for one in (name, *(name + of for of in HISTOGRAM_SUFFIXES))
        if one in READ_SERIES
    )


def _line(text: str) -> PageLine | None:
    """A series of an engine; None if it cannot be."""
    match = LINE.fullmatch(text) if len(text) <= MAX_LINE else None
    value = _value(match["value"]) if match else None
    if match is None or value is None:
        return None
    name = _canonical(match["name"])
    labels = {of: ESCAPED.sub(_unescaped, what) for of, what in _labels(match["labels"])}
    rank = tuple(_rank(labels.pop(of, "")) for of in RANK_LABELS)
    return PageLine(name, labels, value, rank, (name, frozenset(labels.items())))


def _canonical(name: str) -> str:
    """A series as the table has it, or would have it."""
    return READ_SERIES.get(name) or re.sub(r"^(?:ray_)?([a-z]+)[:_]", r"\1:", name)


def _rank(text: str) -> int:
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else 0


def _has_engine(engine: Engine, found: Collection[str]) -> bool:
    if engine.marks:
        return engine.marks <= set(found)
    return any(series in found for name in engine.names for series in series_of(name))


def _names(
    engine: Engine, found: Mapping[str, list[PageLine]], unreadable: Collection[str]
) -> tuple[list[Alias], tuple[EngineFigure, ...]]:
    """The names under which a page tells its figures, and the sums that it does not tell whole.

    Of several names of a figure, the first that is there. A sum counts only with all its parts, and
    a figure only with all its lines: a smaller one would say that fewer wait.
    """
    taken: list[Alias] = []
    partial: list[EngineFigure] = []
    unknown = {
        figure
        for family in engine.families
        for series in found
        if series not in KNOWN_SERIES | family.apart and re.fullmatch(family.pattern, series)
        for figure in family.figures
    }
    for figure in dict.fromkeys(name.figure for name in engine.names):
        names = [name for name in engine.names if name.figure is figure]
        parts = {part for name in names for part in name.also if part in found}
        one = next((n for n in names if _has_series(n, found) and parts <= set(n.also)), None)
        if one is None or figure in unknown:
            if parts or any(name.theirs in found for name in names):
                partial.append(figure)
        elif not set(series_of(one)) & set(unreadable):
            taken.append(one)
    return taken, tuple(partial)


def _has_series(name: Alias, found: Mapping[str, list[PageLine]]) -> bool:
    there = any if name.figure.kind == "times" else all
    return there(series in found for series in series_of(name))


def _labels(text: str | None) -> list[tuple[str, str]]:
    return LABEL.findall(text) if text else []


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _value(text: str) -> float | None:
    """A figure; None for what none can be: infinite, below zero, or no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0.0 <= value <= MAX_VALUE else None


def _model_figures(
    engine: Engine, taken: Iterable[Alias], found: Mapping[str, list[PageLine]]
) -> dict[str, ModelFigures]:
    """The figures of each model."""
    names: dict[str, str] = {}
    figures: dict[str, dict[EngineFigure, float]] = {}
    times: dict[str, dict[EngineFigure, Histogram]] = {}
    roles: dict[str, str] = {}
    for name in taken:
        for theirs in series_of(name):
            for line in found.get(theirs, ()):
                if not _counts(name, line):
                    continue
                model = _model(line.labels, names)
                if line.labels.get(ROLE) in ROLES:
                    roles[model] = line.labels[ROLE]
                if name.figure.kind == "times":
                    of = times.setdefault(model, {}).setdefault(name.figure, Histogram())
                    _add(of, theirs.removeprefix(name.theirs), line, name.scale)
                else:
                    known = figures.setdefault(model, {})
                    value = line.value * name.scale
                    before = known.get(name.figure, 0.0)
                    share = name.figure.kind == "share"
                    known[name.figure] = max(before, value) if share else before + value
    spoiled = {
        _model(line.labels, names) for of in engine.meaningless for line in found.get(of, ())
    }
    for name in taken:
        for model, known in figures.items() if name.batched else ():
            if model in spoiled or known.get(ITEMS, 0.0) <= known.get(STEPS, 0.0):
                known.pop(name.figure, None)
    models = sorted({*figures, *times})
    return {
        model: ModelFigures(figures.get(model, {}), times.get(model, {}), roles.get(model, ""))
        for model in models
    }


def _counts(name: Alias, line: PageLine) -> bool:
    return not name.label or (line.labels.get(name.label, "") in name.values) != name.others


def _model(labels: Mapping[str, str], names: dict[str, str]) -> str:
    """The name of a model, made fit for a label: of a path, only its last part."""
    said = next((labels[label] for label in MODEL if labels.get(label)), "")
    if said not in names:
        path = said.rstrip("/")
        name = posixpath.basename(path) if path.startswith(("/", ".", "~")) else path
        names[said] = printable(name, MAX_MODEL) if len(names) < MODELS else OTHER
    return names[said]


def _add(of: Histogram, part: str, line: PageLine, scale: float) -> None:
    """Add a line to a histogram: replicas have the same buckets."""
    if part == HISTOGRAM_SUFFIXES[1]:
        of.sum = (of.sum or 0.0) + line.value * scale
    elif part == HISTOGRAM_SUFFIXES[2]:
        of.count = (of.count or 0.0) + line.value
    else:
        try:
            bound = float(line.labels.get("le", ""))
        except ValueError:
            return
        if math.isfinite(bound) and (bound * scale in of.upto or len(of.upto) < MAX_BOUNDS):
            of.upto[bound * scale] = of.upto.get(bound * scale, 0.0) + line.value
