"""The pictures of the documents, drawn from recorded incidents and from the code.

python -m tests.docs.figures docs/figures
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Literal, cast

import svg

from gpunode.export.palette import CAUSES as COLOUR_OF_CAUSE
from gpunode.export.palette import STATES as COLOUR_OF_STATE
from gpunode.gpu.activity import UTILIZATION, WindowDetail
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.cause import MIN_LOSS
from gpunode.verdict.causes.communication import COMMUNICATES, STALLED
from gpunode.verdict.causes.host import UNEXPLAINED
from gpunode.verdict.causes.limits import LAUNCHES, THROTTLED_SHARE
from gpunode.verdict.judge import BOUNDS, EXPLANATIONS
from gpunode.verdict.judge import LOSSES as LOOKS_FOR_LOSSES
from gpunode.verdict.source import JUDGED
from tests.replay import loop_over, tape
from tests.tapes.truth import TRUTH

WIDTH = 960
INK, QUIET, LINE, PAPER, BOX = "#1c1c22", "#5c5c66", "#c4c4cc", "#ffffff", "#f4f4f7"
"""The pictures have a ground of their own, so that they are readable on a dark page, too."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LIGHT_FROM = 0.55
"""Luminance of a colour from which dark letters are easier to read on it than light ones."""

Drawn = list[svg.Element]


def _text(
    words: str,
    x: float,
    y: float,
    *,
    anchor: Literal["start", "middle", "end"] = "start",
    size: int = 14,
    colour: str = INK,
    strong: bool = False,
) -> svg.Text:
    return svg.Text(
        x=x,
        y=y,
        text=words,
        text_anchor=anchor,
        font_size=size,
        fill=colour,
        font_weight="600" if strong else "400",
    )


def _box(x: float, y: float, width: float, height: float, fill: str = BOX) -> svg.Rect:
    return svg.Rect(x=x, y=y, width=width, height=height, rx=6, fill=fill, stroke=LINE)


def _arrow(x1: float, y1: float, x2: float, y2: float) -> svg.Line:
    return svg.Line(
        x1=x1, y1=y1, x2=x2, y2=y2, stroke=QUIET, stroke_width=1.5, marker_end="url(#arrow)"
    )


def _on(colour: str) -> str:
    """The colour of letters on a colour."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue >= LIGHT_FROM else PAPER


def _picture(title: str, says: str, height: float, drawn: Drawn) -> str:
    """The whole picture; ``says`` is read out in its place."""
    head = svg.Marker(
        id="arrow",
        viewBox=svg.ViewBoxSpec(0, 0, 8, 8),
        refX=7,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        orient="auto-start-reverse",
        elements=[svg.Path(d=[svg.M(0, 0), svg.L(8, 4), svg.L(0, 8), svg.Z()], fill=QUIET)],
    )
    ground = svg.Rect(width=WIDTH, height=height, rx=10, fill=PAPER, stroke=LINE)
    picture = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, WIDTH, height),
        width=WIDTH,
        height=height,
        elements=[
            svg.Title(text=title),
            svg.Desc(text=says),
            svg.Defs(elements=[head]),
            ground,
            svg.G(style=f"font-family: {FONT}", elements=drawn),
        ],
    )
    return f"{picture}\n"


# The ledger: a recorded incident.

INCIDENT = "straggler"
SAYS = (
    "GPU 0: works, then spins in the all-reduce until GPU 1 arrives",
    "GPU 1: works, then has nothing to run, and so arrives late",
)
LEFT, RIGHT = 76, 788
DRAW, BAR, LANE = 96, 46, 208
HIGHEST_WATTS = 1000
SHOWN = 0.04
"""The least share of a window that is drawn with its figure."""


@dataclass(frozen=True, slots=True)
class GpuRecording:
    """What a tape has of one GPU: the draw by seconds from its begin, and the ledger's windows."""

    draw: tuple[tuple[float, float], ...]
    windows: tuple[tuple[float, float, dict[str, float]], ...]
    """Begin, end and shares."""

    utilization: float
    """Mean of what the driver said at the end of each window."""


def _recorded(incident: str) -> tuple[float, list[GpuRecording]]:
    """How long an incident is, and its GPUs, as the daemon's own code sees them."""
    node = tape(incident)
    loop = loop_over(node)
    began = node.clock.time()
    windows: dict[str, dict[float, dict[str, float]]] = {}
    said: dict[tuple[str, float], float] = {}
    for _ in loop.replay(node.clock, node.end):
        for told in loop.details(WindowDetail):
            until = round(sum(told.detail.ledger.values()), 3)
            windows.setdefault(told.place.gpu, {})[until] = dict(told.detail.state)
            values = {s.labels[0]: s.value for s in loop.samples() if s.metric is UTILIZATION}
            said[told.place.gpu, until] = cast(float, values[told.place.gpu])
    gpus = []
    for gpu in (gpu for driver in node.drivers for gpu in driver.gpus()):
        samples = gpu.power_samples(0).samples
        draw = tuple((stamp / 1e6 - began, watts) for stamp, watts in samples)
        index, _ = gpu.identity.labels
        found = windows[index]
        ends = sorted(found)
        spans = tuple((begin, end, found[end]) for begin, end in pairwise([0.0, *ends]))
        gpus.append(GpuRecording(draw, spans, fmean(said[index, until] for until in ends)))
    return node.end, gpus


def ledger() -> str:
    """The draw of two GPUs, which shows their kernels, above the states that the ledger found."""
    end, gpus = _recorded(INCIDENT)

    def x(seconds: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * seconds / end, 1)

    drawn: Drawn = [
        _text("power draw every 20 ms, on two H200s", WIDTH - 20, 30, anchor="end", colour=QUIET)
    ]
    for at, (gpu, says) in enumerate(zip(gpus, SAYS, strict=True)):
        top = 22 + at * LANE
        floor = top + 20 + DRAW
        drawn += [
            _text(says, LEFT, top + 8, strong=True),
            *_watts(floor),
            svg.Polyline(
                points=[
                    svg.Point(x(seconds), round(floor - DRAW * watts / HIGHEST_WATTS, 1))
                    for seconds, watts in gpu.draw
                    if seconds >= 0.0
                ],
                fill="none",
                stroke=INK,
                stroke_width=1.2,
            ),
            _text("utilization", RIGHT + 82, floor - 44, anchor="middle", colour=QUIET),
            _text(
                f"{gpu.utilization:.0%}",
                RIGHT + 82,
                floor - 18,
                anchor="middle",
                size=22,
                strong=True,
            ),
            _text("ledger", LEFT - 10, floor + 36, anchor="end", colour=QUIET),
        ]
        for begin, until, shares in gpu.windows:
            drawn += _bar(shares, x(begin), floor + 8, x(until) - x(begin) - 3)
        drawn.append(_text("truth", RIGHT + 15, floor + 36, colour=QUIET))
        drawn += _bar(TRUTH[INCIDENT][at], RIGHT + 58, floor + 8, WIDTH - RIGHT - 78)
    foot = 22 + 2 * LANE
    drawn += [
        _text(f"{seconds} s", x(seconds), foot - 4, anchor="middle", size=12, colour=QUIET)
        for seconds in range(0, int(end) + 1, 2)
    ]
    names = dict.fromkeys(state for states in TRUTH[INCIDENT] for state in states)
    for place, state in enumerate(names):
        drawn += [
            svg.Rect(
                x=LEFT + 130 * place, y=foot + 14, width=14, height=14, fill=COLOUR_OF_STATE[state]
            ),
            _text(state, LEFT + 130 * place + 21, foot + 26),
        ]
    return _picture(
        "A slow rank, as the power draw and the ledger show it",
        "The draw of GPU 0 and GPU 1 every 20 ms, and below it the shares of each window of 2 s: "
        "GPU 0 is blocked for three quarters of the time, GPU 1 starved. Their utilization is "
        + " and ".join(f"{gpu.utilization:.0%}" for gpu in gpus)
        + ".",
        foot + 44,
        drawn,
    )


def _watts(floor: float) -> Iterator[svg.Element]:
    """The axis of the draw."""
    for watts in (0, HIGHEST_WATTS // 2, HIGHEST_WATTS):
        y = floor - DRAW * watts / HIGHEST_WATTS
        yield svg.Line(x1=LEFT, y1=y, x2=RIGHT, y2=y, stroke=LINE, stroke_width=0.7)
        yield _text(f"{watts} W", LEFT - 10, y + 4, anchor="end", size=12, colour=QUIET)


def _bar(shares: dict[str, float], x: float, y: float, width: float) -> Iterator[svg.Element]:
    """The shares of a window, side by side."""
    for state, share in shares.items():
        if share < 0.005:
            continue
        colour = COLOUR_OF_STATE[state]
        wide = round(width * share, 1)
        yield svg.Rect(x=round(x, 1), y=y, width=wide, height=BAR, fill=colour)
        if wide >= 26 and share >= SHOWN:
            words = f"{share:.0%}" if wide >= 34 else f"{share * 100:.0f}"
            yield _text(
                words, round(x + wide / 2, 1), y + 28, anchor="middle", size=13, colour=_on(colour)
            )
        x += wide


# The verdict: the causes in the order in which they are tried.

EXPLAINED = [name for name, _ in groupby(cause.name for cause, _ in EXPLANATIONS)]
"""The causes of time without work, in their order."""

LIMITS = tuple(cause.name for cause, _ in BOUNDS)
"""What limits the work where nothing is lost, in the order in which it is looked for."""

LOSSES: dict[str, tuple[str, ...]] = {
    f"blocked ≥ {MIN_LOSS:g}": ("straggler", "stalled_collective", "no_requests"),
    f"copy ≥ {MIN_LOSS:g}": ("data_loading_copy",),
    f"communication ≥ {COMMUNICATES:g}": ("communication",),
    f"short gaps ≥ {LAUNCHES:g}": ("kv_full", "host_bound", "kernel_launch"),
    f"short gaps ≥ {MIN_LOSS:g}": ("memory_allocation",),
    f"clocks reduced ≥ {THROTTLED_SHARE:g}": ("thermal", "power"),
}
"""By the loss, the causes that need no other explanation."""

OF_SLEEP = ("data_loading_cpu", "unexplained")
"""Explanations that are also looked for where the process sleeps between kernels."""

PILL, STEP = 30, 42
IN_A_ROW = 4
"""The limits of the work in a row."""


def _pill(cause: str, x: float, y: float, width: float) -> Drawn:
    colour = COLOUR_OF_CAUSE[cause]
    return [
        svg.Rect(x=x, y=y, width=width, height=PILL, rx=15, fill=colour, stroke=LINE),
        _text(cause, x + width / 2, y + 20, anchor="middle", colour=_on(colour)),
    ]


def verdict() -> str:
    """How a verdict is found: losses of the ledger, their causes, and the limits of the work."""
    lost = {cause for found in LOSSES.values() for cause in found}
    assert {*lost, *OF_SLEEP} == {cause.name for cause, _ in LOOKS_FOR_LOSSES}
    assert {*EXPLAINED, *LIMITS, *lost, UNEXPLAINED.name, NONE.name} == set(CAUSES)
    left, middle, width = 24, 500, 436
    drawn: Drawn = [
        _text(
            f"1. What was lost over the last {JUDGED:g} s, as a share of time?", 24, 36, strong=True
        )
    ]
    top = 56
    columns = -(-len(EXPLAINED) // 2)
    height = 76 + columns * STEP + 56
    drawn += [
        _box(left, top, width, height),
        _text(f"without work (starved, idle) ≥ {MIN_LOSS:g}", left + 18, top + 28, strong=True),
        _text("the first explanation with evidence:", left + 18, top + 52, colour=QUIET),
    ]
    for at, cause in enumerate(EXPLAINED):
        column, row = divmod(at, columns)
        x, line = left + 18 + column * 206, top + 68 + row * STEP
        drawn += [
            _text(f"{at + 1}", x + 18, line + 20, anchor="end", size=12, colour=QUIET),
            *_pill(cause, x + 24, line, 170),
        ]
    y: float = top + 68 + columns * STEP
    drawn += [
        _text("no evidence on this node:", left + 18, y + 26, colour=QUIET),
        *_pill("unexplained", left + 18 + 206 + 24, y + 6, 170),
    ]
    rows = sum(map(len, LOSSES.values()))
    gap = (height - rows * STEP - 8 * len(LOSSES)) / (len(LOSSES) - 1)
    y = top
    for loss, causes in LOSSES.items():
        tall = len(causes) * STEP + 8
        drawn += [
            _box(middle, y, width, tall),
            _text(loss, middle + 18, y + tall / 2 + 5, strong=True),
        ]
        for place, cause in enumerate(causes):
            drawn += _pill(cause, middle + width - 198, y + 10 + place * STEP, 180)
        y += tall + gap
    foot = top + height
    drawn += [
        _text(f"{', '.join(OF_SLEEP)}: also", left, foot + 18, size=12, colour=QUIET),
        _text(
            f"short gaps ≥ {LAUNCHES:g} while the process sleeps",
            left,
            foot + 34,
            size=12,
            colour=QUIET,
        ),
        _text(
            f"stalled_collective: for {STALLED:g} s or more, and no peer is at work",
            middle,
            foot + 22,
            size=12,
            colour=QUIET,
        ),
        _arrow(left + width - 60, foot + 2, left + width - 60, foot + 42),
        _arrow(middle + width - 60, foot + 2, middle + width - 60, foot + 42),
        _box(left, foot + 46, WIDTH - 2 * left, 46, "#e9f4ee"),
        _text(
            "2. The largest loss is the verdict. Its evidence: series, values, and thresholds.",
            left + 18,
            foot + 75,
            strong=True,
        ),
        _text(
            "3. Nothing was lost: what limits the work itself? The first that applies:",
            24,
            foot + 128,
            strong=True,
        ),
    ]
    last = foot + 146
    for at, cause in enumerate((*LIMITS, "none")):
        row, column = divmod(at, IN_A_ROW)
        x, y = left + column * 236, last + row * STEP
        drawn += _pill(cause, x, y, 190)
        if at < len(LIMITS) and column < IN_A_ROW - 1:
            drawn.append(_arrow(x + 194, y + 15, x + 232, y + 15))
    last += len(LIMITS) // IN_A_ROW * STEP
    return _picture(
        "How a verdict is found",
        "Time without work is explained by the first of these with evidence: "
        + ", ".join(EXPLAINED)
        + "; else unexplained. Other losses: "
        + "; ".join(f"{loss}: {' or '.join(causes)}" for loss, causes in LOSSES.items())
        + ". The largest loss wins. Without a loss, the first that applies of "
        + ", ".join((*LIMITS, "none"))
        + ".",
        last + PILL + 24,
        drawn,
    )


# The architecture: how data flows.


READERS = {"/metrics": "Prometheus", "/": "the node page", "/api/v1": "gpunode top"}


def _room(name: str, lines: Sequence[str], at: tuple[float, float, float, float]) -> Drawn:
    x, y, width, height = at
    top = y + height / 2 - 9 * len(lines)
    return [
        _box(x, y, width, height),
        _text(name, x + width / 2, top + 4, anchor="middle", size=15, strong=True),
        *(
            _text(line, x + width / 2, top + 26 + 18 * at, anchor="middle", size=12, colour=QUIET)
            for at, line in enumerate(lines)
        ),
    ]


def flow() -> str:
    """The way of the data from the machine to Prometheus, the page and the terminal."""
    upper, lower, tall = 28, 168, 104
    between = (upper + lower) / 2
    drawn = [
        *_room(
            "node/ driver/",
            (
                "the one door",
                "to the machine:",
                "GPU driver, /proc,",
                "/sys, kubelet,",
                "logs, sockets",
            ),
            (20, upper, 134, lower - upper + tall),
        ),
        *_room("window", ("what sensors", "measured in 2 s", "(gpu/)"), (190, upper, 120, tall)),
        *_room("ledger", ("its shares by state,", "as seconds", "(gpu/)"), (346, upper, 134, tall)),
        *_room(
            "host/ holders/ jobs/ nccl/ audit/",
            (
                "a source for each thing to read:",
                "the node's counters, who holds",
                "a GPU, collectives, settings",
            ),
            (190, lower, 290, tall),
        ),
        *_room(
            "verdict/",
            ("one cause", "for each GPU,", "and its evidence"),
            (526, between, 124, tall),
        ),
        *_room(
            "export/",
            ("encodes what is", "there; a request", "reads nothing"),
            (696, between, 116, tall),
        ),
        _arrow(156, upper + 52, 187, upper + 52),
        _arrow(312, upper + 52, 343, upper + 52),
        _arrow(156, lower + 52, 187, lower + 52),
        _arrow(482, upper + 78, 523, between + 36),
        _arrow(482, lower + 26, 523, between + 68),
        _arrow(652, between + 52, 693, between + 52),
        *_past(upper + 26, between - 3),
        *_past(lower + 78, between + tall + 3),
    ]
    for at, (path, reader) in enumerate(READERS.items()):
        y = between + at * 36
        drawn += [
            _arrow(814, between + 52, 837, y + 16),
            _text(path, 843, y + 14, size=12, strong=True),
            _text(reader, 843, y + 29, size=12, colour=QUIET),
        ]
    return _picture(
        "How data flows",
        "From node and driver to the window and the ledger of each GPU, and to the sources of the "
        "node and its jobs. The verdict reads both. The export encodes all of it for Prometheus, "
        "the page and programs.",
        lower + tall + 30,
        drawn,
    )


def _past(y: float, end: float) -> Iterator[svg.Element]:
    """The way of samples that go to the export without the verdict."""
    yield svg.Line(x1=482, y1=y, x2=754, y2=y, stroke=QUIET, stroke_width=1.5)
    yield _arrow(754, y, 754, end)


FIGURES: dict[str, Callable[[], str]] = {
    "ledger.svg": ledger,
    "verdict.svg": verdict,
    "flow.svg": flow,
}

if __name__ == "__main__":
    for name, drawing in FIGURES.items():
        Path(sys.argv[1], name).write_text(drawing())
