"""The colours: whom they tell apart, and where they are seen."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from dashboards import FOLDER
from dashboards.causes import OF_RANKS, WAITS
from gpunode.export import palette
from gpunode.gpu.ledger import STATES
from gpunode.verdict.causes import CAUSES, NONE
from gpunode.verdict.causes.host import STOPPED
from gpunode.verdict.guidance import URGENCIES
from tests.dashboards.colours import contrast, difference, distance

EXPORTER = Path(palette.__file__).parents[1]

DIFFERS = 10
"""Least difference of two colours; one of 1 can just be seen."""

DARK, LIGHT = "#181b1f", "#ffffff"
"""The ground of a panel in Grafana's themes (``background.primary``):
https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/themes/createColors.ts"""

SEEN = 3.0
"""https://www.w3.org/TR/WCAG21/#non-text-contrast"""


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.5, 0.0), (50.0, 3.2592, 0.335), 1.0),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((35.0831, -44.1164, 3.7933), (35.0232, -40.0716, 1.5901), 1.8645),
        ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_that_of_the_published_pairs(
    one: tuple[float, ...], other: tuple[float, ...], expected: float
) -> None:
    """https://hajim.rochester.edu/ece/sites/gsharma/ciede2000/dataNprograms/ciede2000testdata.txt"""
    assert difference(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


def test_colours_are_for_what_there_is() -> None:
    assert palette.STATES.keys() == STATES.keys()
    assert palette.CAUSES.keys() == CAUSES.keys()


def test_two_colours_differ_for_everybody() -> None:
    every = {
        *palette.STATES.values(),
        *(colour for family in palette.FAMILIES.values() for colour in family.values()),
    }
    near = {pair: distance(*pair) for pair in combinations(sorted(every), 2)}
    assert min(near.values()) >= DIFFERS, min(near, key=near.__getitem__)


@pytest.mark.parametrize("name", ["STATES", "PHASES", "SEVERITIES"])
def test_what_is_stacked_or_listed_has_a_colour_each(name: str) -> None:
    colours = getattr(palette, name)
    assert len({*colours.values()}) == len(colours)


def test_what_shares_a_colour_is_of_one_family_and_as_urgent() -> None:
    for one, other in combinations(CAUSES.values(), 2):
        if palette.CAUSES[one.name] == palette.CAUSES[other.name]:
            assert one.family == other.family
    urgent = [palette.CAUSES[one.name] for one in CAUSES.values() if one.stands_still]
    assert len({*urgent}) == len(urgent), "each that stands still has its own"


@pytest.mark.parametrize("late", ["gpu_lost", "unseen", STOPPED.name])
def test_a_rank_that_does_nothing_any_more_stands_out_among_those_that_wait(late: str) -> None:
    """In the sum of all ranks it is a thin line, beside which there is no name."""
    for other in (*WAITS.split("|"), NONE.name):
        assert distance(OF_RANKS[late], OF_RANKS[other]) >= DIFFERS, other


def test_what_is_to_be_mended_is_seen_in_both_themes() -> None:
    """But for what nothing explains: that is grey."""
    mended = {
        colour
        for family, colours in palette.FAMILIES.items()
        for urgency, colour in colours.items()
        if urgency in ("now", "soon") and family != "unknown"
    }
    text = {
        *palette.NAMES.values(),
        *palette.SEVERITIES.values(),
        *(palette.LIMIT, palette.FINE, palette.PLAIN),
    }
    for colour in mended | text:
        assert contrast(colour, DARK) >= SEEN, colour
        assert contrast(colour, LIGHT) >= SEEN, colour


def test_the_more_urgent_of_a_family_is_lighter() -> None:
    for family in palette.FAMILIES.values():
        colours = [family[urgency] for urgency in URGENCIES if urgency in family]
        lightness = [contrast(colour, "#000000") for colour in colours]
        assert all(more >= less for more, less in pairwise(lightness))


def test_a_panel_shows_a_colour_as_it_is() -> None:
    """Where the ground shines through, the contrast is another one."""
    for path in FOLDER.glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] == "state-timeline":
                assert panel["fieldConfig"]["defaults"]["custom"]["fillOpacity"] == 100
            if panel["type"] == "timeseries" and panel["fieldConfig"]["overrides"]:
                assert panel["fieldConfig"]["defaults"]["custom"]["fillOpacity"] in (0, 100)


def test_colours_with_a_meaning_have_one_home() -> None:
    """Elsewhere are only the colours of paper and ink, which differ by theme."""
    home = {
        colour for of in (palette.STATES, palette.CAUSES, palette.REASONS) for colour in of.values()
    }
    for path in EXPORTER.rglob("*"):
        if path.suffix in (".py", ".css", ".js", ".html") and path != Path(palette.__file__):
            found = {one.lower() for one in re.findall(r"#[0-9A-Fa-f]{6}\b", path.read_text())}
            assert not found & home, path
