"""Sensors that only some GPUs have: through the fake driver to the exposition."""

from __future__ import annotations

from tests.conftest import Series, by_label, scrape, until, values, watching
from tests.fakes.nvml import FakeDriver

GRACE = """\
gpu 0 name NVIDIA GB200
gpu 0 set VirtualizationMode 1
gpu 0 set ConfComputeState.feature 1
gpu 0 set SramEccErrorStatus.exceeded 1
gpu 0 set UnrepairableMemoryFlag 1
gpu 0 set RowRemapperHistogram.none 1
gpu 0 field 251 - 1
gpu 0 field 258 - 97
gpu 0 field 185 1 1850000
gpu 0 field 190 1 2500000
gpu 0 field 170 - 2
gpu 0 field 171 0 1
gpu 0 field 171 1 0
gpu 0 field 232 0 40
gpu 0 field 232 1 2
"""
RARE = (
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag",
)
OPTIONAL = ("mode_active", "module_power", "smoothing", "c2c", "remap_banks", "memory_fault")


def test_what_only_some_gpus_have(fake: FakeDriver) -> None:
    fake.write(GRACE)
    with watching(fake) as daemon:
        until(lambda: values(scrape(daemon), "gpunode_gpu_module_power_watts"))
        series = scrape(daemon)
    assert by_label(series, "gpunode_gpu_mode_active", "mode") == {
        "passthrough": 1,
        "confidential_compute": 1,
        "power_smoothing": 1,
    }
    assert values(series, "gpunode_gpu_module_power_watts") == [1850]
    assert values(series, "gpunode_gpu_module_power_limit_watts") == [2500]
    assert values(series, "gpunode_gpu_power_smoothing_life_ratio") == [0.97]
    assert by_label(series, "gpunode_gpu_c2c_links", "state") == {"up": 1, "down": 1}
    assert by_label(series, "gpunode_gpu_c2c_errors_total", "kind") == {"replay": 42}
    assert by_label(series, "gpunode_gpu_memory_fault_info", "fault") == {
        "sram_threshold_exceeded": 1,
        "unrepairable": 1,
    }
    assert by_label(series, "gpunode_gpu_row_remap_banks", "spare") == {"none": 1}


def test_a_link_to_the_cpu_that_does_not_answer_is_no_reading(fake: FakeDriver) -> None:
    links = "gpu 0 field 170 - 2\ngpu 0 field 171 - 1\ngpu 0 field 231 - 3\n"
    links += "gpu 0 field 232 0 100\ngpu 0 field 232 1 fail 999\n"
    fake.write(links)
    with watching(fake) as daemon:
        until(lambda: values(scrape(daemon), "gpunode_gpu_c2c_links"))
        series = scrape(daemon)
        assert by_label(series, "gpunode_gpu_c2c_links", "state") == {"up": 2, "down": 0}
        assert by_label(series, "gpunode_gpu_c2c_errors_total", "kind") == {"interrupt": 6}
        fake.write(f"{links}gpu 0 field 171 1 fail 999\n")
        until(lambda: not values(scrape(daemon), "gpunode_gpu_c2c_links"))


def test_an_error_of_a_rare_sensor_hides_no_other(fake: FakeDriver) -> None:
    fake.write("".join(f"gpu 0 fail {call} 999\n" for call in RARE))
    with watching(fake) as daemon:
        until(lambda: values(scrape(daemon), "gpunode_gpu_persistence_mode"))
        series = scrape(daemon)
    assert not [name for name, _ in series if any(part in name for part in OPTIONAL)]
    assert values(series, "gpunode_gpu_persistence_mode") == [1]
    assert values(series, "gpunode_gpu_row_remap_pending") == [0]
    assert not any(values(series, "gpunode_unread_total", source="gpu_health"))


ALONE = """\
init 9
gpu 0 fail nvmlDeviceGetTemperature 999
gpu 0 fail nvmlDeviceGetClockInfo 10
gpu 0 fail nvmlDeviceGetRemappedRows 999
gpu 0 fail nvmlDeviceGetTotalEccErrors 999
"""
"""NVML cannot be opened again: nothing here is a reason to."""


def test_a_sensor_that_fails_costs_itself_and_is_counted(fake: FakeDriver) -> None:
    lost = ("temperature_celsius", "sm_clock_hertz", "row_remap_pending", "ecc_errors_total")

    def left(series: Series) -> list[str]:
        return [name for name in lost if values(series, f"gpunode_gpu_{name}")]

    fake.write("")
    with watching(fake, "--gpu.health-interval=1", "--discovery.interval=1") as daemon:
        until(lambda: left(scrape(daemon)) == [*lost])
        fake.write(ALONE)
        until(lambda: not left(scrape(daemon)))
        begun = sum(values(scrape(daemon), "gpunode_gpu_seconds_total"))
        until(lambda: sum(values(scrape(daemon), "gpunode_gpu_seconds_total")) > begun + 3)
        series = scrape(daemon)
    assert values(series, "gpunode_gpu_recovery_action") == [1]
    for source in ("gpu_activity", "gpu_health"):
        assert values(series, "gpunode_source_up", source=source) == [1]
        counts = values(series, "gpunode_unread_total", source=source, what="sensor_failed")
        assert sum(counts) >= 2


def test_what_the_driver_does_not_count_of_throttling_is_sampled(fake: FakeDriver) -> None:
    fake.write(
        "".join(f"gpu 0 field {field} - fail 3\n" for field in (269, 270, 271))
        + "gpu 0 field 74 - 5e9\ngpu 0 set CurrentClocksEventReasons 0x48\n"
    )

    def seconds() -> dict[str, float]:
        return by_label(scrape(daemon), "gpunode_gpu_throttled_seconds_total", "reason")

    with watching(fake, "--gpu.health-interval=1") as daemon:
        until(lambda: seconds().get("hw_thermal", 0) > 1)
        counted = seconds()
    counted.pop("hw_thermal")
    assert counted == {"sw_power_cap": 5, "sync_boost": 0, "sw_thermal": 0, "hw_power_brake": 0}


def test_an_ordinary_gpu_has_none_of_them(fake: FakeDriver) -> None:
    fake.write("gpus 1\n")
    with watching(fake) as daemon:
        until(lambda: values(scrape(daemon), "gpunode_gpu_persistence_mode"))
        series = scrape(daemon)
    assert not [name for name, _ in series if any(part in name for part in OPTIONAL)]


SPARK = """\
gpu 0 name NVIDIA GB10
gpu 0 set CudaComputeCapability.major 12
gpu 0 set CudaComputeCapability.minor 1
gpu 0 fail nvmlDeviceGetMemoryInfo 3
gpu 0 fail nvmlDeviceGetMemoryBusWidth 3
gpu 0 fail nvmlDeviceGetEnforcedPowerLimit 3
gpu 0 fail nvmlDeviceGetPowerManagementDefaultLimit 3
gpu 0 gpm 1 90
gpu 0 gpm 10 60
"""


def test_a_gpu_without_memory_of_its_own_says_so(fake: FakeDriver) -> None:
    fake.write(SPARK)
    with watching(fake) as daemon:
        until(lambda: values(scrape(daemon), "gpunode_gpu_mode_active"))
        until(lambda: values(scrape(daemon), "gpunode_gpu_power_watts"))
        series = scrape(daemon)
        assert b"NVIDIA GB10" in daemon.get("/api/v1/node")
    assert by_label(series, "gpunode_gpu_mode_active", "mode") == {"unified_memory": 1}
    assert not [name for name, _ in series if name.startswith("gpunode_gpu_memory_used")]
    assert values(series, "gpunode_memory_available_bytes")
    assert by_label(series, "gpunode_gpu_peak_flops_per_second", "precision") == {
        "half": 125e12,
        "fp8": 250e12,
    }
    assert not any(values(series, "gpunode_unread_total", source="gpu_health"))


def test_a_model_without_figures_is_counted_and_has_no_peak(fake: FakeDriver) -> None:
    fake.write("gpu 0 name NVIDIA Graphics Device\n")
    with watching(fake) as daemon:
        until(lambda: any(values(scrape(daemon), "gpunode_unread_total", what="gpu_model")))
        series = scrape(daemon)
    assert values(series, "gpunode_gpu_persistence_mode") == [1]
    assert not values(series, "gpunode_gpu_peak_flops_per_second")
