"""A name means one thing, and whoever looks for what it names finds it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "exporter/gpunode"

BY_DESIGN = {"GpunodeCallback"}
"""Lightning's and Hugging Face's have the name by which users of either look for one."""


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(set)
    for path in SOURCES.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(str(path.relative_to(SOURCES)))
    shared = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    new = {n: paths for n, paths in shared.items() if n not in BY_DESIGN}
    assert not new, "give each a name that says what it is"
    assert not BY_DESIGN - shared.keys(), "no longer shared: take it off the list"


def test_each_test_of_a_defence_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/defences.md").read_text())
    assert len(named) > 100
    gone = [(file, test) for file, test in named if f"def {test}(" not in read(ROOT / file)]
    assert not gone, "name the test that fails without the defence"


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
