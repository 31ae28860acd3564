"""Takes pictures of the demo, of ``top`` and of ``why``: ``python -m tests.cli.pictures``."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
from playwright.sync_api import Browser, expect, sync_playwright

from gpunode.cli.stories import ORDER
from tests.daemon import free_port
from tests.export.page import scenes
from tests.export.page.serve import served
from tests.needs import ROOT, need
from tests.prometheus.known import remembering
from tests.report.test_why import NOW, past
from tests.tapes.stories import STORY
from tests.terminal import Terminal

FOLDER = ROOT / "docs/tour"

SIZES = ((60, 16), (80, 24), (200, 50))
"""Columns and lines of the terminals in which ``gpunode top`` is shown."""

PAGE = {"width": 1280, "height": 860}

DRAWN = 4.0
"""Seconds after which the last hour has a point of what was found."""

SPEED = 8
"""Of the story that is played through a pipe."""

JOBS = {
    "storage": "research/llm",
    "hang": "4301",
    "straggler": "vision/resnet",
    "communication": "search/ranker",
    "heat": "hot",
}
"""By what held it up: jobs of a known past, of which ``gpunode why`` is asked."""

GROUND, INK = "#16161a", "#d8d8dc"
COLOURS = {
    "black": GROUND,
    "red": "#f2777a",
    "green": "#7fc98b",
    "brown": "#e8c468",
    "blue": "#7aa6f0",
    "magenta": "#c78be0",
    "cyan": "#6cc6cf",
    "white": INK,
    "brightblack": "#8a8a94",
}
"""Of a dark terminal, by pyte's names."""


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    gpunode = (sys.executable, "-m", "gpunode")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=need("chromium"), args=["--no-sandbox"]
        )
        for story in ORDER:
            _page_of(browser, story)
        address = f"--web.listen-address=127.0.0.1:{free_port()}"
        _terminal(browser, "demo", (100, 30), " hang: ", *gpunode, "demo", "hang", address)
        demo = shlex.join((*gpunode, "demo", "hang", "--once", f"--speed={SPEED}", address))
        _terminal(browser, "demo-pipe", (100, 40), "", "sh", "-c", f"{demo} | cat")
        url = served(scenes.hang().stage.loop)
        for columns, lines in SIZES:
            name = f"top-{columns}x{lines}"
            _terminal(browser, name, (columns, lines), "quit", *gpunode, "top", f"--url={url}")
        _why(browser)
        browser.close()


def _why(browser: Browser) -> None:
    """What is said of each job, at the moment to which its past goes."""
    then = f"import time; time.time = lambda: {NOW}.0; from gpunode.__main__ import main; main()"
    with tempfile.TemporaryDirectory() as folder, remembering(past(), Path(folder)) as url:
        for cause, job in JOBS.items():
            asked = ("why", job, f"--prometheus.url={url}")
            _terminal(browser, f"why-{cause}", (100, 80), "", sys.executable, "-c", then, *asked)


def _page_of(browser: Browser, story: str) -> None:
    """The demo's page once it has found what the incident is."""
    finding = STORY[story].finding
    with _demo(story) as (url, child):
        assert child.stdout is not None
        next(line for line in child.stdout if finding in line)
        time.sleep(DRAWN)
        page = browser.new_page(viewport=PAGE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(url)
        expect(page.locator(".finding h3").first).to_contain_text(finding)
        page.wait_for_selector(".strip path")
        _keep(page.screenshot(), f"demo-{story}")
        page.close()


@contextmanager
def _demo(story: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpunode", "demo", story]
    with subprocess.Popen(
        [*command, f"--web.listen-address={address}"], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            next(line for line in child.stdout if "as a page" in line)
            yield f"http://{address}/", child
        finally:
            child.kill()


def _terminal(
    browser: Browser, name: str, size: tuple[int, int], until: str, *command: str
) -> None:
    """A program in a terminal of so many columns and lines, once it shows something.

    Without anything to wait for, all that it has written when it ends.
    """
    columns, lines = size
    screen = pyte.Screen(columns, lines)
    stream = pyte.Stream(screen)
    opened = Terminal(*command, size=(lines, columns))
    try:
        stream.feed(opened.raw_until(until) if until else opened.raw_to_the_end())
    finally:
        opened.child.kill()
        opened.child.wait()
        os.close(opened.side)
    page = browser.new_page(viewport={"width": 2000, "height": 1200})
    page.set_content(
        f"<style>body{{margin:0}}pre{{display:inline-block;margin:0;padding:12px;"
        f"background:{GROUND};color:{INK};font:14px/18px 'DejaVu Sans Mono',monospace}}</style>"
        f"<pre>{''.join(_lines(screen, lines if until else screen.cursor.y))}</pre>"
    )
    _keep(page.locator("pre").screenshot(), name)
    page.close()


def _lines(screen: pyte.Screen, rows: int) -> Iterator[str]:
    for row in range(rows):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            ink, ground = _colour(cell.fg, INK), _colour(cell.bg, GROUND)
            if cell.reverse:
                ink, ground = ground, ink
            weight = "bold" if cell.bold else "normal"
            style = f"color:{ink};background:{ground};font-weight:{weight}"
            yield f'<span style="{style}">{html.escape(cell.data)}</span>'
        yield "\n"


def _colour(name: str, default: str) -> str:
    if name == "default":
        return default
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return COLOURS.get(name, COLOURS.get(name.removeprefix("bright"), default))


def _keep(picture: bytes, name: str) -> None:
    path = Path(FOLDER / f"{name}.png")
    path.write_bytes(picture)
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext=.png", "--strip", "64", path], check=True)


if __name__ == "__main__":
    main()
