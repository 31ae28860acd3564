"""A picture of the bandwidth between nodes: a square for each pair that exchanged data."""

from __future__ import annotations

from html import escape
from statistics import median_high

import svg

from gpunode.nccl.bench import GB
from gpunode.nccl.fabric import MAX_NAME, FabricRun
from gpunode.text import printable

SIDE = 900
"""Width of all squares together, in pixels."""

MAX_CELL = 60
LEFT, TOP, MARGIN = 160, 60, 8
MAX_LABEL = 20
MIN_TEXT_CELL = 24
"""A square smaller than this has no figure, and its node no name."""

LIGHT, DARK = (222, 235, 247), (8, 48, 107)
"""The fastest pair and one that exchanges nothing: readable in grey and by the colour-blind."""

STYLE = "text { font: 12px sans-serif; fill: #222 } rect { stroke: #fff; stroke-width: 1 }"


def drawn(fabric: FabricRun) -> str:
    """The picture as SVG; of a pair's GPUs it shows the middle one, and each beside the pointer."""
    by_pair: dict[tuple[int, int], list[float]] = {}
    for sender, receiver, _, speed in fabric.exchanges:
        by_pair.setdefault((sender, receiver), []).append(speed)
    number = len(fabric.hosts)
    cell = min(MAX_CELL, SIDE / number)
    highest = max(speed for speeds in by_pair.values() for speed in speeds)
    side = cell * number
    width, height = LEFT + side + MARGIN, TOP + side + MARGIN
    paper = svg.Rect(width=width, height=height, fill="#fff")
    parts: list[svg.Element] = [svg.Style(text=STYLE), paper]
    title = f"GB/s between {number} nodes, {fabric.gpus} x {printable(fabric.model, MAX_NAME)}"
    parts.append(svg.Text(x=8, y=20, text=escape(title)))
    parts.append(svg.Text(x=8, y=38, text="rows send, columns receive; dark is slow"))
    for (sender, receiver), speeds in sorted(by_pair.items()):
        parts += _square(fabric, sender, receiver, speeds, cell, highest)
    if cell >= MIN_TEXT_CELL:
        for place, name in enumerate(fabric.hosts):
            shown = escape(printable(name, MAX_LABEL))
            middle = (place + 0.5) * cell
            parts.append(svg.Text(x=LEFT - 8, y=TOP + middle + 4, text=shown, text_anchor="end"))
            column = str(place + 1)
            parts.append(svg.Text(x=LEFT + middle, y=TOP - 6, text=column, text_anchor="middle"))
            parts.append(svg.Text(x=8, y=TOP + middle + 4, text=column))
    return svg.SVG(width=width, height=height, elements=parts).as_str()


def _square(
    fabric: FabricRun,
    sender: int,
    receiver: int,
    speeds: list[float],
    cell: float,
    highest: float,
) -> list[svg.Element]:
    speed = median_high(speeds)
    share = speed / highest
    ends = zip(DARK, LIGHT, strict=True)
    colour = tuple(round(dark + (light - dark) * share) for dark, light in ends)
    x, y = LEFT + receiver * cell, TOP + sender * cell
    names = [escape(printable(fabric.hosts[host], MAX_NAME)) for host in (sender, receiver)]
    each = ", ".join(f"{one / GB:.3g}" for one in speeds)
    found: list[svg.Element] = [
        svg.Rect(
            x=x,
            y=y,
            width=cell,
            height=cell,
            fill=f"rgb{colour}",
            elements=[svg.Title(text=f"{names[0]} to {names[1]}: {each} GB/s")],
        )
    ]
    if cell >= MIN_TEXT_CELL:
        ink = "#fff" if share < 0.6 else "#222"
        found.append(
            svg.Text(
                x=x + cell / 2,
                y=y + cell / 2 + 4,
                text=f"{speed / GB:.3g}",
                text_anchor="middle",
                style=f"fill: {ink}",
            )
        )
    return found
