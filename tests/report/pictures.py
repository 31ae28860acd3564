"""Takes the pictures of docs/report.md: ``python -m tests.report.pictures http://127.0.0.1:9091``.

The Prometheus there is that of ``make report-data``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.needs import ROOT, need

PICTURES = {"report": (1280, 1590, "html"), "report-phone": (390, 844, "#bills")}
"""By name: the width and height of the window, and what is at its top."""

SHEETS_IN_A_ROW = 4
DOTS_PER_INCH = 72


def main(url: str) -> None:
    """Write every picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_of_report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "gpunode", "report", f"--prometheus.url={url}"]
        command += ["--from=28d", f"--billing-file={ROOT}/docs/tour/billing.yaml"]
        command += [f"--output={page_of_report}"]
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
            _keep(page.screenshot(), name)
        _keep(_paper(browser, page_of_report), "report-paper")
        browser.close()


def _paper(browser: Browser, report: Path) -> bytes:
    """The report as it is printed: its sheets side by side."""
    page = browser.new_page()
    page.goto(report.as_uri())
    printed, sheets = report.with_suffix(".pdf"), report.with_name("sheet")
    page.pdf(path=printed, prefer_css_page_size=True)
    subprocess.run(
        [need("pdftoppm"), "-png", "-r", f"{DOTS_PER_INCH}", printed, sheets], check=True
    )
    beside = "".join(
        f"<img src='{sheet.as_uri()}'>" for sheet in sorted(report.parent.glob("sheet-*.png"))
    )
    columns = f"grid-template-columns:repeat({SHEETS_IN_A_ROW},max-content)"
    together = report.with_name("sheets.html")
    together.write_text(
        f"<body style='margin:0;background:#888'><main style='display:inline-grid;gap:8px;"
        f"padding:8px;{columns}'>{beside}</main>"
    )
    page.goto(together.as_uri())
    return page.locator("main").screenshot()


def _keep(picture: bytes, name: str) -> None:
    path = ROOT / f"docs/{name}.png"
    path.write_bytes(picture)
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext=.png", "--strip", "64", path], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
