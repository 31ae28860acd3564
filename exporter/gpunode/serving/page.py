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
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from gpunode.serving.engines import (
    ALIKE,
    ENGINES,
    MODEL,
    OF_HISTOGRAM,
    PARTED,
    ROLE,
    ROLES,
    WANTED,
    Engine,
    EngineFigure,
    Name,
    series_of,
)
from gpunode.text import printable

LONGEST_LINE = 4096
"""Characters of a line; one of vLLM has 150."""

LONGEST_MODEL = 64
"""Characters of a model's name."""

MODELS = 8
"""The most models of a server to tell apart; those beyond are one, ``other``."""

OTHER = "other"

MOST_BOUNDS = 64
"""The most buckets of a histogram; SGLang's have 40."""

LARGEST = 1e15
"""More than any figure: tokens of a thousand years."""

LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>[^\n]*)\})? +(?P<value>\S+)(?: +-?\d+)?"
)
LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
"""A name is not looked for within a name: that would take square time where there is no label."""

ESCAPED = re.compile(r"\\(.)")


@dataclass(slots=True)
class Times:
    """A histogram as it came: how many took at most so many seconds, and their sum."""

    upto: dict[float, float] = field(default_factory=dict)
    sum: float | None = None
    count: float | None = None


@dataclass(frozen=True, slots=True)
class OfModel:
    """What an engine says of a model; a figure that it does not tell is absent."""

    figures: Mapping[EngineFigure, float]
    times: Mapping[EngineFigure, Times]
    role: str = ""
    """`prefill` or `decode`, where the engine says that it does only that."""


@dataclass(frozen=True, slots=True)
class Page:
    """What an engine says, by the names of its models."""

    engine: Engine
    models: Mapping[str, OfModel]
    strange: int
    """Lines with a value that no figure can have, or that cannot be read."""


@dataclass(frozen=True, slots=True)
class Line:
    """A series and its value."""

    name: str
    labels: Mapping[str, str]
    value: float
    rank: tuple[int, ...]
    """Which of the ranks that compute the same requests says so."""

    alike: Hashable
    """What its series has in common with those of the other ranks."""


def parse(lines: Iterable[str]) -> Page | None:
    """What the kept lines of a page say; None if they are of no engine that is known."""
    read = [_line(text) for text in lines]
    whole = [line for line in read if line is not None and not line.labels.get(PARTED)]
    first: dict[Hashable, tuple[int, ...]] = {}
    for line in whole:
        first[line.alike] = min(line.rank, first.get(line.alike, line.rank))
    found: dict[str, list[Line]] = {}
    for line in whole:
        if line.rank == first[line.alike]:
            found.setdefault(line.name, []).append(line)
    engine = next((e for e in ENGINES if _tells(e, found)), None)
    if engine is None:
        return None
    return Page(engine, _by_model(engine, found), read.count(None))


def _line(text: str) -> Line | None:
    """A series of an engine; None if it cannot be."""
    match = LINE.fullmatch(text) if len(text) <= LONGEST_LINE else None
    known = WANTED.get(match["name"]) if match else None
    value = _value(match["value"]) if match else None
    if match is None or known is None or value is None:
        return None
    labels = {name: ESCAPED.sub(_unescaped, of) for name, of in _labels(match["labels"])}
    rank = tuple(_rank(labels.pop(name, "")) for name in ALIKE)
    return Line(known[1], labels, value, rank, (known[1], frozenset(labels.items())))


def _rank(text: str) -> int:
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else 0


def _tells(engine: Engine, found: Mapping[str, list[Line]]) -> bool:
    return any(series in found for name in engine.names for series in series_of(name))


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
    return value if math.isfinite(value) and 0.0 <= value <= LARGEST else None


def _by_model(engine: Engine, found: Mapping[str, list[Line]]) -> dict[str, OfModel]:
    """The figures of each model: of several names of a figure, the first that is there."""
    names: dict[str, str] = {}
    figures: dict[str, dict[EngineFigure, float]] = {}
    times: dict[str, dict[EngineFigure, Times]] = {}
    roles: dict[str, str] = {}
    taken: set[EngineFigure] = set()
    for name in engine.names:
        if name.figure in taken or not any(series in found for series in series_of(name)):
            continue
        taken.add(name.figure)
        for theirs in series_of(name):
            for line in found.get(theirs, ()):
                if not _counts(name, line):
                    continue
                model = _model(line.labels, names)
                if line.labels.get(ROLE) in ROLES:
                    roles[model] = line.labels[ROLE]
                if name.figure.kind == "times":
                    of = times.setdefault(model, {}).setdefault(name.figure, Times())
                    _add(of, theirs.removeprefix(name.theirs), line, name.scale)
                else:
                    known = figures.setdefault(model, {})
                    value = line.value * name.scale
                    before = known.get(name.figure, 0.0)
                    share = name.figure.kind == "share"
                    known[name.figure] = max(before, value) if share else before + value
    models = sorted({*figures, *times})
    return {
        model: OfModel(figures.get(model, {}), times.get(model, {}), roles.get(model, ""))
        for model in models
    }


def _counts(name: Name, line: Line) -> bool:
    return not name.label or (line.labels.get(name.label, "") in name.values) != name.others


def _model(labels: Mapping[str, str], names: dict[str, str]) -> str:
    """The name of a model, made fit for a label: of a path, only its last part."""
    said = next((labels[label] for label in MODEL if labels.get(label)), "")
    if said not in names:
        path = said.rstrip("/")
        name = posixpath.basename(path) if path.startswith(("/", ".", "~")) else path
        names[said] = printable(name, LONGEST_MODEL) if len(names) < MODELS else OTHER
    return names[said]


def _add(of: Times, part: str, line: Line, scale: float) -> None:
    """Add a line to a histogram: replicas have the same buckets."""
    if part == OF_HISTOGRAM[1]:
        of.sum = (of.sum or 0.0) + line.value * scale
    elif part == OF_HISTOGRAM[2]:
        of.count = (of.count or 0.0) + line.value
    else:
        try:
            bound = float(line.labels.get("le", ""))
        except ValueError:
            return
        if math.isfinite(bound) and (bound * scale in of.upto or len(of.upto) < MOST_BOUNDS):
            of.upto[bound * scale] = of.upto.get(bound * scale, 0.0) + line.value
