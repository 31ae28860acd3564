"""How the report looks in Chromium, on screen and on paper: nothing of it is cut."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page

from gpunode.report.history import DAY, NodeHours, NodeKey
from gpunode.report.page import html
from tests.needs import need
from tests.report.test_sections import START, build, cluster, job, past

pytestmark = pytest.mark.integration

NAMES = (
    "llama-70b-continued-pretraining-worker",
    "asr-conformer-streaming-distillation",
    "slurm-4301",
    "d41d8cd98f00b204e9800998ecf8427e",
    "WW-COMMUNICATION-GROUP-OF-RANKS",
)
CAUSES = ("data_loading_storage", "data_loading_cpu", "stalled_collective", "kernel_launch")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that has every section, with names as long as those of a real site."""
    of = past(42)
    cluster(of, "frankfurt", 256, 120, idle=30, grows=0.8)
    cluster(of, "paris", 200, 80, idle=20)
    for states in of.clusters["paris"].values():
        states |= {"starved": 40.0, "blocked": 20.0, "free": 40.0}
    for place, name in enumerate(NAMES):
        found = job(of, name, states={"compute": 9.0 - place, "starved": 4.0, "idle": 4.0})
        found.kinds["training"] = found.models["NVIDIA H200"] = 8.0 * of.period.hours
        found.causes[CAUSES[place % len(CAUSES)]] = 900.0
        for at in range(of.period.start + DAY, of.period.end + 1, DAY):
            found.useful[at], found.steps[at], found.mfu[at] = 96.0, 1.0, 0.31
            found.phases[at] = {"step": 240.0, "data": 24.0, "checkpoint": 6.0}
    of.models["NVIDIA H200"] = {"compute": 80000.0, "idle": 20000.0, "starved": 30000.0}
    node = NodeKey("frankfurt", "gpu-node-000.frankfurt.example.com")
    of.nodes[node] = NodeHours({"compute": 8000.0, "free": 64.0}, of.period.hours)
    gpu = "GPU-57d61c14-4445-31e3-630b-fbd2db9f33a3"
    of.faults[gpu, node, "XID 94"] = {START + day * DAY: 0.25 for day in range(1, 13)}
    file = tmp_path_factory.mktemp("layout") / "report.html"
    file.write_text(html(build(of, price=2.5, currency="EUR")))
    return file


OUTSIDE = """[...document.querySelectorAll("svg")].flatMap(drawing => {
    const of = drawing.getBoundingClientRect();
    return [...drawing.querySelectorAll("text")].filter(text => {
        const own = text.getBoundingClientRect();
        return own.left < of.left || own.right > of.right;
    }).map(text => text.textContent);
})"""
"""Words in a chart that its sides cut."""


def test_no_name_in_a_chart_is_cut_by_its_side(written: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(written.as_uri())
    assert page.locator("svg text", has_text="Data loading").count() == 2
    assert page.evaluate(OUTSIDE) == []
    page.close()


MILLIMETRE = 72 / 25.4
"""In points, of which a PDF is made."""

A4 = (210 * MILLIMETRE, 297 * MILLIMETRE)
MARGIN = 14 * MILLIMETRE


class Word(NamedTuple):
    """A word on paper: its sheet, and where it is on it, in points."""

    sheet: int
    left: float
    right: float
    height: float
    text: str


SHEET = re.compile(r'<page width="(.+?)" height="(.+?)">(.+?)</page>', re.DOTALL)
WORD = re.compile(r'<word xMin="(.+)" yMin="(.+)" xMax="(.+)" yMax="(.+)">(.*)</word>')


def on_paper(page: Page) -> list[Word]:
    """The words of the PDF that Chromium prints; each page of it is A4."""
    pdf = page.pdf(prefer_css_page_size=True)
    command = [need("pdftotext"), "-bbox", "-", "-"]
    told = subprocess.run(command, input=pdf, capture_output=True, check=True).stdout.decode()
    found = []
    for sheet, (width, height, words) in enumerate(SHEET.findall(told)):
        assert (float(width), float(height)) == pytest.approx(A4, abs=1)
        for *sides, text in WORD.findall(words):
            left, top, right, bottom = map(float, sides)
            found.append(Word(sheet, round(left, 1), round(right, 1), round(bottom - top, 1), text))
    return found


def test_no_table_is_wider_than_a4(written: Path, browser: Browser) -> None:
    """Chromium makes every page smaller if anything of it is too wide for the paper."""
    page = browser.new_page()
    page.goto(written.as_uri())
    words = on_paper(page)
    page.evaluate("document.querySelectorAll('section').forEach(one => one.remove())")
    title = on_paper(page)[:12]
    page.close()
    assert [word.text for word in title][-5:] == ["capacity,", "1", "Aug", "2026", "to"]
    assert words[: len(title)] == title, "as large as without a table"
    assert min(word.left for word in words) > MARGIN - 1
    assert max(word.right for word in words) < A4[0] - MARGIN + 1
    assert {"storage", "slurm-4301"} <= {word.text for word in words}, "whole words"


def test_the_waterfall_and_the_three_actions_are_on_the_first_sheet(
    written: Path, browser: Browser
) -> None:
    page = browser.new_page()
    page.goto(written.as_uri())
    words = on_paper(page)
    page.close()
    first = " ".join(word.text for word in words if word.sheet == 0)
    assert "Lost, no way back known" in first
    assert first.count("What to do ") == 1 + 3, "the title, and three actions"


def test_figures_are_not_torn_between_two_sheets(written: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(written.as_uri())
    others = "section:not(#idle, #training)"
    page.evaluate(f"document.querySelectorAll('{others}').forEach(one => one.remove())")
    for above in range(500, 900, 40):
        page.evaluate(f"document.querySelector('#training').style.marginTop = '{above}px'")
        words = on_paper(page)
        texts = [word.text for word in words]
        label = next(at for at in range(len(words)) if texts[at : at + 2] == ["Useful", "in"])
        figure = next(word for word in words[label:] if word.text[0].isdigit())
        assert figure.sheet == words[label].sheet
    page.close()
