"""Disks that have several paths, and the temperatures of their controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.disk import TEMPERATURE, Disks, parse
from gpunode.node.local import LocalNode

FIRST = "0 0 nvme0c0n1 1000 0 8000 500 200 0 1600 100 3 400 0 0 0 0 0 0"
SECOND = "0 0 nvme0c1n1 10 0 80 5 2 0 16 1 1 900 0 0 0 0 0 0"
HEAD = "259 1 nvme0n1 {} 0 {} 0 0 0 0 0 0 {} 0 0 0 0 0 0 0"


def test_a_disk_whose_paths_alone_count_has_what_they_did() -> None:
    found = parse("\n".join([FIRST, SECOND, HEAD.format(0, 0, 0)]) + "\n")
    (disk,) = found.values()
    assert list(found) == ["nvme0n1"]
    assert (disk.operations, disk.bytes) == ((1010.0, 202.0), (8080 * 512.0, 1616 * 512.0))
    assert (disk.in_flight, disk.busy_seconds) == (4.0, 0.9)


def test_a_disk_that_counts_itself_is_believed() -> None:
    (disk,) = parse("\n".join([HEAD.format(7, 56, 20), FIRST]) + "\n").values()
    assert (disk.operations, disk.busy_seconds) == ((7.0, 0.0), 0.02)


@pytest.mark.parametrize(
    ("text", "degrees"),
    [("38850", [38.85]), ("-273150", []), ("999999", []), ("0", [0.0])],
)
def test_a_controller_without_a_sensor_has_no_temperature(
    text: str, degrees: list[float], tmp_path: Path
) -> None:
    controller = tmp_path / "sys/class/nvme/nvme0"
    (controller / "hwmon0").mkdir(parents=True)
    (controller / "state").write_text("live\n")
    (controller / "hwmon0/temp1_input").write_text(f"{text}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/diskstats").write_text("")
    reading = Disks(LocalNode(tmp_path), Settings()).read()
    assert [s.value for s in reading.samples if s.metric is TEMPERATURE] == degrees
