"""What tells that a node has been repaired."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.loader import load
from gpunode.cli.settings.run import RunSettings
from gpunode.config.daemon import NodeSettings, Settings
from gpunode.host.repair import BOOTED, REPAIRED, Repair, parse_boot, parse_repaired
from gpunode.metric import Sample
from gpunode.mistake import UsageError
from gpunode.node.local import LocalNode


def read(root: Path, path: str = "/run/repaired") -> tuple[Sample, ...]:
    settings = Settings(node=NodeSettings(repaired_file=path))
    return Repair(LocalNode(root), settings).read().samples


def test_when_the_node_was_started(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 1 2 3\nbtime 1790000000\nprocesses 7\n")
    assert read(tmp_path) == (Sample(BOOTED, (), 1.79e9),)


def test_a_person_says_when_the_node_was_repaired(tmp_path: Path) -> None:
    assert read(tmp_path) == (), "there is no file"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/repaired").write_text("1790000123\n")
    assert read(tmp_path) == (Sample(REPAIRED, (), 1790000123.0),)
    assert read(tmp_path, "") == (), "no file is asked for"


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1e9", "1790000123 1790000124"])
def test_a_file_without_a_time_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/repaired").write_text(text)
    with pytest.raises(ValueError, match=r"date \+%s"):
        read(tmp_path)


@given(st.text())
def test_any_file_is_a_time_or_an_error(text: str) -> None:
    assert parse_boot(text) is None or "btime" in text
    with contextlib.suppress(ValueError):
        assert parse_repaired(text) >= 0.0


@pytest.mark.parametrize("path", ["repaired", "/run/"])
def test_what_cannot_be_a_file_of_the_node_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="repaired_file"):
        load(RunSettings, "gpunode run", [f"--node.repaired-file={path}"])
