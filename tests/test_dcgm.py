"""DCGM beside the driver: counters of GPUs without GPM, and dcgm-exporter's names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

from gpunode.config import Settings
from gpunode.export.dcgm_names import DcgmNames
from gpunode.gpu.activity import TEMPERATURE
from gpunode.gpu.health import INFO
from gpunode.jobs.owners import OWNER
from gpunode.loop import Loop
from gpunode.node.local import LocalNode
from gpunode.source import Place, Reading, Source
from tests.conftest import by_label, scrape, until, values, watching
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver
from tests.machine import exported

BINDINGS = Path(__file__).parent / "fakes" / "dcgm"
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


def test_a_gpu_without_gpm_has_the_counters_of_a_running_dcgm(
    a100: FakeDriver, tmp_path: Path
) -> None:
    script = tmp_path / "dcgm.json"
    script.write_text(json.dumps({"uuids": {"0": UUID}, "values": BUSY_A100}))
    with with_dcgm(a100, script) as running:
        tensor = "gpunode_gpu_active_seconds_total"
        until(lambda: values(scrape(running), tensor, unit="tensor") > [1.0])
        series = scrape(running)
        assert by_label(series, "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 1
        assert by_label(series, "gpunode_gpu_ledger_sensor", "sensor")["gpm"] == 0
        active = by_label(series, tensor, "unit")
        assert active["tensor"] / active["sm"] == pytest.approx(7 / 9)
        script.write_text(json.dumps({"uuids": {"0": UUID}, "values": BUSY_A100, "blank": True}))
        until(lambda: _stands_still(running, tensor))
        script.write_text(json.dumps({"error": "the host engine is gone"}))
        until(lambda: by_label(scrape(running), "gpunode_gpu_ledger_sensor", "sensor")["dcgm"] == 0)


def _stands_still(running: Daemon, name: str) -> bool:
    """Whether a counter gained nothing in a window."""
    before = values(scrape(running), name, unit="tensor")
    running.next_window()
    running.next_window()
    return values(scrape(running), name, unit="tensor") == before


def test_without_dcgm_the_ledger_does_without(a100: FakeDriver, tmp_path: Path) -> None:
    script = tmp_path / "dcgm.json"
    script.write_text(json.dumps({"error": "connection refused"}))
    with with_dcgm(a100, script) as running:
        running.next_window()
        series = scrape(running)
    sensors = by_label(series, "gpunode_gpu_ledger_sensor", "sensor")
    assert (sensors["dcgm"], sensors["gpm"], sensors["utilization"]) == (0, 0, 1)
    assert sum(values(series, "gpunode_gpu_seconds_total")) > 0


# What https://github.com/NVIDIA/dcgm-exporter exports by default and gpunode has no sensor for.
NOT_SENSED = {
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",  # 20 ms of blocking each; PROF_PCIE_* tell the same
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    "DCGM_FI_DEV_ENC_UTIL",
    "DCGM_FI_DEV_DEC_UTIL",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",  # without a unit; PROF_NVLINK_* tell bytes
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
}
DEFAULT_COUNTERS = {
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_MEM_CLOCK",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_ENC_UTIL",
    "DCGM_FI_DEV_DEC_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
}


def test_the_names_and_labels_of_dcgm_exporter_are_there(fake: FakeDriver) -> None:
    script = (
        f"gpu 0 uuid {UUID}\ngpu 0 process {os.getpid()} 1000\ngpu 0 gpm 5 62\n"
        "gpu 0 set ClockInfo.sm 1980\ngpu 0 set Temperature 71\n"
    )
    fake.write(script)
    with watching(fake, "--compat=dcgm", "--gpu.owners-interval=1") as running:
        until(lambda: values(scrape(running), "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"))
        fake.write(script + "gpu 0 xid 79 1\n")
        until(lambda: values(scrape(running), "DCGM_FI_DEV_XID_ERRORS") == [79])
        series = scrape(running)
        text = running.get("/metrics").decode()
    names = {name for name, _ in series}
    assert names >= DEFAULT_COUNTERS - NOT_SENSED
    assert values(series, "DCGM_FI_DEV_SM_CLOCK") == [1980]
    assert values(series, "DCGM_FI_DEV_GPU_TEMP") == [71]
    assert values(series, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == [pytest.approx(0.62)]
    free, used, reserved, total = (
        values(series, f"DCGM_FI_DEV_FB_{part}")[0]
        for part in ("FREE", "USED", "RESERVED", "TOTAL")
    )
    assert free + used + reserved == pytest.approx(total)
    found = re.search(r"^DCGM_FI_DEV_GPU_TEMP\{(.*)\}", text, re.M)
    assert found is not None
    assert re.sub(r'="[^"]*"', "", found[1]).split(",") == [
        "GPU_I_ID", "Hostname", "UUID", "container", "device", "gpu", "modelName", "namespace",
        "pci_bus_id", "pod",
    ]  # fmt: skip
    assert f'UUID="{UUID}"' in found[1]


class Held:
    """A GPU that two Slurm jobs hold."""

    name = "held"
    every = 1.0
    metrics = (INFO, OWNER, TEMPERATURE)

    def find(self) -> list[tuple[Place, Source]]:
        return [(Place("0", UUID), self)]

    def read(self) -> Reading:
        at = "0", UUID
        jobs = (OWNER.at(1.0, *at, "", "", "", job, "kim", "process") for job in ("1", "2"))
        info = INFO.at(1.0, *at, "NVIDIA H200", "0000:1b:00.0", "", "", "9.0", "")
        return Reading((*info, *chain(*jobs), *TEMPERATURE.at(71.0, *at)))


def test_owners_without_containers_make_no_series_twice(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    loop = Loop(node.clock, [Held()], find_every=10.0)
    for watched in loop.find():
        watched.step()
    found = exported(DcgmNames(node, Settings()).read(loop).samples).splitlines()
    assert len([line for line in found if line.startswith("DCGM_FI_DEV_GPU_TEMP")]) == 1


def test_they_are_not_there_unless_asked_for(fake: FakeDriver) -> None:
    fake.write("gpus 1\n")
    with watching(fake) as running:
        assert b"gpunode_gpu_info" in running.get("/metrics")
        assert b"DCGM_FI" not in running.get("/metrics")
