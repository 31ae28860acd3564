"""What is told of a GPU as a whole while it is divided into MIG instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.gpu.board import GpuBoard
from gpunode.node.local import LocalNode
from tests.machine import MachineGpu, exported, read_source


class LinkedGpu(MachineGpu):
    """A GPU that has moved a gigabyte more at each read."""

    moved = 0.0

    def nvlink_bytes(self) -> dict[str, float]:
        self.moved += 1e9
        return {"transmit": self.moved, "receive": 2 * self.moved}


@pytest.mark.parametrize(("capability", "links"), [("8.0", True), ("9.0", False), (None, False)])
def test_a_board_before_hopper_tells_the_bytes_of_its_links(
    capability: str | None, links: bool, tmp_path: Path
) -> None:
    """From Hopper on its instances tell their own, which are the same bytes."""
    gpu = LinkedGpu(0, "GPU-a", "0000:01:00.0", compute_capability=capability)
    board = GpuBoard(LocalNode(tmp_path), gpu, Settings())
    for _ in range(3):
        found = exported(read_source(board))
    lines = [line for line in found.splitlines() if "nvlink_bytes" in line]
    assert len(lines) == (2 if links else 0)
    assert not links or any(line.endswith(" 4000000000.0") for line in lines), lines
