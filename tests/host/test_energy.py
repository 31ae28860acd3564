"""Energy of processors: counters that start again at 0, and that only root may read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.energy import Energy
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock

RANGE = 262_143_328_850
"""Microjoules at which a Xeon's counter starts again."""


class Node(LocalNode):
    """A folder of files, of which some may not be read, and a clock to step."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.stepped = SteppedClock(0.0)
        self.clock = self.stepped  # type: ignore[assignment]
        self.closed = False

    def read_text(self, path: str) -> str:
        if self.closed and path.endswith("energy_uj"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().read_text(path)

    def zone(self, name: str, text: str, energy: int) -> None:
        folder = Path(self.rootfs) / "sys/devices/virtual/powercap/intel-rapl"
        if name.count(":") > 1:
            folder /= name.rpartition(":")[0]
        folder /= name
        folder.mkdir(parents=True, exist_ok=True)
        link = Path(self.rootfs) / "sys/class/powercap" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder)
        (folder / "name").write_text(f"{text}\n")
        (folder / "energy_uj").write_text(f"{energy}\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def joules(source: Energy) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in source.read().samples}


def test_a_counter_that_wraps_goes_on(node: Node) -> None:
    node.zone("intel-rapl:0", "package-0", RANGE - 1_000_000_000)
    source = Energy(node, Settings())
    assert joules(source) == {("0", "package"): 0.0}
    node.stepped.now += 10.0
    node.zone("intel-rapl:0", "package-0", 2_000_000_000)
    assert joules(source) == {("0", "package"): pytest.approx(3000.0)}


def test_a_reset_adds_nothing(node: Node) -> None:
    node.zone("intel-rapl:0", "package-0", 100_000_000_000)
    source = Energy(node, Settings())
    joules(source)
    node.stepped.now += 10.0
    node.zone("intel-rapl:0", "package-0", 1_000_000)  # as a wrap, this would be 16 kW
    assert joules(source) == {("0", "package"): 0.0}
    node.stepped.now += 10.0
    node.zone("intel-rapl:0", "package-0", 3_001_000_000)
    assert joules(source) == {("0", "package"): 3000.0}


def test_what_root_alone_may_read_has_no_series(node: Node) -> None:
    node.zone("intel-rapl:0", "package-0", 5_000_000)
    node.closed = True
    assert joules(Energy(node, Settings())) == {}


def test_memory_is_told_with_its_processor_and_parts_of_a_processor_are_not(node: Node) -> None:
    node.zone("intel-rapl:1", "package-1-die-1", 1)
    node.zone("intel-rapl:1:0", "core", 1)
    node.zone("intel-rapl:1:1", "dram", 1)
    node.zone("intel-rapl:2", "psys", 1)
    node.zone("intel-rapl-mmio:0", "package-1", 1)  # the same counter again
    node.zone("dtpm", "dtpm", 1)
    source = Energy(node, Settings())
    assert set(joules(source)) == {("1-die-1", "package"), ("1-die-1", "dram"), ("", "psys")}
    assert source.read().unread == ()


def test_a_part_without_a_known_name_is_unread(node: Node) -> None:
    node.zone("intel-rapl:0", "package-0", 1)
    node.zone("intel-rapl:0:0", "hbm9", 1)
    (unread,) = Energy(node, Settings()).read().unread
    assert (unread.kind.what, unread.example) == ("energy_domain", "a0")
