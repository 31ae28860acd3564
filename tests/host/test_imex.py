"""What files show of IMEX."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.imex import CONFIGURATION, Imex, parse
from gpunode.node.local import LocalNode

CHANNELS = "dev/nvidia-caps-imex-channels"
V2 = "sys/fs/cgroup/system.slice"
V1 = "sys/fs/cgroup/systemd/system.slice"


def put(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def imex_values(root: Path) -> dict[str, object]:
    samples = Imex(LocalNode(root), Settings()).read().samples
    return {s.metric.name.removeprefix("gpunode_imex_"): s.value for s in samples}


NODES = {CONFIGURATION[1:]: "# rack 7\n10.0.0.1\n10.0.0.2\n\nfd00::3\n"}


@pytest.mark.parametrize("services", [V2, V1])
def test_the_node_of_a_domain_runs_the_daemon_or_not(tmp_path: Path, services: str) -> None:
    procs = f"{services}/nvidia-imex.service/cgroup.procs"
    put(tmp_path, {**NODES, f"{CHANNELS}/channel0": "", f"{CHANNELS}/x": "", procs: "812\n"})
    assert imex_values(tmp_path) == {"channels": 1, "domain_nodes": 3, "daemon_running": 1}
    put(tmp_path, {procs: ""})
    assert imex_values(tmp_path)["daemon_running"] == 0, "the cgroup is left, without a process"
    (tmp_path / procs).unlink()
    (tmp_path / procs).parent.rmdir()
    assert imex_values(tmp_path)["daemon_running"] == 0


def test_a_node_without_imex_has_no_series(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/devices": "234 nvidia-caps-imex-channels\n",
            "proc/driver/nvidia/capabilities/fabric-imex-mgmt": "DeviceFileMinor: 1\n",
            f"{V2}/ssh.service/cgroup.procs": "1\n",
            CONFIGURATION[1:]: "# no node yet\n",
        },
    )
    assert imex_values(tmp_path) == {}


def test_a_daemon_in_a_pod_is_neither_believed_nor_missed(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/kubepods.slice/nvidia-imex.service/cgroup.procs"
    comm = "proc/9/comm"
    put(tmp_path, {f"{CHANNELS}/channel7": "", pod: "9\n", comm: "nvidia-imex\n", f"{V2}/a": ""})
    assert imex_values(tmp_path) == {"channels": 1}


def test_where_no_services_are_shown_nothing_is_said_of_the_daemon(tmp_path: Path) -> None:
    assert imex_values(put(tmp_path, NODES)) == {"domain_nodes": 3}


def test_a_list_that_is_none_of_addresses_is_refused() -> None:
    assert parse("a\na\n") == 1
    with pytest.raises(ValueError, match="not an address"):
        parse("10.0.0.1 10.0.0.2\n")
