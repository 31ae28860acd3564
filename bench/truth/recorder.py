"""gpunode that also writes every window to a file: ``python -m bench.truth.recorder run``.

The variable ``RECORDED`` names the file, which gets a line of JSON for each window: the GPU's
index, the time at which the window closed, and the window as ``WindowRecord`` writes it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpunode.__main__ import main
from gpunode.gpu.activity import GpuActivity
from gpunode.gpu.window import Window
from tests.windows.recorded import WindowRecord

VARIABLE = "RECORDED"


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window of a GPU, and when it closed, in seconds since the epoch."""

    gpu: int
    time: float
    recorded: WindowRecord

    @property
    def opened(self) -> float:
        return self.time - self.recorded.window.seconds

    def of(self, family: str, program: str, truth: dict[str, float]) -> WindowRecord:
        return replace(self.recorded, family=family, program=program, truth=truth)


@dataclass(slots=True)
class Windows:
    """What a recorder has written so far."""

    path: Path
    found: list[ClosedWindow] = field(default_factory=list)
    _at: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, gpu: int, since: float) -> list[ClosedWindow]:
        """The windows of a GPU that opened since then."""
        with self._lock:
            self._read()
            return [each for each in self.found if each.gpu == gpu and each.opened >= since]

    def _read(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode().splitlines():
            kept = json.loads(line)
            window = WindowRecord.from_json(kept["recorded"])
            self.found.append(ClosedWindow(kept["gpu"], kept["time"], window))


def recording(path: Path, window_of: Callable[..., Window]) -> Callable[..., Window]:
    """``GpuActivity._window`` that writes each window as well."""

    def record(self: GpuActivity, opened: Any, closed: Any, *readings: Any) -> Window:
        window = window_of(self, opened, closed, *readings)
        identity = self.gpu.identity
        recorded = WindowRecord(identity.name, "", "", window, {}).to_json()
        line = json.dumps({"gpu": identity.index, "time": closed.epoch, "recorded": recorded})
        with path.open("a") as file:
            file.write(line + "\n")
        return window

    return record


if __name__ == "__main__":
    wrapped = recording(Path(os.environ[VARIABLE]), GpuActivity._window)
    GpuActivity._window = wrapped  # type: ignore[method-assign]
    main()
