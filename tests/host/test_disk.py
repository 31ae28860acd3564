"""Disks that have several paths."""

from __future__ import annotations

from gpunode.host.disk import parse

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
