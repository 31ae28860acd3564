"""The seam between sensing and a vendor: a node with the GPUs of two, whose drivers fail apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Driver, DriverUnavailable, Gpu, Identity, Vendor
from gpunode.driver.vendors import VENDORS
from gpunode.holders.census import Census
from gpunode.holders.pods import Pods
from gpunode.loop import Loop
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.source import Absent
from gpunode.sources import GpuSources
from tests.conftest import by_label, parse, values
from tests.machine import MachineDriver, MachineGpu, exported

OTHER = Vendor(
    name="other",
    pci_id="0x1234",
    counters=("gpm",),
    watched_errors=(),
    device_prefixes=("OTHER-",),
    device_resources=(),
    claim_driver="gpu.other.example",
    is_device=lambda gpu, device: gpu.uuid == device,
)


class OtherGpu(MachineGpu):
    """A GPU of the other vendor, with one sensor."""

    @property
    def identity(self) -> Identity:
        return Identity(self.index, self.uuid, "Other 1", vendor=OTHER.name)

    def temperature(self) -> float:
        return 50.0


class Unavailable:
    """A driver that is not there."""

    def __init__(self, vendor: str, why: str) -> None:
        self.vendor = vendor
        self.why = why

    def gpus(self) -> list[Gpu]:
        raise DriverUnavailable(self.why)


class TwoVendors(LocalNode):
    """An empty node with some drivers; time is the test's."""

    def __init__(self, root: Path, drivers: Sequence[Driver]) -> None:
        super().__init__(root, drivers)
        self.stepped = SteppedClock(0.0)
        self.clock = self.stepped  # type: ignore[assignment]


OURS = MachineDriver([MachineGpu(0, "GPU-aa", "0000:1b:00.0")])
THEIRS = MachineDriver([OtherGpu(1, "OTHER-bb", "")], OTHER.name)


@pytest.fixture(autouse=True)
def other_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VENDORS, OTHER.name, OTHER)


def sources_of(node: TwoVendors) -> GpuSources:
    return GpuSources(Census(node), Settings(), Pods(node, Settings()))


def told(root: Path, *drivers: Driver) -> str:
    """What is exported of the GPUs of these drivers after one window."""
    node = TwoVendors(root, drivers)
    loop = Loop(node.clock, [sources_of(node)], find_every=10.0)
    watches = loop.find()
    for _ in range(2):
        for watch in watches:
            watch.step()
        node.stepped.now += Settings().gpu.interval
    return exported(loop.samples())


def test_the_gpus_of_two_vendors_are_exported_side_by_side(tmp_path: Path) -> None:
    series = parse(told(tmp_path, OURS, THEIRS) + "\n")
    names = by_label(series, "gpunode_gpu_info", "name")
    assert names.keys() == {"NVIDIA H200", "Other 1"}
    assert values(series, "gpunode_gpu_temperature_celsius", uuid="OTHER-bb") == [50]
    for uuid in ("GPU-aa", "OTHER-bb"):
        assert values(series, "gpunode_source_up", source="gpu_activity", uuid=uuid) == [1]


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_driver_that_is_not_there_hides_no_gpu_of_another(tmp_path: Path, order: int) -> None:
    drivers: list[Driver] = [Unavailable("nvidia", "nvmlInit: library not found"), THEIRS]
    series = parse(told(tmp_path, *drivers[::order]) + "\n")
    assert by_label(series, "gpunode_gpu_info", "uuid").keys() == {"OTHER-bb"}
    assert values(series, "gpunode_source_up", source="gpu") == [1]


def test_the_gpus_of_a_driver_that_stops_answering_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaks(MachineDriver):
        broken = False

        def gpus(self) -> list[Gpu]:
            if self.broken:
                raise DriverUnavailable("nvmlInit: driver not loaded")
            return super().gpus()

    breaks = Breaks([MachineGpu(0, "GPU-aa", "0000:1b:00.0")])
    sources = sources_of(TwoVendors(tmp_path, [breaks, THEIRS]))
    before = list(sources.find())
    breaks.broken = True
    for _ in range(3):
        assert list(sources.find()) == before
    assert caplog.text.count("driver not loaded") == 1


def test_where_no_driver_is_there_each_says_why(tmp_path: Path) -> None:
    drivers = Unavailable("nvidia", "no libnvidia-ml"), Unavailable(OTHER.name, "no libother")
    with pytest.raises(Absent, match=r"no libnvidia-ml.*no libother"):
        list(sources_of(TwoVendors(tmp_path, drivers)).find())
