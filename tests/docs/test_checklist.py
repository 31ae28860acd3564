"""The checklist names checks of the audit and lines of dashboards that there are."""

from __future__ import annotations

import re
from pathlib import Path

from dashboards.lines import LINES
from gpunode.audit.source import CHECKS

PAGE = (Path(__file__).parents[2] / "docs/checklist.md").read_text()


def named(kind: str) -> set[str]:
    """What the page calls a check or a line."""
    lists = re.findall(rf"\b{kind}s? ((?:`\w+`(?:, | and )?)+)", PAGE)
    return {name for names in lists for name in re.findall(r"`((?!gpunode_)\w+)`", names)}


def test_the_checks_that_it_names_are_run() -> None:
    found = named("check")
    assert {"gpu_pcie_link", "gpu_pcie_uplink"} <= found
    assert found <= {check.name for check in CHECKS}


def test_the_lines_that_it_names_are_drawn() -> None:
    found = named("line")
    assert "page_cache_missed" in found
    assert found <= LINES.keys()
