"""Whether the node is drained, as a file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.cli.loader import load
from gpunode.cli.settings.run import RunSettings
from gpunode.config.daemon import NodeSettings, Settings
from gpunode.host.drained import DRAINED, DrainFile
from gpunode.metric import Sample
from gpunode.mistake import UsageError
from gpunode.node.local import LocalNode


def test_the_node_is_drained_for_as_long_as_the_file_is_there(tmp_path: Path) -> None:
    source = DrainFile(
        LocalNode(tmp_path), Settings(node=NodeSettings(drained_file="/run/drained"))
    )

    def told() -> tuple[Sample, ...]:
        return source.read().samples

    drained, in_use = ((Sample(DRAINED, (), value),) for value in (1.0, 0.0))
    assert told() == in_use, "not even the folder is there"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/drained.old").touch()
    assert told() == in_use
    (tmp_path / "run/drained").touch()
    assert told() == drained
    (tmp_path / "run/drained").unlink()
    assert told() == in_use


def test_without_the_setting_nothing_is_said(tmp_path: Path) -> None:
    assert DrainFile(LocalNode(tmp_path), Settings()).read().samples == ()


@pytest.mark.parametrize("path", ["drained", "/run/"])
def test_what_cannot_be_a_file_of_the_node_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="drained_file"):
        load(RunSettings, "gpunode run", [f"--node.drained-file={path}"])
