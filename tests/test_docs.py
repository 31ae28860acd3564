"""The documents say what the code does, and the code keeps to the design."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpunode.catalogue import DOCUMENTS
from gpunode.gpu.ledger import STATES
from gpunode.verdict.causes import CAUSES

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "exporter/gpunode"
ALLOWED = {
    "pynvml": {"driver/nvidia/nvml.py"},
    "fastapi": {"export/web/app.py", "export/web/server.py"},
    "starlette": {"export/web/app.py", "export/web/server.py"},
    "uvicorn": {"export/web/server.py"},
    "prometheus_client": {"export/exposition.py"},
    "psutil": {"host/own_process.py"},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_reference_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == DOCUMENTS[name](), "run: make docs"


def test_the_states_are_documented() -> None:
    document = (ROOT / "docs/ledger.md").read_text()
    for state in STATES:
        assert f"| `{state}` |" in document


def test_the_causes_are_documented() -> None:
    document = (ROOT / "docs/verdict.md").read_text()
    for cause in CAUSES:
        assert f"| `{cause}` |" in document


@pytest.mark.parametrize("library", ALLOWED)
def test_a_library_is_imported_in_one_place(library: str) -> None:
    importers = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules.append(node.module)
            if any(module.split(".")[0] == library for module in modules):
                importers.add(path.relative_to(SOURCES).as_posix())
    assert importers <= ALLOWED[library]


def test_one_broad_except_in_the_program() -> None:
    broad = [
        path.name
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"})
    ]
    assert broad == ["loop.py"]
