"""Takes the pictures of docs/report.md: ``python -m tests.report.pictures http://127.0.0.1:9091``.

The Prometheus there is that of ``make report-data``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.needs import ROOT, need

PICTURES = {"report": (1280, 1040, "html"), "report-phone": (390, 844, "#bills")}
"""By name: the width and height of the window, and what is at its top."""


def main(url: str) -> None:
    """Write every picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_of_report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "gpunode", "report", f"--prometheus.url={url}"]
        command += ["--from=28d", "--price=2.50", f"--output={page_of_report}"]
        subprocess.run(command, check=True)
        browser = playwright.chromium.launch(
            executable_path=need("chromium"), args=["--no-sandbox"]
        )
        for name, (width, height, where) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="light"
            )
            page.goto(page_of_report.as_uri())
            page.evaluate("where => document.querySelector(where).scrollIntoView()", where)
            path = ROOT / f"docs/{name}.png"
            page.screenshot(path=path)
            if shutil.which("pngquant"):
                subprocess.run(
                    ["pngquant", "--force", "--ext=.png", "--strip", "64", path], check=True
                )
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
