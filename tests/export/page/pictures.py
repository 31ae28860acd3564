"""Takes the pictures of docs/page.md: ``python -m tests.export.page.pictures``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.export.page import scenes
from tests.export.page.scenes import Scene
from tests.export.page.serve import served
from tests.needs import find

FOLDER = Path(__file__).parents[3] / "docs/page"

PICTURES: dict[str, tuple[Callable[[], Scene], int, int, str]] = {
    "hang": (scenes.hang, 1280, 1040, "light"),
    "hang-dark": (scenes.hang, 1280, 1040, "dark"),
    "hang-phone": (scenes.hang, 390, 844, "dark"),
    "starvation": (scenes.starvation, 1600, 1230, "light"),
    "well": (lambda: scenes.at_work().play(1800), 1280, 760, "light"),
}
"""By name: the scene, the width and height of the window, and the theme."""


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    known: dict[Callable[[], Scene], str] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find("chromium"), args=["--no-sandbox"]
        )
        for name, (scene, width, height, theme) in PICTURES.items():
            if scene not in known:
                known[scene] = served(scene().stage.loop)
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
            )
            page.goto(known[scene])
            page.wait_for_selector(".strip path")
            path = FOLDER / f"{name}.png"
            page.screenshot(path=path)
            if shutil.which("pngquant"):
                command = ["pngquant", "--force", "--ext=.png", "--strip", "64", str(path)]
                subprocess.run(command, check=True)
        browser.close()


if __name__ == "__main__":
    main()
