"""Recorded windows: what the sensors of a GPU measured, and what its kernels really did meanwhile.

A file has the windows of one model of GPU, a line of JSON each. Of the draw it keeps the watts: the
samples of a window are taken to be evenly spaced.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpunode.driver.driver import Activity, Identity, Limits, Process, Utilization
from gpunode.gpu.buffers import PowerWindow
from gpunode.gpu.models import ceilings_of
from gpunode.gpu.window import Window

FOLDER = Path(__file__).parent

DIGITS = 5
"""Significant digits that are kept of each reading."""


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One window of a program on a GPU."""

    gpu: str
    """The name that the driver gives the GPU."""

    family: str
    """What kind of program it was; the fit leaves out whole families."""

    program: str
    """Which program of its family: windows of the same one are not independent."""

    window: Window
    truth: dict[str, float]
    """Share of the window by state, of those that a trace tells."""

    @staticmethod
    def from_json(line: str) -> WindowRecord:
        """Raises ``ValueError`` or ``LookupError`` for a line that is none."""
        kept: dict[str, Any] = json.loads(line)
        return WindowRecord(
            kept["gpu"],
            kept["family"],
            kept["program"],
            _window(kept["gpu"], kept["window"]),
            kept["truth"],
        )

    def to_json(self) -> str:
        window = {
            "seconds": self.window.seconds,
            "activity": self.window.activity.values if self.window.activity else None,
            "counters": self.window.activity.counters if self.window.activity else None,
            "busy": self.window.busy,
            "utilization": asdict(self.window.utilization) if self.window.utilization else None,
            "watts": [w for _, w in self.window.power.samples] if self.window.power else None,
            "power_limit": self.window.power_limit,
            "nvlink": self.window.nvlink,
            "pcie": self.window.pcie,
            "processes": None if self.window.processes is None else len(self.window.processes),
            "given": self.window.given,
            "quiet_for": self.window.quiet_for,
            "peers": self.window.peers,
            "resting_power": self.window.resting_power,
            "limits": asdict(self.window.limits),
        }
        line = {
            "gpu": self.gpu,
            "family": self.family,
            "program": self.program,
            "window": window,
            "truth": self.truth,
        }
        return json.dumps(_rounded(line), separators=(",", ":"))


def load(path: Path) -> Iterator[WindowRecord]:
    """The windows in a file."""
    with gzip.open(path, "rt") as lines:
        yield from map(WindowRecord.from_json, lines)


def save(path: Path, windows: Iterable[WindowRecord]) -> None:
    """Write a file of windows, of equal bytes for equal windows."""
    text = "".join(f"{one.to_json()}\n" for one in windows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _rounded(value: Any) -> Any:
    """With all numbers in it to ``DIGITS`` significant digits; JSON has no infinity."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}") if value < 1e18 else 1e18
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list():
            return [_rounded(each) for each in value]
    return value


def _window(gpu: str, kept: dict[str, Any]) -> Window:
    seconds, watts = kept["seconds"], kept["watts"]
    activity, counters, processes = kept["activity"], kept["counters"], kept["processes"]
    of_utilization = kept["utilization"]
    return Window(
        seconds=seconds,
        activity=None if activity is None else Activity(seconds, activity, counters),
        busy=kept["busy"],
        utilization=Utilization(**of_utilization) if of_utilization else None,
        power=None
        if watts is None
        else PowerWindow(tuple((seconds * at / len(watts), w) for at, w in enumerate(watts))),
        power_limit=kept["power_limit"],
        nvlink=kept["nvlink"],
        pcie=kept["pcie"],
        processes=None
        if processes is None
        else [Process(pid, None, "compute") for pid in range(processes)],
        given=kept["given"],
        quiet_for=kept["quiet_for"],
        peers=kept["peers"],
        resting_power=kept["resting_power"],
        limits=Limits(**kept["limits"]),
        ceilings=ceilings_of(Identity(0, "", gpu)),
    )
