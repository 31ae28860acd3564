"""Ceilings that a site has measured: from sensors to the file, from the file to the ledger."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.driver.driver import Activity, Gpu, Identity, Limits
from gpunode.gpu.calibration import (
    PLAUSIBLE,
    calibration,
    format_ceilings,
    implausible,
    read_ceilings,
)
from gpunode.gpu.models import MEASURED_ON_H200, Ceilings
from gpunode.gpu.probe import ProbeError, ProbeResult, SensorReadings, measured_ceilings, probe
from gpunode.node.local import LocalNode
from tests.machine import MachineGpu

L40S = Identity(0, "GPU-0", "NVIDIA L40S", compute_capability="8.9")
PATH = "/var/lib/gpunode/calibration.json"

OF_AN_H100 = {
    "rest": SensorReadings({}, 125.0),
    "tensor": SensorReadings({"graphics": 1.0, "sm": 0.98, "tensor": 0.93, "dram": 0.24}, 690.0),
    "pipe": SensorReadings({"graphics": 1.0, "sm": 0.99, "fp32": 0.77}, 600.0),
    "dram": SensorReadings({"graphics": 1.0, "sm": 0.97, "dram": 0.89}, 480.0),
}
"""What an H100 showed, rounded."""


def probed(**readings: SensorReadings) -> ProbeResult:
    return ProbeResult(
        {**OF_AN_H100, **readings}, 132, Limits(nvlink_bytes_per_second=450e9), 700.0
    )


def calibrated(**readings: SensorReadings) -> Ceilings:
    return measured_ceilings(cast(Gpu, SimpleNamespace(identity=L40S)), probed(**readings))


class CountingGpu(MachineGpu):
    """A GPU with counters."""

    def activity(self) -> Activity:
        return Activity(4.0, {"graphics": 1.0})


def node(folder: Path, text: str | None = None) -> LocalNode:
    """A node with such a file, or without one."""
    if text is not None:
        path = folder / PATH.lstrip("/")
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return LocalNode(folder)


def test_the_sensors_tell_the_ceilings() -> None:
    ceilings = calibrated()
    assert (ceilings.tensor, ceilings.pipe, ceilings.dram) == (0.93, 0.77, 0.89)
    assert ceilings.dram_of_tensor == pytest.approx(0.24 / 0.93)
    assert ceilings.resting_power == pytest.approx(125 / 700)
    assert not implausible(ceilings)


def test_a_collective_tells_what_the_links_reach() -> None:
    moved = {"nvlink_receive": 234e9, "nvlink_transmit": 240e9, "sm": 24 / 132}
    ceilings = calibrated(collective=SensorReadings(moved, 295.0))
    assert ceilings.nvlink_channels == 24
    assert ceilings.nvlink_of_collective == pytest.approx(0.52)


def test_a_gpu_that_others_disturb_is_not_measured() -> None:
    with pytest.raises(ProbeError, match=r"`dram` ran for 60% of the time"):
        calibrated(dram=SensorReadings({"graphics": 0.6, "dram": 0.5}, 300.0))


def test_what_a_site_has_measured_is_used_and_told(tmp_path: Path) -> None:
    here = node(tmp_path, format_ceilings({L40S.name: replace(MEASURED_ON_H200, tensor=0.8)}))
    calibrated = calibration(here, L40S, PATH)
    assert (calibrated.own, calibrated.ceilings.tensor) == (True, 0.8)
    other = calibration(here, replace(L40S, name="NVIDIA L4"), PATH)
    assert (other.own, other.measured_on) == (False, "H200")


def test_instances_have_what_was_measured_of_their_gpu(tmp_path: Path) -> None:
    here = node(tmp_path, '{"NVIDIA B200": {"tensor": 0.8}}')
    instance = replace(L40S, name="NVIDIA B200 MIG 1g.23gb", mig=True)
    assert calibration(here, instance, PATH).ceilings.tensor == 0.8


PROBED = """
import os, select, sys
print("ready", 132, flush=True)
for name in sys.stdin:
    if name.strip() == "collective":
        {then}
    print("begun", flush=True)
"""


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("sys.exit('the collective did not begin within 60 s')", "did not begin within 60 s"),
        ("select.select([], [], [])", "did not go on within 0.5 s"),
    ],
)
def test_a_collective_that_does_not_begin_costs_the_links_alone(
    then: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "probed.py").write_text(PROBED.format(then=then))
    monkeypatch.setattr("gpunode.gpu.probe.PROGRAM", tmp_path / "probed.py")
    monkeypatch.setattr("gpunode.gpu.probe.LINE_TIMEOUT", 0.5 if "select" in then else 60.0)
    monkeypatch.setattr("gpunode.gpu.probe.SETTLE", 0.0)
    monkeypatch.setattr("gpunode.gpu.probe.MEASURE", 0.0)
    gpus = cast(list[Gpu], [CountingGpu(index, f"GPU-{index}", "") for index in range(2)])
    assert set(probe(gpus[0], gpus[1:]).readings) == {"rest", "tensor", "pipe", "dram"}
    assert why in caplog.text


def test_without_a_file_a_gpu_has_the_ceilings_of_its_model(tmp_path: Path) -> None:
    assert not calibration(node(tmp_path), L40S, PATH).own
    assert calibration(node(tmp_path), replace(L40S, name="NVIDIA H200"), "").own


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "EOF"),
        ('{"NVIDIA L40S": {"tensor": 7}}', "tensor is 7, which is not between 0.3 and 1"),
        ('{"NVIDIA L40S": {"tensors": 0.9}}', "tensors is no ceiling"),
        ('{"NVIDIA L40S": {"tensor": "NaN"}}', "tensor: Input should be a finite number"),
        ('{"NVIDIA L40S": {"sms": Infinity}}', "sms: Input should be a finite number"),
        ('{"NVIDIA L40S": {}}', "NVIDIA L40S: has no ceiling"),
    ],
)
def test_a_file_that_cannot_be_is_not_used_and_the_log_says_why(
    tmp_path: Path, text: str, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not calibration(node(tmp_path, text), L40S, PATH).own
    assert complaint in caplog.text
    assert caplog.text.count("\n") == 1


@given(
    st.fixed_dictionaries(
        {
            name: st.integers(int(low), int(high))
            if isinstance(getattr(MEASURED_ON_H200, name), int)
            else st.floats(low, high)
            for name, (low, high) in PLAUSIBLE.items()
        }
    )
)
def test_what_is_written_is_read_again(values: dict[str, float]) -> None:
    ceilings = Ceilings(**values)  # type: ignore[arg-type]
    read = asdict(read_ceilings(format_ceilings({"NVIDIA L40S": ceilings}))["NVIDIA L40S"])
    assert read == pytest.approx(asdict(ceilings), rel=0.01, abs=1e-6)
