"""The one door to the machine: files, filesystems, the driver and the clock.

Everything read from the outside goes through a ``Node``, so that ``tape.py`` can record a machine
and play it back, and a test machine is a folder of files.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpunode.gpu.driver import Driver, DriverUnavailable


class Clock(Protocol):
    """Time, as the node tells it."""

    def monotonic(self) -> float:
        """Seconds that never jump; they stand still while the node is suspended."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...


class SystemClock:
    """The clocks of the machine this runs on."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()


class SteppedClock:
    """A tape's clock: stands still until it is set."""

    def __init__(self, epoch: float) -> None:
        self.epoch = epoch
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.epoch + self.now


@dataclass(frozen=True, slots=True)
class Filesystem:
    """Bytes: all, free, and free to users other than root."""

    size: float
    free: float
    available: float


class Node(Protocol):
    """A machine that can be asked, and nothing else."""

    @property
    def clock(self) -> Clock: ...
    def driver(self) -> Driver:
        """The NVIDIA driver. Raises ``DriverUnavailable`` where it cannot even be imported."""
        ...

    def read_text(self, path: str) -> str:
        """The file at the absolute ``path`` of the node. Raises ``OSError``."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory of the node, sorted. Raises ``OSError``."""
        ...

    def filesystem(self, path: str) -> Filesystem:
        """Size and use of the filesystem that holds ``path``. Raises ``OSError``."""
        ...


class LocalNode:
    """The machine this process runs on, its root mounted at ``rootfs``."""

    def __init__(self, rootfs: Path) -> None:
        self.rootfs = rootfs
        self.clock = SystemClock()
        self._driver: Driver | None = None

    def driver(self) -> Driver:
        if self._driver is None:
            try:
                from gpunode.gpu.nvml import NvmlDriver
            except ImportError as error:
                raise DriverUnavailable(f"nvidia-ml-py is not installed: {error}") from error
            self._driver = NvmlDriver(self.clock.monotonic)
        return self._driver

    def read_text(self, path: str) -> str:
        return self._locate(path).read_text(encoding="utf-8", errors="replace")

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(self._locate(path)))

    def filesystem(self, path: str) -> Filesystem:
        answer = os.statvfs(self._locate(path))
        block = answer.f_frsize
        return Filesystem(answer.f_blocks * block, answer.f_bfree * block, answer.f_bavail * block)

    def _locate(self, path: str) -> Path:
        return self.rootfs / path.lstrip("/")
