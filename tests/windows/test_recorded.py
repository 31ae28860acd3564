"""Recorded windows survive being written and read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpunode.driver.driver import Activity, Limits, Process, Utilization
from gpunode.gpu.buffers import PowerWindow
from gpunode.gpu.ledger import split
from gpunode.gpu.window import Window
from tests.windows.recorded import WindowRecord, load, save

TRUTH = {"compute": 0.4, "starved": 0.6}
WATTS = tuple((0.02 * at, 120.0 + 300.0 * (at % 5 == 0)) for at in range(100))


def window(**readings: object) -> Window:
    return Window(seconds=2.0, **readings)  # type: ignore[arg-type]


WINDOWS = (
    window(),
    window(
        activity=Activity(2.0, {"graphics": 0.5, "sm": 0.4, "tensor": 0.2, "dram": 0.1}),
        busy=0.51,
        utilization=Utilization(0.6, 0.2),
        power=PowerWindow(WATTS),
        power_limit=700.0,
        nvlink=1e9,
        pcie=2e9,
        processes=[Process(7, None, "compute")],
        quiet_for=math.inf,
        peers=False,
        resting_power=120.0,
        limits=Limits(4.8e12, 4.5e11, 6.4e10),
    ),
)


@pytest.mark.parametrize("seen", WINDOWS)
def test_a_window_is_divided_as_before_it_was_kept(seen: Window, tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl.gz"
    save(path, [WindowRecord("NVIDIA H200", "family", "program", seen, TRUTH)])
    [kept] = load(path)
    assert (kept.gpu, kept.family, kept.program, kept.truth) == (
        "NVIDIA H200",
        "family",
        "program",
        TRUTH,
    )
    assert split(kept.window) == pytest.approx(split(seen), abs=1e-3)


def test_equal_windows_make_equal_files(tmp_path: Path) -> None:
    kept = [WindowRecord("NVIDIA H200", "family", "program", each, TRUTH) for each in WINDOWS]
    for name in ("a", "b"):
        save(tmp_path / name, kept)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
