"""What a daemon makes of GPUs that work, idle, fail, hang, change and vanish."""

from __future__ import annotations

import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpunode.driver.nvidia.xids import HARDWARE_XIDS
from gpunode.gpu.ledger import STATES
from gpunode.jobs.owners import GpuOwners
from gpunode.verdict.held_up import HELD_UP
from tests.conftest import INTERVAL, Series, by_label, scrape, until, values, watching
from tests.daemon import Daemon
from tests.fakes.nvml import LIBRARY_NAME, FakeDriver

pytestmark = pytest.mark.attack
"""Windows of half a second of a daemon in real time."""

COMPUTING = """
gpu {gpu} process 4242 1000000000
gpu {gpu} power 690
gpu {gpu} util 100
gpu {gpu} gpm 1 100
gpu {gpu} gpm 2 95
gpu {gpu} gpm 5 90
gpu {gpu} gpm 10 17
gpu {gpu} gpm 20 3
gpu {gpu} gpm 21 20
"""
STARVED = """
gpu {gpu} process 4243 1000000000
gpu {gpu} power square 690 120 0.1 0.2
gpu {gpu} util 33
gpu {gpu} gpm 1 30
gpu {gpu} gpm 2 28
gpu {gpu} gpm 5 26
"""


def growth(running: Daemon, gpu: int, windows: int = 4) -> tuple[dict[str, float], float]:
    """Seconds by state that a few windows added to a GPU's ledger, and how long they took."""
    begin, before, _ = running.next_window(gpu)
    for _ in range(windows):
        end, after, _ = running.next_window(gpu)
    return {state: after[state] - before[state] for state in STATES}, end - begin


def shares(running: Daemon, gpu: int = 0, windows: int = 4) -> dict[str, float]:
    """What share of a few windows went to each state."""
    grown, _ = growth(running, gpu, windows)
    return {state: seconds / sum(grown.values()) for state, seconds in grown.items()}


def series_of(series: Series, gpu: int) -> set[str]:
    """The names of all that is exported of a GPU, but what says that it is lost and whose it is."""
    found = {n for n, have in series if n.startswith("gpunode_gpu_") and ("gpu", str(gpu)) in have}
    return found - {metric.name for metric in (HELD_UP, *GpuOwners.metrics)}


def accounted(series: Series, gpu: int) -> float:
    """All the seconds in a GPU's ledger."""
    return sum(values(series, "gpunode_gpu_seconds_total", gpu=str(gpu)))


def up(series: Series, gpu: int) -> float:
    (value,) = values(series, "gpunode_source_up", source="gpu_activity", gpu=str(gpu))
    return value


def driver_found(running: Daemon) -> float:
    (value,) = values(scrape(running), "gpunode_source_up", source="gpu")
    return value


def await_gone(running: Daemon, gpu: int) -> None:
    until(lambda: not series_of(scrape(running), gpu), timeout=3 * INTERVAL + 5)
    assert up(scrape(running), gpu) == 0
    until(lambda: values(scrape(running), HELD_UP.name, gpu=str(gpu), cause="gpu_lost"))


def await_back(running: Daemon, gpu: int) -> Series:
    until(lambda: accounted(scrape(running), gpu) > 0)
    series = scrape(running)
    assert up(series, gpu) == 1
    return series


def assert_goes_on(running: Daemon, gpu: int) -> None:
    before = accounted(scrape(running), gpu)
    assert before > 0
    until(lambda: accounted(scrape(running), gpu) > before)


def test_every_second_of_busy_starved_and_free_gpus_lands_in_its_state(fake: FakeDriver) -> None:
    fake.write("gpus 3\n" + COMPUTING.format(gpu=0) + STARVED.format(gpu=1))
    expected = [{"compute": 1.0}, {"compute": 0.3, "starved": 0.7}, {"free": 1.0}]
    with watching(fake) as running, ThreadPoolExecutor(3) as side_by_side:
        grown = list(side_by_side.map(lambda gpu: growth(running, gpu, windows=12), range(3)))
    for (seconds, elapsed), wanted in zip(grown, expected, strict=True):
        assert sum(seconds.values()) == pytest.approx(elapsed, rel=0.01, abs=0.1)
        assert {state: s / elapsed for state, s in seconds.items()} == pytest.approx(
            {state: wanted.get(state, 0.0) for state in STATES}, abs=0.06
        )


def test_a_sensor_that_one_gpu_lacks_costs_that_gpu_its_series_only(fake: FakeDriver) -> None:
    fake.write(
        "gpus 2\n" + COMPUTING.format(gpu=0) + COMPUTING.format(gpu=1) + "\n"
        "gpu 1 fail nvmlDeviceGetTemperature 3\n"
        "gpu 1 fail nvmlDeviceGetUtilizationRates 3\n"
        "gpu 1 field 82 - fail 3\n"
    )
    missing = {
        "gpunode_gpu_temperature_celsius",
        "gpunode_gpu_utilization_ratio",
        "gpunode_gpu_memory_temperature_celsius",
    }
    with watching(fake) as running:
        until(lambda: series_of(scrape(running), 1) >= {"gpunode_gpu_info"})
        series = scrape(running)
        assert series_of(series, 0) - series_of(series, 1) == missing
        assert up(series, 1) == 1
        assert shares(running, gpu=1)["compute"] == pytest.approx(1, abs=0.03)


def test_a_hanging_gpu_falls_silent_alone_and_comes_back(fake: FakeDriver) -> None:
    fake.write("gpus 2\n")
    with watching(fake) as running:
        until(lambda: series_of(scrape(running), 1))
        fake.write("gpus 2\ngpu 1 hang nvmlDeviceGetTemperature 600\n")
        await_gone(running, 1)
        asked = time.monotonic()
        scrape(running)
        assert time.monotonic() - asked < 2
        assert_goes_on(running, 0)
        with ThreadPoolExecutor(20) as scrapers:
            pages = list(scrapers.map(lambda _: scrape(running), range(20)))
        assert all(accounted(page, 0) > 0 for page in pages)
        fake.write("gpus 2\n")
        await_back(running, 1)
        grown, elapsed = growth(running, 1)
        assert sum(grown.values()) == pytest.approx(elapsed, rel=0.01, abs=0.1)


FAILING = """
gpus 4
gpu 1 lost
gpu 2 fail nvmlGpmSampleGet 10
gpu 3 fail nvmlDeviceGetUtilizationRates 999
"""
"""GPU 0 is well, one fell off the bus, the firmware of one hangs, one fails as drivers do."""


def test_failing_gpus_fall_silent_alone_and_come_back(
    fake: FakeDriver, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.write("gpus 4\n")
    with watching(fake) as running:
        until(lambda: all(series_of(scrape(running), gpu) for gpu in range(4)))
        fake.write(FAILING)
        for gpu in (1, 2, 3):
            await_gone(running, gpu)
        growth(running, gpu=0, windows=4)
        fake.write("gpus 4\n")
        for gpu in (1, 2, 3):
            await_back(running, gpu)
    log = capfd.readouterr().err
    for gpu in (1, 2, 3):
        assert len(re.findall(f"WARNING.*gpu_activity, GPU {gpu}: read failed", log)) == 1
        assert len(re.findall(f"INFO.*gpu_activity, GPU {gpu}: reads succeed again", log)) == 1


def test_a_lost_gpu_is_still_that_of_the_process_that_held_it(fake: FakeDriver) -> None:
    held = f"gpus 2\ngpu 1 process {os.getpid()} 1000000000\n"
    fake.write(held)

    def owned(running: Daemon, owner: str = "gpunode_gpu_owner_info") -> list[float]:
        return values(scrape(running), owner, gpu="1")

    with watching(fake) as running:
        until(lambda: owned(running) == [1.0])
        fake.write(f"{held}gpu 1 lost\n")
        until(lambda: up(scrape(running), 1) == 0, timeout=3 * INTERVAL + 5)
        until(lambda: not accounted(scrape(running), 1))
        time.sleep(6)  # its owner is looked at each five seconds
        assert owned(running) == owned(running, "gpunode_gpu_allocated") == [1.0]
        fake.write("gpus 2\n")
        until(lambda: not owned(running))


def test_xid_errors_are_counted(fake: FakeDriver) -> None:
    def xids(label: str = "gpunode_gpu_xid_errors_total") -> dict[str, float]:
        return by_label(scrape(running), label, "xid", gpu="0")

    fake.write("")
    with watching(fake) as running:
        assert xids() == dict.fromkeys(map(str, HARDWARE_XIDS), 0)
        assert xids("gpunode_gpu_xid_last_timestamp_seconds") == {}
        begin = time.time()
        fake.write("gpu 0 xid 79 1\ngpu 0 xid 79 2\ngpu 0 xid 13 3\n")
        until(lambda: xids().get("13"))
        assert xids() == {**dict.fromkeys(map(str, HARDWARE_XIDS), 0), "79": 2, "13": 1}
        times = xids("gpunode_gpu_xid_last_timestamp_seconds")
        assert times.keys() == {"79", "13"}
        assert all(begin - 1 <= moment <= time.time() + 1 for moment in times.values())


def test_a_value_that_has_no_name_is_counted_as_unread(fake: FakeDriver) -> None:
    def counted() -> float:
        (count,) = values(
            scrape(running), "gpunode_unread_total", source="gpu_health", what="enum_value"
        )
        return count

    fake.write("")
    with watching(fake, "--gpu.health-interval=1") as running:
        until(lambda: values(scrape(running), "gpunode_gpu_fabric_ready"))
        assert counted() == 0
        fake.write("gpu 0 set GpuFabricInfoV.health_mask 0x98ff01aa\n")
        until(lambda: counted() > 1)
        assert values(scrape(running), "gpunode_gpu_fabric_healthy", part="bandwidth") == [1]


DOMAIN = """
gpu 0 set GpuFabricInfoV.cluster 0xc1
gpu 0 set GpuFabricInfoV.clique 32766
gpu 0 set GpuFabricInfoV.health_mask 0x21aa
gpu 0 set GpuFabricInfoV.health_summary 2
"""


def test_a_gpu_says_which_domain_it_is_in_and_what_is_wrong_there(fake: FakeDriver) -> None:
    fake.write(DOMAIN)
    with watching(fake) as running:
        until(lambda: values(scrape(running), "gpunode_gpu_fabric_ready"))
        series = scrape(running)
    assert values(
        series,
        "gpunode_gpu_info",
        cluster_uuid="c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1",
        clique_id="32766",
    ) == [1]
    assert by_label(series, "gpunode_gpu_fabric_healthy", "part", gpu="0") == {
        **dict.fromkeys(("bandwidth", "route_recovery", "route", "access_timeout"), 1),
        "configuration": 1,
        "partition": 0,
        "summary": 0,
    }
    assert by_label(series, "gpunode_gpu_fabric_fault_info", "fault", gpu="0") == {
        "not_assigned": 1,
        "unhealthy": 1,
    }


def test_only_links_with_errors_have_series_of_their_own(fake: FakeDriver) -> None:
    fake.write(
        "gpu 0 field 213 - 0\ngpu 0 field 213 14 505\n"
        "gpu 0 field 220 - 0xfff\ngpu 0 field 220 14 0x30b\n"
    )
    with watching(fake) as running:
        until(lambda: values(scrape(running), "gpunode_gpu_nvlink_up"))
        series = scrape(running)
    errors = "gpunode_gpu_nvlink_link_errors_total"
    assert values(series, errors) == [505]
    assert values(series, errors, link="14", kind="recovery_successful") == [505]
    assert values(series, "gpunode_gpu_nvlink_bit_error_ratio") == [pytest.approx(3e-11)]


def counters(series: Series) -> dict[str, float]:
    """Counters that grow by a known rate while a GPU runs ``COMPUTING``."""
    energy = sum(values(series, "gpunode_gpu_energy_joules_total"))
    (bytes_out,) = values(series, "gpunode_gpu_pcie_bytes_total", direction="transmit")
    (active,) = values(series, "gpunode_gpu_active_seconds_total", unit="tensor")
    return {"energy": energy, "pcie": bytes_out, "active": active, "seconds": accounted(series, 0)}


RATES = {"energy": 690, "pcie": 100 * 2**20, "active": 0.9, "seconds": 1.0}


@pytest.mark.parametrize("code", [1, 18], ids=["reloaded", "replaced"])
def test_a_driver_that_went_away_is_opened_anew_and_counters_go_on(
    fake_library: Path, tmp_path: Path, code: int
) -> None:
    fake = FakeDriver(tmp_path)
    library = install(fake_library, tmp_path)
    working = COMPUTING.format(gpu=0)
    fake.write(working)
    with watching(fake) as running:
        growth(running, 0)
        begin, before = time.monotonic(), counters(scrape(running))
        fake.write(f"{working}system {code}\n")
        await_gone(running, 0)
        until(lambda: driver_found(running) == 0)
        if code == 18:
            install(fake_library, tmp_path)
        # The old library stays wrong: what answers from here on must be the one that is installed.
        until(lambda: mapped(running, library) == {library.stat().st_ino})
        fake.write(working)
        series = await_back(running, 0)
        assert mapped(running, library) == {library.stat().st_ino}
        after, elapsed = counters(series), time.monotonic() - begin
        for name, rate in RATES.items():
            most = rate * (elapsed + 4 * INTERVAL) * 1.1
            assert before[name] <= after[name] <= before[name] + most
        assert after["seconds"] >= before["seconds"] + elapsed - 4 * INTERVAL
        assert shares(running)["compute"] == pytest.approx(1, abs=0.03)


def test_a_gpu_that_cannot_be_opened_with_the_others_comes_later(fake: FakeDriver) -> None:
    fake.write("gpus 2\ngpu 1 fail nvmlDeviceGetHandleByIndex 15\n")
    with watching(fake) as running:
        assert_goes_on(running, 0)
        assert not series_of(scrape(running), 1)
        fake.write("gpus 2\n")
        await_back(running, 1)


def install(fake_library: Path, folder: Path) -> Path:
    """Put a library where an older one may be in use, as package managers do."""
    shutil.copy(fake_library / LIBRARY_NAME, folder / "new")
    return (folder / "new").replace(folder / LIBRARY_NAME)


def mapped(running: Daemon, library: Path) -> set[int]:
    """The inodes of all versions of a library that a process has loaded."""
    maps = Path(f"/proc/{running.process.pid}/maps").read_text()
    return {int(line.split()[4]) for line in maps.splitlines() if str(library) in line}


def test_time_that_the_gpm_counters_do_not_explain_is_unknown(fake: FakeDriver) -> None:
    script = "gpus 2\n"
    for gpu, level in enumerate(("0", "nan")):
        script += f"gpu {gpu} process 4242 1000000000\ngpu {gpu} power 690\ngpu {gpu} util 100\n"
        for metric in (1, 2, 3, 5, 10, 12, 20, 21):
            script += f"gpu {gpu} gpm {metric} {level}\n"
    fake.write(script)
    with watching(fake) as running, ThreadPoolExecutor(2) as side_by_side:
        for found in side_by_side.map(lambda gpu: shares(running, gpu), range(2)):
            assert found["unknown"] == pytest.approx(1, abs=0.01)


def test_a_gpm_metric_that_the_driver_does_not_know_costs_only_itself(fake: FakeDriver) -> None:
    fake.write(COMPUTING.format(gpu=0) + "gpu 0 gpm_unknown 12\n")
    with watching(fake) as running:
        assert shares(running)["compute"] == pytest.approx(1, abs=0.03)
        active = by_label(scrape(running), "gpunode_gpu_active_seconds_total", "unit")
    assert "fp32" not in active
    assert {"graphics", "sm", "tensor", "dram", "fp64"} <= active.keys()


def test_gpm_metrics_are_probed_again_after_a_failure(fake: FakeDriver) -> None:
    fake.write(
        COMPUTING.format(gpu=0)
        + "system fail nvmlGpmMetricsGet 999\nat 2 system fail nvmlGpmMetricsGet 0\n"
    )
    with watching(fake) as running:
        until(lambda: shares(running, windows=1)["compute"] > 0.95)


def test_without_gpm_the_ledger_rests_on_utilisation_and_power(old_fake: FakeDriver) -> None:
    def held(gpu: int, watts: int, busy: int, accessed: int) -> str:
        return (
            f"gpu {gpu} process 4242 1000000000\ngpu {gpu} power {watts}\ngpu {gpu} util {busy}\n"
            f"gpu {gpu} set UtilizationRates.memory {accessed}\n"
        )

    computing, streaming, unclear = (
        held(0, 690, 100, 10),
        held(1, 650, 100, 95),
        held(2, 250, 100, 9),
    )
    old_fake.write("gpus 4\n" + computing + streaming + unclear)
    with watching(old_fake) as running, ThreadPoolExecutor(4) as side_by_side:
        found = list(side_by_side.map(lambda gpu: shares(running, gpu), range(4)))
        sensors = by_label(scrape(running), "gpunode_gpu_ledger_sensor", "sensor", gpu="0")
    for state, share in zip(("compute", "compute", "unknown", "free"), found, strict=True):
        assert share[state] == pytest.approx(1, abs=0.01)
    assert sensors["gpm"] == 0
    assert sensors["utilization"] == 1
    assert sensors["power_samples"] == 1


def test_nvlink_counters_that_are_reset_neither_fall_nor_jump(fake: FakeDriver) -> None:
    kib_a_second = 1_000_000
    without_gpm = "gpu 0 gpm_support 0\n"

    def sent() -> float:
        series = scrape(running)
        (value,) = values(series, "gpunode_gpu_nvlink_bytes_total", direction="transmit")
        return value

    fake.write(f"{without_gpm}gpu 0 field 138 - 9000000000+{kib_a_second}/s\n")
    with watching(fake) as running:
        until(lambda: values(scrape(running), "gpunode_gpu_nvlink_bytes_total"))
        begin, before = time.monotonic(), sent()
        fake.write(f"{without_gpm}gpu 0 field 138 - 5000+{kib_a_second}/s\n")
        until(lambda: sent() > before + 2 * kib_a_second * 1024)
        elapsed = time.monotonic() - begin + 2 * INTERVAL
        assert sent() < before + elapsed * kib_a_second * 1024 * 1.1


def test_time_that_the_daemon_was_stopped_is_unknown(fake: FakeDriver) -> None:
    fake.write(COMPUTING.format(gpu=0))
    stopped = 6 * INTERVAL
    with watching(fake) as running:
        begin, before, _ = running.next_window()
        running.process.suspend()
        time.sleep(stopped)
        running.process.resume()
        growth(running, 0)
        end, after, _ = running.next_window()
    grown = {state: after[state] - before[state] for state in STATES}
    assert sum(grown.values()) == pytest.approx(end - begin, rel=0.01, abs=0.1)
    assert grown["unknown"] == pytest.approx(stopped + INTERVAL, abs=INTERVAL + 0.3)
    assert grown["compute"] == pytest.approx(sum(grown.values()) - grown["unknown"], rel=0.03)


def test_a_node_without_a_driver_is_served_until_one_is_installed(
    fake_library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    not_a_library = tmp_path / LIBRARY_NAME
    not_a_library.touch()  # hides the driver that this machine may have
    with watching(FakeDriver(tmp_path)) as running:
        assert running.get("/readyz")
        assert driver_found(running) == 0
        assert running.gpus() == []
        install(fake_library, tmp_path)
        until(running.gpus)
        assert driver_found(running) == 1
    assert capfd.readouterr().err.count("gpu: none found") == 1


def test_a_driver_that_stays_away_is_mentioned_once(
    fake_library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDriver(tmp_path)
    fake.write("init 9\n")
    install(fake_library, tmp_path)
    with watching(fake) as running:
        looked_again = install(fake_library, tmp_path).stat().st_ino
        until(lambda: mapped(running, tmp_path / LIBRARY_NAME) == {looked_again})
        assert driver_found(running) == 0
        fake.write("")
        until(running.gpus)
    assert capfd.readouterr().err.count("gpu: none found") == 1


def test_mig_instances_replace_their_parent_and_go(fake: FakeDriver) -> None:
    fake.write(
        "gpu 0 mig 2\n"
        "mig 0 0 uuid MIG-first\nmig 0 0 process 4242 1000000000\n"
        "mig 0 0 gpm 1 100\nmig 0 0 gpm 2 95\nmig 0 0 gpm 5 90\nmig 0 0 gpm 10 20\n"
        "mig 0 1 uuid MIG-second\n"
    )
    first, second = "MIG-first", "MIG-second"
    with watching(fake) as running:
        until(
            lambda: {first, second} <= by_label(scrape(running), "gpunode_gpu_info", "uuid").keys()
        )
        series = scrape(running)
        uuids = by_label(series, "gpunode_gpu_info", "uuid").keys()
        (parent,) = uuids - instances(series)
        assert values(series, "gpunode_gpu_info", parent=parent) == [1, 1]
        assert by_label(series, "gpunode_gpu_seconds_total", "uuid").keys() == {first, second}
        assert values(series, "gpunode_gpu_utilization_ratio") == []
        assert values(series, "gpunode_gpu_mig_mode") == [1]

        def states(uuid: str) -> dict[str, float]:
            return by_label(scrape(running), "gpunode_gpu_seconds_total", "state", uuid=uuid)

        until(lambda: states(first)["compute"] > 1 and states(second)["free"] > 1)
        fake.write("gpu 0 mig 1\ngpu 0 set Temperature 93\ngpu 0 xid 79 1\n")
        until(
            lambda: (
                values(scrape(running), "gpunode_gpu_temperature_celsius", uuid=parent) == [93]
                and values(scrape(running), "gpunode_gpu_xid_errors_total", xid="79") == [1]
            )
        )
        joules = by_label(scrape(running), "gpunode_gpu_energy_joules_total", "state", uuid=parent)
        assert joules.pop("unknown") > 0
        assert not any(joules.values())
        fake.write("")
        until(lambda: not instances(scrape(running)))
        until(lambda: accounted(scrape(running), 0) > 0)
        assert up(scrape(running), 0) == 1


def instances(series: Series) -> set[str]:
    """The UUIDs of MIG instances that anything is exported of."""
    uuids = {dict(labels).get("uuid", "") for _, labels in series}
    return {uuid for uuid in uuids if uuid.startswith("MIG-")}


@pytest.mark.parametrize("trouble", ["", "gpu 1 hang nvmlGpmSampleGet 600\n"], ids=["well", "hang"])
def test_sigterm_ends_the_daemon_at_once(fake: FakeDriver, trouble: str) -> None:
    fake.write("gpus 2\n")
    with watching(fake) as running:
        until(lambda: series_of(scrape(running), 1))
        fake.write(f"gpus 2\n{trouble}")
        if trouble:
            await_gone(running, 1)
        running.process.terminate()
        assert running.process.wait(timeout=5) == 0
