"""A node of each Kubernetes platform, as far as files tell, and the chart's values for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.cli.platforms import PLATFORMS, chart_limits, chart_values
from gpunode.node.local import LocalNode

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"

NODES: dict[str, dict[str, str]] = {
    "rke2": {"etc/os-release": "ID=sles\n", "var/lib/rancher/rke2/server/node-token": ""},
    "k3s": {"etc/os-release": "ID=ubuntu\n", "var/lib/rancher/k3s/agent/kubelet.kubeconfig": ""},
    "talos": {"etc/os-release": 'NAME="Talos"\nID=talos\nVERSION_ID=v1.12.1\n'},
    "openshift": {"etc/os-release": 'ID="rhcos"\nVERSION="418.94"\n'},
    "bottlerocket": {"etc/os-release": 'ID=bottlerocket\nVARIANT_ID="aws-k8s-1.34-nvidia"\n'},
    "gke": {
        "etc/os-release": "ID=cos\n",
        "home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1": "",
    },
    "gke-autopilot": {
        "etc/os-release": "ID=cos\n",
        "home/kubernetes/bin/kubelet": "",
        "proc/sys/kernel/hostname": "gk3-train-nap-1rsk2zoy-e7036ee3-r4rg\n",
    },
    "eks": {"etc/os-release": 'ID="amzn"\n', "etc/eks/image-credential-provider/config.json": ""},
    "aks": {"etc/os-release": "ID=ubuntu\n", "opt/azure/containers/provision.sh": ""},
}
LIKE = {
    "eks-auto": (
        "bottlerocket",
        {"etc/os-release": "ID=bottlerocket\nVARIANT_ID=eks-auto-nvidia\n"},
    ),
}
"""Platforms whose nodes show no more than those of another."""

SETS = {
    **{key: {"runtimeClassName": "nvidia"} for key in ("rke2", "k3s", "talos", "openshift")},
    "gke": {"driver.library": "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1"},
}
"""What follows from the platform."""

VOLUME = "pods/0d1f2c3b-4a59-4687-9a8b-7c6d5e4f3a2b/volumes/kubernetes.io~projected/token"


def laid_out(files: dict[str, str], folder: Path) -> LocalNode:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return LocalNode(folder)


def test_every_platform_has_a_node() -> None:
    assert NODES.keys() | LIKE.keys() == {one.name for one in PLATFORMS}


@pytest.mark.parametrize("name", NODES)
def test_a_node_says_which_platform_it_is_of(name: str, tmp_path: Path) -> None:
    node = laid_out({**NODES[name], SOCKET: ""}, tmp_path)
    assert chart_values(node) == {"platform": name, **SETS.get(name, {})}


@pytest.mark.parametrize("name", NODES)
def test_a_node_says_what_cannot_work_on_its_platform(name: str, tmp_path: Path) -> None:
    (platform,) = (one for one in PLATFORMS if one.name == name)
    (said,) = chart_limits(laid_out({**NODES[name], SOCKET: ""}, tmp_path))
    assert name in said
    assert (platform.cannot or platform.limits) in said
    assert said.endswith(f" ({platform.limits_source or platform.source})")


@pytest.mark.parametrize("name", LIKE)
def test_a_node_that_shows_no_more_is_taken_for_the_other(name: str, tmp_path: Path) -> None:
    other, files = LIKE[name]
    assert chart_values(laid_out({**files, SOCKET: ""}, tmp_path)) == {"platform": other}


def test_what_auto_mode_is_taken_for_needs_the_same() -> None:
    needs = {
        one.name: (one.runtime_class, one.driver_library, one.extra_volumes, one.cannot)
        for one in PLATFORMS
    }
    assert needs["eks-auto"] == needs["bottlerocket"]


def test_the_library_that_the_chart_mounts_is_on_the_node(tmp_path: Path) -> None:
    libraries = {one.name: one.driver_library for one in PLATFORMS if one.driver_library}
    assert libraries
    for name, library in libraries.items():
        laid_out(NODES[name], tmp_path / name)
        assert (tmp_path / name / library[1:]).is_file()


@pytest.mark.parametrize("files", [{}, {"etc/os-release": "ID=ubuntu\n", SOCKET: ""}])
def test_another_node_needs_nothing(files: dict[str, str], tmp_path: Path) -> None:
    assert chart_values(laid_out(files, tmp_path)) == {}


def test_openshift_is_known_since_its_nodes_are_of_rhel(tmp_path: Path) -> None:
    text = 'ID="rhel"\nOPENSHIFT_VERSION="4.19"\n'
    assert chart_values(laid_out({"etc/os-release": text}, tmp_path))["platform"] == "openshift"


@pytest.mark.parametrize(
    "folder",
    ["var/lib/k0s/kubelet/pod-resources", "var/snap/microk8s/common/var/lib/kubelet/pod-resources"],
)
def test_a_kubelet_elsewhere_is_found(folder: str, tmp_path: Path) -> None:
    node = laid_out({f"{folder}/kubelet.sock": ""}, tmp_path)
    assert chart_values(node) == {"kubeletPath": f"/{folder}"}


@pytest.mark.parametrize(
    ("folders", "path"),
    [
        (["/var/lib/k0s/kubelet"], "/var/lib/k0s/kubelet/pod-resources"),
        (["/data/kubelet"], "/data/kubelet/pod-resources"),
        (["/mnt/disk/kubelet", "/var/lib/kubelet"], None),  # one folder, which is bound elsewhere
        (["/var/lib/kubelet"], None),
        (["/data/\x1b]52;c;bHM=\x07kubelet"], None),
    ],
)
def test_a_kubelet_is_found_by_what_it_mounts(
    folders: list[str], path: str | None, tmp_path: Path
) -> None:
    line = f"36 35 98:0 / {{}}/{VOLUME} rw,noatime shared:1 - tmpfs tmpfs rw\n"
    table = "".join(line.format(folder) for folder in folders)
    node = laid_out({"proc/1/mountinfo": table}, tmp_path)
    assert chart_values(node).get("kubeletPath") == path
    assert not list(chart_limits(node))


def test_what_a_user_mounts_is_of_no_kubelet(tmp_path: Path) -> None:
    table = f"36 35 98:0 / /home/a/{VOLUME} rw - fuse.sshfs a rw,user_id=1000,group_id=1000\n"
    assert chart_values(laid_out({"proc/1/mountinfo": table}, tmp_path)) == {}
