"""Which interfaces are adapters."""

from __future__ import annotations

from pathlib import Path

from gpunode.config.daemon import Settings
from gpunode.host.network import UP, Network
from gpunode.node.local import LocalNode

NODE = {
    "ens5": ("device",),
    "ens6": ("device",),
    "bond0": ("bonding", "lower_ens5"),
    "bond1": ("bonding",),
    "ens6.7": ("lower_ens6",),
    "eni0a1b2c3d4e5": (),
    "gke52a84b2a1e3": (),
    "a1b2c3d4e5f6789": (),
    "coredns--6d4b75": (),
}
ADAPTERS = {"ens5", "ens6", "bond0", "bond1", "ens6.7"}


def interfaces(root: Path, node: dict[str, tuple[str, ...]]) -> set[str]:
    """The interfaces that are told of a node with these, by what their folders hold."""
    (root / "proc/1/net").mkdir(parents=True, exist_ok=True)
    lines = [f"{name}: {' '.join('1' * 16)}" for name in node]
    (root / "proc/1/net/dev").write_text("\n".join(["", "", *lines]) + "\n")
    for name, entries in node.items():
        folder = root / "sys/class/net" / name
        for entry in ("statistics", *entries):
            (folder / entry).mkdir(parents=True, exist_ok=True)
        (folder / "operstate").write_text("up\n")
    reading = Network(LocalNode(root), Settings()).read()
    assert not reading.unread
    return {s.labels[0] for s in reading.samples if s.metric is UP}


def test_the_ends_of_pods_are_no_adapters_whatever_their_names(tmp_path: Path) -> None:
    assert interfaces(tmp_path, NODE) == ADAPTERS


def test_adapters_are_read_before_anything_else(tmp_path: Path) -> None:
    vlans = {f"ens5.{number}": ("lower_ens5",) for number in range(40)}
    pods = {f"eni{number:010x}": () for number in range(300)}
    found = interfaces(tmp_path, {**vlans, **pods, "ens5": ("device",), "ens6": ("device",)})
    assert found == {*vlans, "ens5", "ens6"}


def test_a_container_tells_of_its_own_end(tmp_path: Path) -> None:
    assert interfaces(tmp_path, {"eth0": (), "net1": ()}) == {"eth0", "net1"}
