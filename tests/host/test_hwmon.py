"""Fans and temperatures: which of a chip's sensors are exported, and what counts as unread."""

from __future__ import annotations

from pathlib import Path

from gpunode.config.daemon import Settings
from gpunode.host.hwmon import FAN, FANS, TEMPERATURE, Hwmon
from gpunode.node.local import LocalNode
from gpunode.source import Reading


def hwmon(root: Path, files: dict[str, str]) -> Hwmon:
    write(root, files)
    return Hwmon(LocalNode(root), Settings())


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / "sys/class/hwmon" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def values(reading: Reading) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in reading.samples}


def test_a_fan_that_never_turned_has_no_series_and_one_that_stopped_has(tmp_path: Path) -> None:
    source = hwmon(
        tmp_path,
        {"hwmon0/name": "nct6798", "hwmon0/fan1_input": "5000", "hwmon0/fan2_input": "0"},
    )
    assert values(source.read()) == {("nct6798", "fan1"): 5000.0}
    write(tmp_path, {"hwmon0/fan1_input": "0"})
    assert values(source.read()) == {("nct6798", "fan1"): 0.0}


def test_temperatures_of_single_cores_and_unnamed_ones_are_left_out(tmp_path: Path) -> None:
    source = hwmon(
        tmp_path,
        {
            "hwmon0/name": "coretemp",
            "hwmon0/temp1_label": "Package id 0",
            "hwmon0/temp1_input": "61000",
            "hwmon0/temp2_label": "Core 0",
            "hwmon0/temp2_input": "60000",
            "hwmon1/name": "acpitz",
            "hwmon1/temp1_input": "27800",
        },
    )
    assert values(source.read()) == {("coretemp", "Package id 0", "processor"): 61.0}


def test_two_processors_of_one_kind_are_told_apart(tmp_path: Path) -> None:
    chips = {f"hwmon{chip}/name": "k10temp" for chip in (2, 10)}
    labels = {f"hwmon{chip}/temp1_label": "Tctl" for chip in (2, 10)}
    heat = {"hwmon2/temp1_input": "50000", "hwmon10/temp1_input": "55000"}
    assert values(hwmon(tmp_path, {**chips, **labels, **heat}).read()) == {
        ("k10temp", "Tctl", "processor"): 50.0,
        ("k10temp", "Tctl (2)", "processor"): 55.0,
    }


def test_a_value_that_no_sensor_has_is_unread(tmp_path: Path) -> None:
    source = hwmon(
        tmp_path,
        {
            "hwmon0/name": "pmbus",
            "hwmon0/fan1_input": "N/A",
            "hwmon0/temp1_label": "Inlet",
            "hwmon0/temp1_input": "999999",
        },
    )
    reading = source.read()
    assert not reading.samples
    assert [unread.kind.what for unread in reading.unread] == ["sensor_value"] * 2
    assert reading.unread[0].example == "fan1_input of pmbus: a/a"


def test_however_many_fans_there_are_the_series_are_bounded(tmp_path: Path) -> None:
    fans = {f"hwmon0/fan{number}_input": "5000" for number in range(100)}
    reading = hwmon(tmp_path, {"hwmon0/name": "x" * 100, **fans}).read()
    assert len(reading.samples) == FANS
    assert {sample.metric for sample in reading.samples} == {FAN}
    assert max(len(sample.labels[0]) for sample in reading.samples) <= 40


def test_where_the_kernel_has_no_sensors_there_is_nothing(tmp_path: Path) -> None:
    assert hwmon(tmp_path, {}).read() == Reading(())
    assert TEMPERATURE in Hwmon.metrics
