"""Modules of a package that run without what they import."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.serving.fleet import CAPTURED
from tests.serving.write_pages import MADE, PageRecipe, StandIns

METRICS = """
from dataclasses import dataclass

import nowhere_to_be_found.cuda as cuda
from an_engine.model import Model, compiled
from an_engine.names import NAME


@compiled
def told(model: Model | None, stream: cuda.Stream[int]) -> str:
    return NAME


class Logger(Model, frozen=True):
    pass
"""


def test_a_module_runs_without_the_rest_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "an_engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no GPU')")
    (package / "model.py").write_text("raise ImportError('no GPU')")
    (package / "names.py").write_text("NAME = 'requests'")
    (package / "metrics.py").write_text(METRICS)
    made = PageRecipe("an_engine", "1", ("an_engine.names", "an_engine.metrics"), lambda: None)
    monkeypatch.setattr(sys, "meta_path", [StandIns(tmp_path, made), *sys.meta_path])
    before = set(sys.modules)
    try:
        assert import_module("an_engine.metrics").told(None, None) == "requests"
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def test_what_packages_write_is_read_by_the_tests() -> None:
    assert MADE.keys() <= set(CAPTURED)
