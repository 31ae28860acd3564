"""Takes the pictures of docs/dashboards.md from a Grafana: ``make pictures GRAFANA=http://…``.

The Grafana lets anybody look, has the dashboards, and asks the Prometheus of
``make story``, of which a quarter of an hour must have passed. The pictures show its bars
and variables, as people see them. None is taken of figures that cannot be.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

from tests.dashboards.queries import ask
from tests.dashboards.story import CLUSTER
from tests.dashboards.sums import impossible
from tests.needs import find

FOLDER = Path(__file__).parents[2] / "docs/dashboards"

LAPTOP = (1280, 720)
DESKTOP = (1600, 900)

LAST_HALF_HOUR = {"from": "now-30m"}
HUNG = {**LAST_HALF_HOUR, "var-job": "slurm-48213"}


def _variables(node: str, **others: str) -> dict[str, str]:
    return {**LAST_HALF_HOUR, "var-node": node, **others}


PICTURES: dict[str, tuple[str, dict[str, str], tuple[int, int], str]] = {
    "fleet": ("gpunode-fleet", LAST_HALF_HOUR, DESKTOP, "dark"),
    "fleet-laptop": ("gpunode-fleet", LAST_HALF_HOUR, LAPTOP, "light"),
    "job": ("gpunode-job", HUNG, DESKTOP, "dark"),
    "job-deuteranopia": ("gpunode-job", HUNG, DESKTOP, "dark"),
    "serving": ("gpunode-serving", {**LAST_HALF_HOUR, "var-job": "assistant"}, DESKTOP, "dark"),
    "node": ("gpunode-node", _variables("gpu-05"), DESKTOP, "dark"),
    "node-h200_hang": ("gpunode-node", _variables("gpu-03"), LAPTOP, "dark"),
    "node-straggler": ("gpunode-node", _variables("gpu-11"), LAPTOP, "dark"),
    "node-comm_nop2p": ("gpunode-node", _variables("gpu-07"), LAPTOP, "dark"),
    "node-h200_shm": ("gpunode-node", _variables("gpu-12"), LAPTOP, "dark"),
    "host": ("gpunode-host", _variables("gpu-05"), DESKTOP, "dark"),
    "gpu": ("gpunode-gpu", _variables("gpu-11", **{"var-gpu": "3"}), DESKTOP, "dark"),
    "health": ("gpunode-health", LAST_HALF_HOUR, DESKTOP, "dark"),
    "capacity": ("gpunode-capacity", {"from": "now-30d"}, DESKTOP, "light"),
}
"""By name: the dashboard, its variables, the size of the window, and the theme."""

SEEN_WITH = {"job-deuteranopia": "deuteranopia"}
"""Pictures as somebody sees them whose eyes tell fewer colours apart, and what that is called:
https://chromedevtools.github.io/devtools-protocol/tot/Emulation/#method-setEmulatedVisionDeficiency
"""

DRAWN = """
    !document.querySelector('[aria-label="Panel loading bar"]')
    && [...document.querySelectorAll('[data-testid="data-testid panel content"]')]
        .filter((panel) => panel.getBoundingClientRect().top < innerHeight)
        .every((panel) => panel.innerText.trim() || panel.querySelector('canvas'))
"""
"""What a page says once no panel waits for an answer, and each in sight shows something."""

DRAWN_WITHIN = 60_000
"""Milliseconds in which a dashboard must have all its answers."""


def main() -> None:
    """Write every picture, or those that are named."""
    parser = ArgumentParser(prog="python -m tests.dashboards.pictures", description=main.__doc__)
    parser.add_argument("grafana", help="the address of Grafana, such as http://127.0.0.1:3000")
    parser.add_argument("names", nargs="*", default=list(PICTURES), help="which pictures")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they are written")
    parser.add_argument(
        "--prometheus", default="http://127.0.0.1:9090", help="the address of what Grafana asks"
    )
    given = parser.parse_args()

    def value(expression: str) -> float:
        found = ask(given.prometheus, expression, instant=True)["data"]["result"]
        return float(found[0]["value"][1]) if found else math.nan

    if wrong := list(impossible(value)):
        sys.exit(
            f"{given.prometheus}: these figures cannot be; wait, or mend it: {'; '.join(wrong)}"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find("chromium"), args=["--no-sandbox"]
        )
        for name in given.names:
            uid, variables, (width, height), theme = PICTURES[name]
            page = browser.new_page(viewport={"width": width, "height": height})
            query = {"orgId": "1", "theme": theme, "var-cluster": CLUSTER, **variables}
            page.goto(f"{given.grafana}/d/{uid}?{urlencode(query)}")
            page.wait_for_load_state("networkidle", timeout=DRAWN_WITHIN)
            page.wait_for_function(DRAWN, timeout=DRAWN_WITHIN)
            page.wait_for_timeout(2000)  # Grafana draws after its last answer
            page.context.new_cdp_session(page).send(
                "Emulation.setEmulatedVisionDeficiency", {"type": SEEN_WITH.get(name, "none")}
            )
            path = given.folder / f"{name}.png"
            page.screenshot(path=path)
            page.close()
            if shutil.which("pngquant"):
                command = ["pngquant", "--force", "--ext=.png", "--strip", "128", str(path)]
                subprocess.run(command, check=True)
        browser.close()


if __name__ == "__main__":
    main()
