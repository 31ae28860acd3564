"""What is published is what was measured."""

from __future__ import annotations

import re
from pathlib import Path

from bench.report import DOCS, FIGURES, render
from bench.truth import gains


def test_the_page_of_performance_is_up_to_date() -> None:
    page = (DOCS / "performance.md").read_text()
    assert page == render(), "run: make bench"
    opening, _, _ = page.partition("\n## ")
    assert len(re.findall(r"^\| \[", opening, re.M)) == len(FIGURES) == 16


def test_the_pairs_that_were_measured_are_read(tmp_path: Path) -> None:
    rows = gains.load()
    assert len(rows) >= 16
    gains.report(rows).save("gain", tmp_path)
    machines = {row.machine for row in rows}
    assert (tmp_path / "gain.txt").read_text().count("\n") == 1 + len(rows) + len(machines)
