"""How the report looks in Chromium, on screen and on paper: nothing of it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from gpunode.report.history import DAY, NodeKey, NodePast
from gpunode.report.page import html
from tests.report.test_sections import START, cluster, job, past, told

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
    for place, name in enumerate(NAMES):
        found = job(of, name, states={"compute": 9.0 - place, "starved": 4.0, "idle": 4.0})
        found.kinds["training"] = found.models["NVIDIA H200"] = 8.0 * of.period.hours
        found.causes[CAUSES[place % len(CAUSES)]] = 900.0
        for at in range(of.period.start + DAY, of.period.end + 1, DAY):
            found.useful[at], found.steps[at], found.mfu[at] = 96.0, 1.0, 0.31
            found.phases[at] = {"step": 240.0, "data": 24.0, "checkpoint": 6.0}
    of.causes.update(dict.fromkeys(CAUSES, 3000.0))
    of.models["NVIDIA H200"] = {"compute": 80000.0, "idle": 20000.0, "starved": 30000.0}
    node = NodeKey("frankfurt", "gpu-node-000.frankfurt.example.com")
    of.nodes[node] = NodePast({"compute": 8000.0, "free": 64.0}, of.period.hours)
    gpu = "GPU-57d61c14-4445-31e3-630b-fbd2db9f33a3"
    of.faults[gpu, node, "XID 94"] = {START + day * DAY: 0.25 for day in range(1, 13)}
    file = tmp_path_factory.mktemp("layout") / "report.html"
    file.write_text(html(told(of, price=2.5, currency="EUR")))
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
    assert page.locator("svg text", has_text="llama-70b").count() == 1
    assert page.evaluate(OUTSIDE) == []
    page.close()
