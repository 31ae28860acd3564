"""What the driver answers reaches the daemon in base units, whatever the driver's own are."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpunode.node.tape import GPU_CALLS
from tests.fakes.nvml import FakeDriver

REPOSITORY = Path(__file__).parents[2]
FAKE = REPOSITORY / "tests/fakes/nvml/fake_nvml.c"

ONE_OF_EACH = """
gpu 0 set Temperature 71
gpu 0 set MarginTemperature 18
gpu 0 set PowerUsage 412500
gpu 0 set TotalEnergyConsumption 5000250
gpu 0 set EnforcedPowerLimit 650000
gpu 0 set PowerManagementLimit 600000
gpu 0 field 186 - 415250
gpu 0 set EncoderUtilization.percent 12
gpu 0 set DecoderUtilization.percent 7
gpu 0 set UtilizationRates.gpu 87
gpu 0 set UtilizationRates.memory 43
gpu 0 set MemoryInfo.total 150000000000
gpu 0 set MemoryInfo.reserved 600000000
gpu 0 set MemoryInfo.used 50000000000
gpu 0 set ClockInfo.sm 1755
gpu 0 set ClockInfo.mem 3201
gpu 0 set CurrentClocksEventReasons 0x44
gpu 0 field 74 - 1500000000
gpu 0 field 269 - 2500000000
gpu 0 field 75 - 500000000
gpu 0 field 82 - 66
gpu 0 fail nvmlDeviceValidateInforom 14
gpu 0 set GridLicensableFeatures.supported 1
gpu 0 set GridLicensableFeatures.state 1
gpu 0 set TotalEccErrors.corrected_volatile 4
gpu 0 set TotalEccErrors.uncorrected_volatile 1
gpu 0 set TotalEccErrors.corrected_aggregate 5
gpu 0 set TotalEccErrors.uncorrected_aggregate 2
gpu 0 set RemappedRows.corrected 3
gpu 0 set RemappedRows.uncorrected 1
gpu 0 set RemappedRows.pending 1
gpu 0 set RowRemapperHistogram.low 2
gpu 0 set SramEccErrorStatus.exceeded 1
gpu 0 set UnrepairableMemoryFlag 1
gpu 0 set VirtualizationMode 1
gpu 0 set ConfComputeState.feature 1
gpu 0 set ConfComputeState.devtools 1
gpu 0 field 251 - 1
gpu 0 field 274 - 80
gpu 0 set AdaptiveTgpModeInfo 1
gpu 0 set WorkloadPowerProfileGetCurrentProfiles 2
gpu 0 field 258 - 97
gpu 0 field 185 1 1850000
gpu 0 field 190 1 2500000
gpu 0 field 170 - 2
gpu 0 field 171 0 1
gpu 0 field 171 1 0
gpu 0 field 231 - 3
gpu 0 field 232 - 40
gpu 0 field 230 - 1
gpu 0 set CurrPcieLinkGeneration 4
gpu 0 set CurrPcieLinkWidth 8
gpu 0 set PcieReplayCounter 9
gpu 0 field 173 - 4
gpu 0 field 165 2 0
gpu 0 field 161 3 7
gpu 0 field 138 - 1000
gpu 0 field 139 - 2000
gpu 0 set GpuFabricInfoV.health_mask 0x6a
gpu 0 set PersistenceMode 0
gpu 0 set PerformanceState 2
gpu 0 power 300
gpu 0 util 40
gpu 0 gpm 1 80
gpu 0 gpm 5 25
gpu 0 gpm 20 10
gpu 0 gpm 61 nan
gpu 0 process 4242 1000000 compute
gpu 0 process 4243 unknown graphics
at 1 gpu 0 operational GPU-NVLINK 5 3 40 32 0 2 7 149 1
at 1 gpu 0 operational GPU-PSHC 3 6 30 4 0 2 7 0 2
at 1 gpu 0 operational GPU-RAS 23 2 20 32 0 1 8 0 3
at 1 gpu 0 xid 79 1
"""

LINK_BYTES_PER_SECOND = 26562e6

EXPECTED: dict[str, Any] = {
    "identity": {
        "index": 0,
        "uuid": "GPU-5ca1ab1e-0000-4000-8000-000000000000",
        "name": "NVIDIA H200",
        "bus_id": "0000:1b:00.0",
        "serial": "1654000000000",
        "vbios": "96.00.BC.00.01",
        "compute_capability": "9.0",
        "parent": None,
        "mig": False,
        "minor": 0,
        "gpu_instance": None,
        "mig_profile": None,
        "mig_start": None,
        "vendor": "nvidia",
    },
    "limits": {
        "memory_bytes_per_second": pytest.approx(6144 / 8 * 3201e6 * 2),
        "nvlink_bytes_per_second": 17 * LINK_BYTES_PER_SECOND,
        "pcie_bytes_per_second": pytest.approx(16 * 32e9 / 8 * 128 / 130),
        "sm_clock_hertz": 1980e6,
        "memory_clock_hertz": 3201e6,
    },
    "utilization": {"gpu": 0.87, "memory": 0.43},
    "power": 412.5,
    "energy": 5000.25,
    "memory": {"total": 150e9, "used": 50e9, "reserved": 600e6},
    "sm_clock": 1755e6,
    "memory_clock": 3201e6,
    "clock_events": ["sw_power_cap", "hw_thermal"],
    "performance_state": 2,
    "throttled": {
        "sw_power_cap": 1.5,
        "sync_boost": 0,
        "sw_thermal": 2.5,
        "hw_thermal": 0,
        "hw_power_brake": 0,
    },
    "violations": {
        "power": 1.5,
        "thermal": 0.5,
        "sync_boost": 0,
        "board": 0,
        "low_utilization": 0,
        "reliability": 0,
    },
    "temperature": 71,
    "memory_temperature": 66,
    "temperature_margin": 18,
    "temperature_limits": {"slowdown": 89, "shutdown": 95, "gpu": 87, "memory": 95},
    "power_limits": {"enforced": 650, "default": 700},
    "power_range": {"asked": 600, "least": 200, "most": 700},
    "power_now": pytest.approx(415.25),
    "video_use": {"encoder": 0.12, "decoder": 0.07},
    "process_use": [{"pid": 4242, "gpu": 0.43}, {"pid": 4243, "gpu": 0.43}],
    "processes": [
        {"pid": 4242, "memory": 1e6, "kind": "compute"},
        {"pid": 4243, "memory": None, "kind": "graphics"},
    ],
    "ecc_errors": {"corrected": 5, "uncorrected": 2},
    "volatile_ecc_errors": {"corrected": 4, "uncorrected": 1},
    "inforom_valid": False,
    "vgpu_licensed": True,
    "driver_version": "580.159.04",
    "cuda_version": "13.0",
    "firmware": {"gsp": "580.159.04", "inforom": "G525.0225.00.05"},
    "remapped_rows": {"corrected": 3, "uncorrected": 1, "pending": True, "failed": False},
    "remap_banks": {"max": 3072, "high": 0, "partial": 0, "low": 2, "none": 0},
    "sram_worn": True,
    "memory_unrepairable": True,
    "recovery_action": "reset",
    "pcie_link": {"generation": 4, "width": 8, "max_generation": 5, "max_width": 16},
    "pcie_replays": 9,
    "pcie_errors": {"correctable": 4},
    "nvlinks": [
        {
            "link": link,
            "up": link != 2,
            "bytes_per_second": LINK_BYTES_PER_SECOND,
            "errors": {"replay": 7 if link == 3 else 0, "recovery": 0, "crc": 0},
            "bit_errors": {},
        }
        for link in range(18)
    ],
    "nvlink_bytes": {"transmit": 1000 * 1024, "receive": 2000 * 1024},
    "fabric": {
        "state": "completed",
        "healthy": {
            "bandwidth": True,
            "route_recovery": True,
            "route": True,
            "access_timeout": False,
        },
        "health_mask": 0x6A,
        "faults": {"access_timeout": "in_recovery"},
        "cluster": None,
        "clique": None,
    },
    "persistence": False,
    "mig_mode": False,
    "modes": [
        "passthrough",
        "confidential_compute",
        "confidential_compute_debug",
        "power_smoothing",
        "lowered_peak_power",
        "adaptive_power_limit",
        "power_profile",
    ],
    "module_power": {"draw": 1850, "limit": 2500},
    "power_smoothing_left": 0.97,
    "chip_links": {"links": 2, "up": 1, "errors": {"interrupt": 6, "replay": 80}},
    "peers": {},
    "unnamed": [],
    "xids": [{"number": 79}],
    "operational_events": [
        {
            "module": "gpu-nvlink",
            "code": 5,
            "category": "interconnect",
            "severity": "fatal",
            "origin": "primary",
            "trace": 7,
            "xid": 149,
        },
        {
            "module": "gpu-pshc",
            "code": 3,
            "category": "power",
            "severity": "recoverable",
            "origin": "propagated",
            "trace": 7,
            "xid": None,
        },
    ],
}
MEASURED = {"activity", "power_samples", "utilization_samples"}


def ask(fake: FakeDriver, *, patience: float = 5) -> list[dict[str, Any]]:
    """Everything that the daemon could ask, of every GPU."""
    return list(json.loads(fake.run("tests.hardware.ask", str(patience))))


def test_the_fake_has_no_call_that_nobody_makes() -> None:
    functions = re.findall(r"X\((nvml\w+)\)", FAKE.read_text())
    assert "nvmlDeviceGetName" in functions
    modules = (REPOSITORY / "exporter/gpunode/driver/nvidia").glob("*.py")
    made = "".join(module.read_text() for module in modules)
    assert [name for name in functions if name not in made] == []


def test_every_reading_is_in_base_units(fake: FakeDriver) -> None:
    fake.write(ONE_OF_EACH)
    (gpu,) = ask(fake)
    assert gpu.keys() == {*GPU_CALLS, "identity"} == EXPECTED.keys() | MEASURED
    assert {name: gpu[name] for name in EXPECTED} == EXPECTED

    activity = gpu["activity"]
    assert activity["seconds"] >= 0.3
    assert activity["values"]["graphics"] == pytest.approx(0.8)
    assert activity["values"]["tensor"] == pytest.approx(0.25)
    assert activity["values"]["sm"] == 0
    assert activity["values"]["pcie_transmit"] == pytest.approx(10 * 2**20)
    assert "nvlink_transmit" not in activity["values"]

    assert_sampled(gpu["power_samples"], 300, every=0.02)
    assert_sampled(gpu["utilization_samples"], 0.4, every=0.2)


def assert_sampled(buffered: Any, value: float, every: float) -> None:
    times, found = zip(*buffered["samples"], strict=True)
    assert found[-1] == pytest.approx(value)
    assert [later - earlier for earlier, later in pairwise(times)] == [
        pytest.approx(every * 1e6)
    ] * (len(times) - 1)


def test_an_old_driver_answers_what_it_can(old_fake: FakeDriver) -> None:
    old_fake.write(ONE_OF_EACH)
    (gpu,) = ask(old_fake)
    missing = {"activity", "temperature_margin", "fabric", "operational_events"}
    assert {name for name, answer in gpu.items() if is_unsupported(answer)} == missing
    # The first version of the call counts what the driver reserves as used.
    memory = {"total": 150e9, "used": 50e9 + 600e6, "reserved": None}
    modes = EXPECTED["modes"][:-2]  # it does not tell what moves the power limit
    expected = {**EXPECTED, "memory": memory, "modes": modes}
    assert {n: gpu[n] for n in expected.keys() - missing} == {
        n: a for n, a in expected.items() if n not in missing
    }
    assert_sampled(gpu["power_samples"], 300, every=0.02)
    assert_sampled(gpu["utilization_samples"], 0.4, every=0.2)


CODES = {3: "Unsupported", 4: "Unsupported", 13: "Unsupported", 25: "Unsupported"}
CODES |= {10: "SensorFailed", 15: "DriverError", 999: "SensorFailed"}
IN_SYSFS = {
    "00000000:1B:00.0": "0000:1b:00.0",
    "00000001:00:00.0": "0001:00:00.0",
    "00010000:E1:00.0": "10000:e1:00.0",
    "0000:3B:00.0": "0000:3b:00.0",
}
ODD = {
    **{f"temperature {code}": f"fail nvmlDeviceGetTemperature {code}" for code in CODES},
    "corrupted inforom": "fail nvmlDeviceGetInforomImageVersion 14",
    "no new power sample": "fail nvmlDeviceGetSamples 6",
    "failing power samples": "fail nvmlDeviceGetSamples 999",
    "unknown metric": "gpm 1 80\ngpm_unknown 5\ngpm 6 fail 3",
    "fields left alone": "field 74 - left\nfield 186 - left",
    "values without a name": """\
set CurrentClocksEventReasons 6148
set PersistenceMode 2
set MaxPcieLinkGeneration 9
set GpuFabricInfoV.state 9
field 230 - 31
field 165 4 7
field 165 5 2""",
    "readings that are not there": """\
set CurrentClocksEventReasons 0xffffffffffffffff
set PersistenceMode 0xffffffff
field 165 - 0xffffffff
set GpuFabricInfoV.state 0
field 230 - 0xffffffff""",
    "fabric without a summary": """\
set GpuFabricInfoV.version 2
set GpuFabricInfoV.health_mask 0x4aa""",
    "fabric without resources": """\
set GpuFabricInfoV.status 23
set GpuFabricInfoV.health_mask 0""",
}
"""GPUs of which a reading is missing, failing or strange."""


@pytest.fixture(scope="module")
def odd(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver answers of each of them, and of the PCI addresses of the first."""
    fake = FakeDriver(fake_library, tmp_path_factory.mktemp("odd") / "nvml.script")
    lines = [f"gpu {n} bus_id {address}" for n, address in enumerate(IN_SYSFS)]
    for n, said in enumerate(ODD.values()):
        lines += [f"gpu {n} {line}" for line in said.splitlines()]
    fake.write("\n".join([f"gpus {len(ODD)}", *lines, ""]))
    return dict(zip(ODD, ask(fake, patience=0), strict=True))


def test_a_corrupted_inforom_costs_its_version_alone(odd: dict[str, Any]) -> None:
    assert odd["corrupted inforom"]["firmware"] == {"gsp": "580.159.04"}


def test_a_missing_sensor_is_told_from_a_failing_one(odd: dict[str, Any]) -> None:
    for code, error in CODES.items():
        answer = odd[f"temperature {code}"]["temperature"]
        assert answer["error"] == error, code
        assert answer["message"].startswith("nvmlDeviceGetTemperature: ")
        assert answer["message"].endswith(f"(NVML error {code})")


def test_a_power_buffer_that_is_empty_or_failing(odd: dict[str, Any]) -> None:
    assert odd["no new power sample"]["power_samples"] == {"samples": []}
    assert odd["failing power samples"]["power_samples"]["error"] == "DriverError"


def test_one_metric_that_the_driver_does_not_know_hides_no_other(odd: dict[str, Any]) -> None:
    activity = odd["unknown metric"]["activity"]["values"]
    assert activity["graphics"] == pytest.approx(0.8)
    assert activity.keys().isdisjoint({"tensor", "tensor_fp64"})
    assert {"sm", "dram", "pcie_receive", "nvlink_receive"} <= activity.keys()


def test_a_field_that_the_driver_left_alone_is_no_reading(odd: dict[str, Any]) -> None:
    gpu = odd["fields left alone"]
    assert "sw_power_cap" not in gpu["throttled"]
    assert "sync_boost" in gpu["throttled"]
    assert is_unsupported(gpu["power_now"])


def test_values_without_a_name_are_told(odd: dict[str, Any]) -> None:
    gpu = odd["values without a name"]
    assert gpu["unnamed"] == [
        "NVLink state 7",
        "PCIe generation 9",
        "clock events 0x1800",
        "fabric state 9",
        "persistence mode 2",
        "recovery action 31",
    ]
    assert gpu["clock_events"] == ["sw_power_cap"]
    assert gpu["recovery_action"] == "other"
    assert is_unsupported(gpu["persistence"])
    assert is_unsupported(gpu["fabric"])
    links = {link["link"]: link["up"] for link in gpu["nvlinks"]}
    assert 4 not in links
    assert links[5] is True  # asleep, to save power
    assert odd["readings that are not there"]["unnamed"] == []


def test_a_driver_without_the_summary_tells_the_rest(odd: dict[str, Any]) -> None:
    fabric = odd["fabric without a summary"]["fabric"]
    assert fabric["faults"] == {"configuration": "no_partition"}
    assert "summary" not in fabric["healthy"]


def test_a_registration_that_completed_with_an_error_has_failed(odd: dict[str, Any]) -> None:
    fabric = odd["fabric without resources"]["fabric"]
    assert (fabric["state"], fabric["healthy"]) == ("failed", {"registration": False})


def test_a_pci_address_is_that_of_the_kernel(odd: dict[str, Any]) -> None:
    found = [gpu["identity"]["bus_id"] for gpu in odd.values()]
    assert found[: len(IN_SYSFS)] == list(IN_SYSFS.values())


def is_unsupported(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("error") == "Unsupported"


TRAY = "\n".join(
    [
        "gpus 4",
        *(
            f"gpu {gpu} {line}"
            for gpu in range(4)
            for line in (
                "name NVIDIA GB200",
                "set GpuFabricInfoV.cluster 0x9c",
                "set GpuFabricInfoV.clique 32766",
                "set GpuFabricInfoV.health_mask 0x51aa",
                "set GpuFabricInfoV.health_summary 1",
                *(f"field {old} - fail 3" for old in (161, 162, 163)),
                *(f"field {new} - 0" for new in (208, 213, 214, 219, 221)),
                *(f"field {ratio} - 0xfff" for ratio in (220, 222)),
            )
        ),
        "gpu 2 field 213 14 505",
        "gpu 2 field 220 14 0x30b",
    ]
)
"""A compute tray of a GB200 NVL72, of which one link has recovered.
https://github.com/marin-community/marin/issues/9086"""


def test_a_tray_of_an_nvlink_domain(fake: FakeDriver) -> None:
    fake.write(TRAY)
    tray = ask(fake, patience=0)
    parts = ("bandwidth", "route_recovery", "route", "access_timeout", "configuration")
    for gpu in tray:
        assert gpu["fabric"] == {
            "state": "completed",
            "healthy": dict.fromkeys((*parts, "partition", "fabric_manager", "summary"), True),
            "faults": {},
            "cluster": "9c9c9c9c-9c9c-9c9c-9c9c-9c9c9c9c9c9c",
            "clique": 32766,
            "health_mask": 0x51AA,
        }
        assert gpu["unnamed"] == []
    kinds = ("recovery_successful", "recovery_failed", "receive", "effective", "symbol")
    links = {(gpu["identity"]["index"], one["link"]): one for gpu in tray for one in gpu["nvlinks"]}
    assert len(links) == 4 * 18
    bad = links.pop((2, 14))
    assert bad["errors"] == {**dict.fromkeys(kinds, 0), "recovery_successful": 505}
    assert bad["bit_errors"] == {"effective": pytest.approx(3e-11), "symbol": 0}
    for link in links.values():
        assert link["errors"] == dict.fromkeys(kinds, 0)
        assert link["bit_errors"] == {"effective": 0, "symbol": 0}


def test_mig_instances_are_gpus_of_their_own(fake: FakeDriver) -> None:
    fake.write(
        "gpu 0 mig 2\n"
        "mig 0 0 uuid MIG-first\nmig 0 0 gpm 1 60\n"
        "mig 0 1 uuid MIG-second\nmig 0 1 gpm 1 20\n"
        "mig 0 1 set GpuInstanceInfo.profile 14\nmig 0 1 set GpuInstanceInfo.start 2\n"
    )
    parent, first, second = ask(fake, patience=0)
    assert parent["mig_mode"] is True
    for instance, uuid, graphics in ((first, "MIG-first", 0.6), (second, "MIG-second", 0.2)):
        assert instance["identity"]["uuid"] == uuid
        assert instance["identity"]["mig"] is True
        assert instance["identity"]["parent"] == parent["identity"]["uuid"]
        assert instance["activity"]["values"]["graphics"] == pytest.approx(graphics)
        assert is_unsupported(instance["utilization"])
    for instance, place in ((first, (1, 19, 0)), (second, (2, 14, 2))):
        names = "gpu_instance", "mig_profile", "mig_start"
        assert tuple(instance["identity"][name] for name in names) == place
