"""What tests of the corpus have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gpunode.node.local import LocalNode

Fate = Literal["right", "wrong", "unread", "silent"]


class Written(LocalNode):
    """A node with a GPU, whose kernel has just written some lines."""

    def __init__(self, root: Path, path: str, lines: list[str]) -> None:
        super().__init__(root)
        self.path, self.written = path, lines
        gpu = root / "sys/bus/pci/devices/0000:01:00.0"
        gpu.mkdir(parents=True)
        (gpu / "vendor").write_text("0x10de\n")
        (gpu / "class").write_text("0x030200\n")

    def log_lines(self, path: str) -> list[str]:
        if path != self.path:
            raise FileNotFoundError(path)
        return self.written
