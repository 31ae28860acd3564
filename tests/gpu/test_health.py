"""Sensors that only some GPUs have, or that fail: through the fake driver to the exposition.

One daemon watches a GPU of each kind, of which some change while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Series, by_label, scrape, until, values, watching
from tests.daemon import Daemon
from tests.fakes.nvml import FakeDriver

NOT_SUPPORTED, UNKNOWN = 3, 999
GRACE, ORDINARY, SPARK, UNLISTED, FAILING, C2C, SAMPLED, DOWN, PARTLY = map(str, range(9))

OF_GRACE = """\
name NVIDIA GB200
set VirtualizationMode 1
set ConfComputeState.feature 1
set SramEccErrorStatus.exceeded 1
set UnrepairableMemoryFlag 1
set RowRemapperHistogram.none 1
field 251 - 1
field 258 - 97
field 185 1 1850000
field 190 1 2500000
field 170 - 2
field 171 0 1
field 171 1 0
field 232 0 40
field 232 1 2
"""
OF_SPARK = """\
name NVIDIA GB10
set CudaComputeCapability.major 12
set CudaComputeCapability.minor 1
fail nvmlDeviceGetMemoryInfo 3
fail nvmlDeviceGetMemoryBusWidth 3
fail nvmlDeviceGetEnforcedPowerLimit 3
fail nvmlDeviceGetPowerManagementDefaultLimit 3
gpm 1 90
gpm 10 60
"""
RARE = """\
fail nvmlDeviceGetVirtualizationMode 999
fail nvmlDeviceGetRowRemapperHistogram 999
fail nvmlDeviceGetSramEccErrorStatus 999
fail nvmlDeviceGetUnrepairableMemoryFlag 999
"""
LINKS = "field 170 - 2\nfield 171 - 1\nfield 231 - 3\nfield 232 0 100\nfield 232 1 fail 999\n"
THROTTLED = """\
field 269 - fail 3
field 270 - fail 3
field 271 - fail 3
field 74 - 5e9
set CurrentClocksEventReasons 0x48
"""
ALONE = """\
fail nvmlDeviceGetTemperature 999
fail nvmlDeviceGetClockInfo 10
fail nvmlDeviceGetRemappedRows 999
fail nvmlDeviceGetTotalEccErrors 999
"""


def down(*links: int) -> str:
    """NVLinks that are down, and answer for their state alone, as on an H100 NVL."""
    speed, state, errors = 164, 165, (161, 162, 163)
    return "".join(
        f"field {state} {link} 0\n"
        + "".join(f"field {n} {link} fail {NOT_SUPPORTED}\n" for n in (speed, *errors))
        for link in links
    )


FIRST = {
    GRACE: OF_GRACE,
    SPARK: OF_SPARK,
    UNLISTED: "name NVIDIA Graphics Device\n",
    FAILING: RARE,
    C2C: LINKS,
    SAMPLED: THROTTLED,
    DOWN: down(*range(18)),
    PARTLY: down(*range(6)) + "field 161 7 5\n",
}
THEN = {
    **FIRST,
    ORDINARY: ALONE,
    C2C: f"{LINKS}field 171 1 fail {UNKNOWN}\n",
    DOWN: "field 161 3 900\n",
    PARTLY: f"{down(*range(6))}field 161 7 fail {NOT_SUPPORTED}\n",
}
OPTIONAL = ("module_power", "smoothing", "c2c", "remap_banks", "memory_fault")
OF_THE_NODE = {"confidential_compute": 1.0}
"""What the driver says of all GPUs at once."""

LOST = ("temperature_celsius", "sm_clock_hertz", "row_remap_pending", "ecc_errors_total")


def script(gpus: dict[str, str]) -> str:
    lines = [f"gpu {gpu} {line}" for gpu, said in gpus.items() for line in said.splitlines()]
    return "\n".join(["gpus 9", *lines, ""])


@dataclass(frozen=True, slots=True)
class TwoPages:
    """What was exported first, and then."""

    first: Series
    page: bytes
    then: Series


def seconds(series: Series) -> float:
    return sum(values(series, "gpunode_gpu_seconds_total", gpu=ORDINARY))


def modes(series: Series, gpu: str) -> dict[str, float]:
    return by_label(series, "gpunode_gpu_mode_active", "mode", gpu=gpu)


def throttled(series: Series) -> dict[str, float]:
    return by_label(series, "gpunode_gpu_throttled_seconds_total", "reason", gpu=SAMPLED)


def replays(series: Series, gpu: str) -> float | None:
    return by_label(series, "gpunode_gpu_nvlink_errors_total", "kind", gpu=gpu).get("replay")


def remaining_metrics(series: Series) -> list[str]:
    """What is told of that which an ordinary GPU loses."""
    return [name for name in LOST if values(series, f"gpunode_gpu_{name}", gpu=ORDINARY)]


def has_begun(series: Series) -> bool:
    return (
        len(values(series, "gpunode_gpu_persistence_mode")) == 9
        and len(values(series, "gpunode_gpu_power_watts")) == 9
        and len(values(series, "gpunode_gpu_nvlink_up", gpu=DOWN)) == 18
        and replays(series, PARTLY) == 5
        and throttled(series).get("hw_thermal", 0) > 1
        and remaining_metrics(series) == [*LOST]
    )


def has_changed(series: Series) -> bool:
    return (
        not remaining_metrics(series)
        and not values(series, "gpunode_gpu_c2c_links", gpu=C2C)
        and replays(series, DOWN) == 900
        and replays(series, PARTLY) is None
    )


def once(running: Daemon, holds: Callable[[Series], bool]) -> Series:
    """The first series of which this holds."""

    def told() -> Series | None:
        series = scrape(running)
        return series if holds(series) else None

    return until(told)


@pytest.fixture(scope="module")
def told(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> TwoPages:
    fake = FakeDriver(fake_library, tmp_path_factory.mktemp("gpus") / "nvml.script")
    fake.write(script(FIRST))
    with watching(fake, "--gpu.nvlink-interval=1", "--discovery.interval=1") as running:
        first, page = once(running, has_begun), running.get("/api/v1/node")
        # NVML cannot be opened again: nothing here is a reason to.
        fake.write("init 9\n" + script(THEN))
        begun = seconds(once(running, has_changed))
        return TwoPages(first, page, once(running, lambda now: seconds(now) > begun + 3))


def test_what_only_some_gpus_have(told: TwoPages) -> None:
    assert modes(told.first, GRACE) == {"passthrough": 1, "power_smoothing": 1, **OF_THE_NODE}
    assert values(told.first, "gpunode_gpu_module_power_watts") == [1850]
    assert values(told.first, "gpunode_gpu_module_power_limit_watts") == [2500]
    assert values(told.first, "gpunode_gpu_power_smoothing_life_ratio") == [0.97]
    assert by_label(told.first, "gpunode_gpu_c2c_links", "state", gpu=GRACE) == {"up": 1, "down": 1}
    errors = by_label(told.first, "gpunode_gpu_c2c_errors_total", "kind", gpu=GRACE)
    assert errors == {"replay": 42}
    assert by_label(told.first, "gpunode_gpu_memory_fault_info", "fault") == {
        "sram_threshold_exceeded": 1,
        "unrepairable": 1,
    }
    assert by_label(told.first, "gpunode_gpu_row_remap_banks", "spare", gpu=GRACE) == {"none": 1}


@pytest.mark.parametrize("gpu", [ORDINARY, FAILING])
def test_a_gpu_without_them_has_all_else(told: TwoPages, gpu: str) -> None:
    """Whether they are not there or their error is unknown, which hides no other."""
    assert modes(told.first, gpu) == OF_THE_NODE
    names = {name for name, labels in told.first if ("gpu", gpu) in labels}
    assert not [name for name in names if any(part in name for part in OPTIONAL)]
    assert values(told.first, "gpunode_gpu_persistence_mode", gpu=gpu) == [1]
    assert values(told.first, "gpunode_gpu_row_remap_pending", gpu=gpu) == [0]


def test_a_link_to_the_cpu_that_does_not_answer_is_no_reading(told: TwoPages) -> None:
    assert by_label(told.first, "gpunode_gpu_c2c_links", "state", gpu=C2C) == {"up": 2, "down": 0}
    errors = by_label(told.first, "gpunode_gpu_c2c_errors_total", "kind", gpu=C2C)
    assert errors == {"interrupt": 6}
    assert not values(told.then, "gpunode_gpu_c2c_links", gpu=C2C)


def test_a_sensor_that_fails_costs_itself_and_is_counted(told: TwoPages) -> None:
    assert (remaining_metrics(told.first), remaining_metrics(told.then)) == ([*LOST], [])
    assert values(told.then, "gpunode_gpu_recovery_action", gpu=ORDINARY) == [1]
    for source in ("gpu_activity", "gpu_health"):
        assert 0 not in values(told.then, "gpunode_source_up", source=source, gpu=ORDINARY)
        failed = {"source": source, "what": "sensor_failed"}
        (before,), (after,) = (
            values(series, "gpunode_unread_total", **failed) for series in (told.first, told.then)
        )
        assert (before, after >= 2) == (0, True)


def test_what_the_driver_does_not_count_of_throttling_is_sampled(told: TwoPages) -> None:
    counted = throttled(told.first)
    assert counted.pop("hw_thermal") > 1
    none = dict.fromkeys(
        ("sync_boost", "sw_thermal", "hw_power_brake", "board_limit", "reliability"), 0
    )
    assert counted == {"sw_power_cap": 5, **none}


def test_a_gpu_without_memory_of_its_own_says_so(told: TwoPages) -> None:
    assert b"NVIDIA GB10" in told.page
    assert modes(told.first, SPARK) == {"unified_memory": 1, **OF_THE_NODE}
    assert not values(told.first, "gpunode_gpu_memory_used_bytes", gpu=SPARK)
    assert values(told.first, "gpunode_memory_available_bytes")
    assert by_label(told.first, "gpunode_gpu_peak_flops_per_second", "precision", gpu=SPARK) == {
        "half": 125e12,
        "fp8": 250e12,
    }


def test_a_model_without_figures_is_counted_and_has_no_peak(told: TwoPages) -> None:
    assert any(values(told.first, "gpunode_unread_total", what="gpu_model"))
    assert values(told.first, "gpunode_gpu_persistence_mode", gpu=UNLISTED) == [1]
    assert not values(told.first, "gpunode_gpu_peak_flops_per_second", gpu=UNLISTED)
    assert values(told.first, "gpunode_gpu_peak_flops_per_second", gpu=ORDINARY)


def test_nvlinks_that_were_down_are_read_in_full_once_they_are_up(told: TwoPages) -> None:
    assert values(told.first, "gpunode_gpu_nvlink_up", gpu=DOWN) == [0] * 18
    assert replays(told.first, DOWN) is None
    (speed,) = values(told.then, "gpunode_gpu_nvlink_speed_bytes_per_second", gpu=DOWN)
    assert (replays(told.then, DOWN), speed) == (900, 18 * 26562e6)


def test_nvlinks_that_are_not_there_hide_no_error_of_the_others(told: TwoPages) -> None:
    assert (replays(told.first, PARTLY), replays(told.then, PARTLY)) == (5, None)
    assert sum(values(told.then, "gpunode_gpu_nvlink_up", gpu=PARTLY)) == 12
