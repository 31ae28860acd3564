"""DCGM beside the driver: counters of GPUs without GPM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpunode.driver.driver import Unsupported
from gpunode.driver.nvidia.dcgm import STALE_AFTER, DcgmProfiling
from tests.conftest import by_label, scrape, until, values
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver

BINDINGS = Path(__file__).parents[1] / "fakes/dcgm"
UUID = "GPU-5a1e0000-0000-0000-0000-000000000000"

BUSY_A100 = {"1001": 1.0, "1002": 0.9, "1004": 0.7, "1005": 0.4, "1007": 0.1}


@contextmanager
def with_dcgm(fake: FakeDriver, script: Path, *options: str) -> Iterator[Daemon]:
    environment = {**os.environ, **fake.environment(), "FAKE_DCGM": str(script)}
    settings = (f"--dcgm.bindings={BINDINGS}", "--gpu.interval=1")
    with daemon(*settings, *options, environment=environment) as running:
        yield running


@pytest.fixture
def a100(old_fake: FakeDriver) -> FakeDriver:
    """A GPU without GPM at work."""
    old_fake.write(f"gpu 0 uuid {UUID}\ngpu 0 process 1 1000\ngpu 0 util 100\ngpu 0 power 390\n")
    return old_fake


def tell(script: Path, said: object) -> None:
    """Have the fake DCGM say this; it never reads half of it."""
    fresh = script.with_suffix(".new")
    fresh.write_text(json.dumps(said))
    fresh.replace(script)


def test_a_gpu_without_gpm_has_the_counters_of_dcgm_while_it_runs(
    a100: FakeDriver, tmp_path: Path
) -> None:
    a100.write(f"{a100.script.read_text()}gpu 0 field 139 - 0+9000000/s\n")
    script = tmp_path / "dcgm.json"
    tell(script, {"uuids": {"0": UUID}, "values": BUSY_A100, "blank": True})
    with with_dcgm(a100, script) as running:
        tensor, moved = "gpunode_gpu_active_seconds_total", "gpunode_gpu_nvlink_bytes_total"
        until(lambda: values(scrape(running), moved, direction="receive") > [0.0])
        paused = scrape(running)
        assert by_label(paused, "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 0
        assert by_label(paused, "gpunode_gpu_seconds_total", "state")["unknown"] == 0
        tell(script, {"uuids": {"0": UUID}, "values": BUSY_A100})
        until(lambda: values(scrape(running), tensor, unit="tensor") > [1.0])
        series = scrape(running)
        assert by_label(series, "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 1
        assert by_label(series, "gpunode_gpu_ledger_sensor", "sensor")["gpm"] == 0
        active = by_label(series, tensor, "unit")
        assert active["tensor"] / active["sm"] == pytest.approx(7 / 9)
        tell(script, {"uuids": {"0": UUID}, "values": BUSY_A100, "blank": True})
        until(lambda: _stands_still(running, tensor))
        until(lambda: by_label(scrape(running), "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 0)
        tell(script, {"uuids": {"0": UUID}, "values": BUSY_A100})
        until(lambda: by_label(scrape(running), "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 1)
        tell(script, {"error": "the host engine is gone"})
        until(lambda: by_label(scrape(running), "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 0)


def test_each_second_counts_once_whatever_the_windows() -> None:
    now = 100.0
    dcgm = DcgmProfiling("localhost", "/nowhere", lambda: now)
    counted = 0.0
    for tick in range(1, 81):  # windows of a burst, and DCGM's samples of each second
        now += 0.125
        if tick % 8 == 0:
            dcgm._hear({0: UUID}, {0: {1004: [SimpleNamespace(value=0.5, isBlank=False)]}})
        if tick >= 8:
            activity = dcgm.activity(UUID)
            counted += activity.seconds * activity.values.get("tensor", 0.0)
            assert ("tensor" in activity.values) == (tick % 8 == 0)
    assert counted == 0.5 * 10.0
    now += 2 * STALE_AFTER
    dcgm._hear({0: UUID}, {0: {1004: [SimpleNamespace(value=None, isBlank=True)]}})
    with pytest.raises(Unsupported):
        dcgm.activity(UUID)


def _stands_still(running: Daemon, name: str) -> bool:
    """Whether a counter gained nothing in a window."""
    before = values(scrape(running), name, unit="tensor")
    running.next_window()
    running.next_window()
    return values(scrape(running), name, unit="tensor") == before


def test_without_dcgm_the_ledger_does_without(a100: FakeDriver, tmp_path: Path) -> None:
    script = tmp_path / "dcgm.json"
    tell(script, {"error": "connection refused"})
    with with_dcgm(a100, script) as running:
        running.next_window()
        series = scrape(running)
    sensors = by_label(series, "gpunode_gpu_ledger_sensor", "sensor")
    assert (sensors["dcgm"], sensors["gpm"], sensors["utilization"]) == (0, 0, 1)
    assert sum(values(series, "gpunode_gpu_seconds_total")) > 0
