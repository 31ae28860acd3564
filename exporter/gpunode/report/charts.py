"""Charts as SVG within the page: one figure each, with a title and a description to be read out.

Colours are those of the dashboards where they have a meaning; all else takes the page's, so that it
is dark in the dark. What a chart shows is in a table of the report, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import svg
from markupsafe import Markup

from gpunode.report.words import Unit, as_text

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 12, 30
NAMES = 330
"""Width of the names beside horizontal bars, and of the figures behind them."""

FIGURES = 150
MAX_NAME = 47
"""Characters that fit beside the bars."""

ROW = 21
TICKS = 5
MAX_LABELS = 9


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from zero to the highest, on pixels from the first to the last."""

    highest: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        share = value / self.highest if self.highest else 0.0
        return round(self.first + (self.last - self.first) * share, 1)


@dataclass(frozen=True, slots=True)
class ChartPart:
    """A stack's part or a line: its name, its colour and a value for each place, if it has one."""

    name: str
    colour: str
    values: Sequence[float | None]
    dots: bool = True
    """Whether each value is marked, as what was measured is."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its caption, and the colours that its parts have."""

    title: str
    drawn: Markup
    legend: Mapping[str, str]


def stacks(
    title: str, says: str, places: Sequence[str], parts: Sequence[ChartPart], unit: Unit
) -> Chart:
    """A bar for each place, made of parts."""
    height = 300
    sums = [sum(part.values[at] or 0.0 for part in parts) for at in range(len(places))]
    scale = Scale(_nice(max(sums, default=0.0)), height - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(places))
    drawn = _axis(scale, unit) + _place_labels(places, step, height)
    below = [0.0] * len(places)
    for part in parts:
        for at, place in enumerate(places):
            value = part.values[at] or 0.0
            if value <= 0:
                continue
            begin, end = scale(below[at]), scale(below[at] + value)
            below[at] += value
            drawn.append(
                svg.Rect(
                    x=round(LEFT + at * step + min(2, step / 8), 1),
                    y=end,
                    width=round(max(0.5, step - min(4, step / 4)), 1),
                    height=round(begin - end, 1),
                    fill=part.colour,
                    elements=[_title(f"{place}, {part.name}: {as_text(value, unit)} {unit}")],
                )
            )
    return _chart(title, says, height, drawn, parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar: its name, where it begins and how long it is, its colour and figures."""

    name: str
    begin: float
    value: float
    colour: str
    figures: str


def bars(title: str, says: str, rows: Sequence[Bar]) -> Chart:
    """A bar for each row, the name at the left and the figures at the right."""
    height = TOP + len(rows) * ROW + 6
    highest = max((row.begin + row.value for row in rows), default=0.0)
    scale = Scale(highest, NAMES, WIDTH - FIGURES)
    drawn: list[svg.Element] = []
    for at, row in enumerate(rows):
        y = TOP + at * ROW
        shown = row.name if len(row.name) <= MAX_NAME else f"{row.name[: MAX_NAME - 1]}…"
        drawn += [
            _text(shown, NAMES - 10, y + 15, "end"),
            svg.Rect(
                x=scale(row.begin),
                y=y + 1,
                width=max(1.0, scale(row.value) - NAMES),
                height=ROW - 6,
                fill=row.colour,
                elements=[_title(f"{row.name}: {row.figures}")],
            ),
            _text(row.figures, WIDTH - FIGURES + 8, y + 15, "start", strong=True),
        ]
    return _chart(title, says, height, drawn)


def lines(
    title: str,
    says: str,
    places: Sequence[str],
    parts: Sequence[ChartPart],
    unit: Unit,
    *,
    band: tuple[Sequence[float | None], Sequence[float | None]] | None = None,
    highest: float | None = None,
) -> Chart:
    """Lines over the same places; a gap where there is no value. A band lies behind them."""
    height = 300
    values = [value for part in parts for value in part.values if value is not None]
    if band:
        values += [value for side in band for value in side if value is not None]
    scale = Scale(highest or _nice(max(values, default=0.0)), height - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(places))

    def x(at: int) -> float:
        return round(LEFT + (at + 0.5) * step, 1)

    drawn = _axis(scale, unit) + _place_labels(places, step, height)
    if band:
        low, high = band
        there = [at for at in range(len(places)) if low[at] is not None and high[at] is not None]
        edge = [(x(at), scale(high[at] or 0.0)) for at in there]
        edge += [(x(at), scale(max(0.0, low[at] or 0.0))) for at in reversed(there)]
        if edge:
            drawn.append(svg.Polygon(points=[svg.Point(*at) for at in edge], class_=["band"]))
    for part in parts:
        path: list[svg.PathData] = []
        joined = False
        for at, value in enumerate(part.values):
            if value is None:
                joined = False
                continue
            point = (x(at), scale(value))
            path.append(svg.L(*point) if joined else svg.M(*point))
            joined = True
            if not part.dots:
                continue
            drawn.append(
                svg.Circle(
                    cx=point[0],
                    cy=point[1],
                    r=3.5 if len(places) <= 30 else 1.5,
                    fill=part.colour,
                    elements=[_title(f"{places[at]}, {part.name}: {as_text(value, unit)}")],
                )
            )
        if path:
            drawn.append(svg.Path(d=path, stroke=part.colour, class_=["line"]))
    return _chart(title, says, height, drawn, parts)


def _chart(
    title: str,
    says: str,
    height: int,
    drawn: list[svg.Element],
    parts: Sequence[ChartPart] = (),
    width: int = WIDTH,
) -> Chart:
    image = str(
        svg.SVG(
            viewBox=svg.ViewBoxSpec(0, 0, width, height),
            class_=["chart", "wide"] if width == WIDTH else ["chart"],
            extra={"role": "img", "aria-label": escape(f"{title}. {says}")},
            elements=[
                svg.Title(text=escape(title)),
                svg.Desc(text=escape(says)),
                *drawn,
            ],
        )
    )
    legend = {part.name: part.colour for part in parts} if len(parts) > 1 else {}
    return Chart(title, Markup(image), legend)  # noqa: S704 every text in it is escaped


def _title(text: str) -> svg.Title:
    """What shows beside the pointer. The library writes text as it is, so it is escaped here."""
    return svg.Title(text=escape(text))


def _text(
    text: str,
    x: float,
    y: float,
    anchor: str,
    *,
    strong: bool = False,
) -> svg.Text:
    return svg.Text(
        x=round(x, 1),
        y=round(y, 1),
        class_=[anchor, "strong"] if strong else [anchor],
        text=escape(text),
    )


def _axis(scale: Scale, unit: Unit) -> list[svg.Element]:
    """Lines and figures at the left."""
    drawn: list[svg.Element] = []
    for tick in range(TICKS + 1):
        value = scale.highest * tick / TICKS
        y = scale(value)
        drawn += [
            svg.Line(x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_=["grid"]),
            _text(_axis_figure(value, unit), LEFT - 8, y + 4, "end"),
        ]
    return drawn


def _place_labels(places: Sequence[str], step: float, height: int) -> list[svg.Element]:
    every = max(1, math.ceil(len(places) / MAX_LABELS))
    return [
        _text(place[:10], LEFT + (at + 0.5) * step, height - 10, "middle")
        for at, place in enumerate(places)
        if at % every == 0
    ]


def _axis_figure(value: float, unit: Unit) -> str:
    """A figure of an axis."""
    if unit == "share":
        return f"{value:.0%}"
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:.3g}"


def _nice(value: float) -> float:
    """The least number of the kind 1, 2, 2.5 or 5 times a power of ten that is not less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        power * factor for factor in (1, 1.5, 2, 2.5, 4, 5, 7.5, 10) if power * factor >= value
    )
