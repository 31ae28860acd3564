"""What the node is called: by who set the daemon up, by Kubernetes, or by Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.config.web import NodeNameSettings
from gpunode.host import node_name
from gpunode.host.versions import NodeVersions
from gpunode.node.local import LocalNode
from tests.machine import exported, read_source


@pytest.mark.parametrize(
    ("set_up", "variable", "slurm", "label", "name"),
    [
        ("n-1", "n-2", False, "n-1", "n-1"),
        ("", "n-2", True, "n-2", "n-2"),
        ("", "", True, "host-7", "host-7.example.org"),
        ("", "", False, "", "host-7.example.org"),
        ("n\n1" + "x" * 300, "", False, "n\ufffd1" + "x" * 250, "n\ufffd1" + "x" * 250),
    ],
)
def test_the_name_of_a_node(
    set_up: str,
    variable: str,
    slurm: bool,
    label: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host's name stands for it in ``USER@NODE`` alone: Kubernetes may call it otherwise."""
    monkeypatch.setenv("NODE_NAME", variable)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("host-7.example.org\n")
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8\n")
    if slurm:
        (tmp_path / "etc/slurm").mkdir(parents=True)
        (tmp_path / "etc/slurm/slurm.conf").touch()
    node, settings = LocalNode(tmp_path), Settings(web=NodeNameSettings(node_name=set_up))
    (info,) = exported(read_source(NodeVersions(node, settings))).splitlines()
    assert f'node="{label}"' in info
    assert node_name.name(node, settings) == name
