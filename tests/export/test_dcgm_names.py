"""The names of dcgm-exporter: its units and labels, and what was written to read them."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jobscope.dcgm
import jobscope.prometheus
import jobscope.sacct
import pytest

from gpunode.config.daemon import Settings
from gpunode.driver.driver import (
    Identity,
    PowerRange,
    TemperatureLimits,
    VideoUse,
)
from gpunode.driver.nvidia.gpu import CLOCK_EVENTS
from gpunode.export.dcgm_health import health
from gpunode.export.dcgm_names import (
    CLOCK_EVENTS as CLOCK_EVENTS_COUNT,
)
from gpunode.export.dcgm_names import (
    CLOCK_EVENTS_TOTAL,
    EVENTS,
    LABELS,
    METRICS,
    DcgmNames,
)
from gpunode.export.dcgm_renames import RENAMED
from gpunode.faults.fault import Fault, Location, Part
from gpunode.gpu.activity import TEMPERATURE
from gpunode.gpu.dcgm_fields import DcgmFields
from gpunode.gpu.units import NVLINK_BYTES
from gpunode.gpu.xids import XIDS
from gpunode.jobs.owners import OWNER
from gpunode.loop import Loop
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from gpunode.source import Place, Reading, Source
from tests.cases import with_each
from tests.conftest import Series, by_label, scrape, until, values, watching
from tests.corpus.families import load
from tests.daemon import TIMEOUT, Daemon, free_port
from tests.export.dcgm_clients import (
    CLIENTS,
    DEV,
    NOT_ANSWERED,
    PROF,
    WATCHES_NOT_ANSWERED,
    reason_for_none,
)
from tests.fakes.kubelet import kubelet
from tests.fakes.nvml import FakeDriver
from tests.machine import exported
from tests.needs import need
from tests.prometheus.incidents import prometheus
from tests.prometheus.programs import ask

UUID = "GPU-5a1e0000-0000-0000-0000-000000000000"
OTHER = "GPU-5a1e0000-0000-0000-0000-000000000001"
PID = 4242
JOB = 77
KUBELET = "/var/lib/kubelet/pod-resources/kubelet.sock"

SCRIPT = f"""\
gpus 3
gpu 0 uuid {UUID}
gpu 0 set ClockInfo.sm 1980
gpu 0 set Temperature 71
gpu 0 set PerformanceState 2
gpu 0 set CurrentClocksEventReasons 0x144
gpu 0 set CurrPcieLinkWidth 8
gpu 0 set TotalEnergyConsumption 123456789
gpu 0 set EncoderUtilization.percent 12
gpu 0 set DecoderUtilization.percent 7
gpu 0 set PowerManagementLimit 650000
gpu 0 set TotalEccErrors.corrected_volatile 3
gpu 0 set TotalEccErrors.corrected_aggregate 9
gpu 0 set RemappedRows.corrected 2
gpu 0 field 186 - 512345
gpu 0 field 74 - 1500000000
gpu 0 field 75 - 250000000
gpu 0 field 271 - 125000000
gpu 0 field 230 - 2
gpu 0 field 173 - 6
gpu 0 field 161 - 2
gpu 0 field 170 - 2
gpu 0 field 171 - 1
gpu 0 set RowRemapperHistogram.low 3
gpu 0 set SramEccErrorStatus.exceeded 1
gpu 0 set VirtualizationMode 1
gpu 0 gpm 4 11
gpu 0 gpm 100 70
gpu 0 gpm 101 80
gpu 0 gpm 1 97
gpu 0 gpm 2 90
gpu 0 gpm 5 62
gpu 0 gpm 7 60
gpu 0 gpm 60 1000
gpu 0 gpm 61 500
gpu 1 uuid {OTHER}
gpu 1 process {PID} 1000
gpu 1 gpm 5 30
gpu 2 mig 1
mig 2 0 name NVIDIA H200 MIG 1g.18gb
"""

EXPECTED = {
    f"{DEV}SM_CLOCK": 1980,
    f"{DEV}MAX_SM_CLOCK": 1980,
    f"{DEV}MAX_MEM_CLOCK": 3201,
    f"{DEV}GPU_TEMP": 71,
    f"{DEV}PSTATE": 2,
    f"{DEV}CLOCKS_EVENT_REASONS": 0x144,
    f"{DEV}CLOCK_THROTTLE_REASONS": 0x144,
    f"{DEV}PCIE_LINK_GEN": 5,
    f"{DEV}PCIE_LINK_WIDTH": 8,
    f"{DEV}PCIE_MAX_LINK_WIDTH": 16,
    f"{DEV}SLOWDOWN_TEMP": 89,
    f"{DEV}SHUTDOWN_TEMP": 95,
    f"{DEV}GPU_MAX_OP_TEMP": 87,
    f"{DEV}MEM_MAX_OP_TEMP": 95,
    f"{DEV}TOTAL_ENERGY_CONSUMPTION": 123456789,
    f"{DEV}POWER_USAGE_INSTANT": 512.345,
    f"{DEV}POWER_MGMT_LIMIT": 650,
    f"{DEV}POWER_MGMT_LIMIT_MIN": 200,
    f"{DEV}POWER_MGMT_LIMIT_MAX": 700,
    f"{DEV}ENFORCED_POWER_LIMIT": 700,
    f"{DEV}ENC_UTIL": 12,
    f"{DEV}DEC_UTIL": 7,
    f"{DEV}ECC_SBE_VOL_TOTAL": 3,
    f"{DEV}ECC_SBE_AGG_TOTAL": 9,
    f"{DEV}ECC_DBE_VOL_TOTAL": 0,
    f"{DEV}CORRECTABLE_REMAPPED_ROWS": 2,
    f"{DEV}ROW_REMAP_PENDING": 0,
    f"{DEV}POWER_VIOLATION": 1500000000,
    f"{DEV}THERMAL_VIOLATION": 250000000,
    f"{DEV}LOW_UTIL_VIOLATION": 0,
    f"{DEV}CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": 1500000000,
    f"{DEV}CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": 125000000,
    f"{DEV}NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0,
    f"{DEV}NVLINK_ERROR_DL_REPLAY": 36,
    f"{DEV}PERSISTENCE_MODE": 1,
    f"{DEV}MIG_MODE": 0,
    f"{DEV}MINOR_NUMBER": 0,
    f"{DEV}CUDA_COMPUTE_CAPABILITY": 9 << 16,
    f"{DEV}GPU_TEMP_LIMIT": 47,
    f"{DEV}GET_GPU_RECOVERY_ACTION": 2,
    f"{DEV}FABRIC_MANAGER_STATUS": 3,
    f"{DEV}FABRIC_HEALTH_MASK": 426,
    f"{DEV}PCIE_COUNT_CORRECTABLE_ERRORS": 6,
    f"{DEV}INFOROM_CONFIG_VALID": 1,
    f"{DEV}THRESHOLD_SRM": 1,
    f"{DEV}MEMORY_UNREPAIRABLE_FLAG": 0,
    f"{DEV}BANKS_REMAP_ROWS_AVAIL_MAX": 3072,
    f"{DEV}BANKS_REMAP_ROWS_AVAIL_LOW": 3,
    f"{DEV}BANKS_REMAP_ROWS_AVAIL_NONE": 0,
    f"{DEV}C2C_LINK_COUNT": 2,
    f"{DEV}C2C_LINK_STATUS": 1,
    f"{DEV}VIRTUAL_MODE": 1,
    f"{DEV}NVLINK_TX_BANDWIDTH_TOTAL": 512,
    f"{DEV}NVLINK_RX_BANDWIDTH_TOTAL": 1024,
    f"{PROF}PIPE_INT_ACTIVE": 0.11,
    f"{PROF}C2C_TX_ALL_BYTES": 70 * 2**20,
    f"{PROF}C2C_RX_ALL_BYTES": 80 * 2**20,
    f"{DEV}VGPU_LICENSE_STATUS": 0,
    f"{DEV}XID_ERRORS": 0,
    f"{DEV}COUNT": 3,
    f"{DEV}NVLINK_BANDWIDTH_TOTAL": 1536,
    f"{PROF}GR_ENGINE_ACTIVE": 0.97,
    f"{PROF}SM_ACTIVE": 0.9,
    f"{PROF}PIPE_TENSOR_ACTIVE": 0.62,
    f"{PROF}PIPE_TENSOR_HMMA_ACTIVE": 0.6,
    f"{PROF}NVLINK_RX_BYTES": 1000 * 2**20,
    f"{PROF}NVLINK_TX_BYTES": 500 * 2**20,
}
"""What DCGM's fields of the first GPU would say, in DCGM's units."""


@dataclass(frozen=True)
class ScrapedDaemon:
    """A daemon, and a Prometheus that scrapes it."""

    daemon: Daemon
    port: int

    def query(self, expression: str) -> list[dict[str, Any]]:
        found = ask(self.port, f"/api/v1/query?{urlencode({'query': expression})}")
        return list(found["data"]["result"])


@contextmanager
def _root() -> Iterator[Path]:
    """The root of a node with a process of a Slurm job; its path is short for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as name:
        root = Path(name)
        process = root / f"proc/{PID}"
        process.mkdir(parents=True)
        (process / "cgroup").write_text(
            f"0::/system.slice/slurmstepd.scope/job_{JOB}/step_0/user/task_0\n"
        )
        (root / "proc/stat").write_text("cpu  1 0 1 1 0 0 0 0 0 0\n")
        (root / "proc/sys/kernel").mkdir(parents=True)
        (root / "proc/sys/kernel/hostname").write_text("gpunode-x2b4\n")
        yield root


@pytest.fixture(scope="module")
def running(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on a node with a pod on GPU 0, a Slurm job on GPU 1 and an instance of GPU 2."""
    fake = FakeDriver(fake_library, tmp_path_factory.mktemp("names") / "nvml.script")
    fake.write(SCRIPT)
    with ExitStack() as stack:
        root = stack.enter_context(_root())
        told = stack.enter_context(kubelet(Path(f"{root}{KUBELET}")))
        told.pods = {("research", "trainer-0", "main"): [("nvidia.com/gpu", UUID)]}
        options = f"--path.rootfs={root}", "--gpu.owners-interval=1", "--kubernetes.interval=1"
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("NODE_NAME", "node-7")
            daemon = stack.enter_context(watching(fake, "--compat=dcgm", *options))
        until(lambda: _complete(scrape(daemon)))
        yield daemon


@pytest.fixture(scope="module")
def scraped(running: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedDaemon]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    target = {"targets": [f"127.0.0.1:{running.port}"], "labels": {"pod": "gpunode-x2b4"}}
    scrapes = [{"job_name": "dcgm", "static_configs": [target]}]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "scrape_configs": scrapes}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    need("prometheus")
    with prometheus(folder, port):
        yield ScrapedDaemon(running, port)


def _complete(series: Series) -> bool:
    return bool(
        values(series, f"{DEV}NVLINK_BANDWIDTH_TOTAL", pod="trainer-0")
        and values(series, f"{PROF}PIPE_TENSOR_ACTIVE", hpc_job=str(JOB))
        and values(series, f"{DEV}FB_TOTAL", GPU_I_ID="1")
    )


def test_values_are_in_dcgms_units(running: Daemon) -> None:
    series = scrape(running)
    found = {name: values(series, name, UUID=UUID) for name in EXPECTED}
    assert found == {name: [pytest.approx(value)] for name, value in EXPECTED.items()}
    renamed = {new: values(series, new, UUID=UUID) for new in RENAMED.values()}
    assert {old: renamed[RENAMED[old]] for old in EXPECTED if old in RENAMED} == {
        old: [pytest.approx(value)] for old, value in EXPECTED.items() if old in RENAMED
    }
    for fact in load("dcgm")["base_units_4_7"]["fields"]:
        if fact["old"] in EXPECTED:
            found_in_base_units = values(series, fact["new"], UUID=UUID)
            assert found_in_base_units == [pytest.approx(EXPECTED[fact["old"]] * fact["factor"])]
    free, used, reserved, total = (
        values(series, f"{DEV}FB_{part}", UUID=UUID)[0]
        for part in ("FREE", "USED", "RESERVED", "TOTAL")
    )
    assert free + used + reserved == pytest.approx(total)
    share = values(series, f"{DEV}FB_USED_PERCENT", UUID=UUID)
    assert share == [pytest.approx(used / (total - reserved))]


def test_nvlink_between_each_pair_of_gpus(running: Daemon) -> None:
    peers = by_label(scrape(running), "DCGM_EXP_P2P_STATUS", "peer_gpu", UUID=UUID)
    assert peers == {"1": 0, "2": 0}
    states = by_label(scrape(running), "DCGM_EXP_P2P_STATUS", "link_status", UUID=UUID)
    assert states == {"OK": 0}


def test_no_name_has_a_series_and_a_reason_for_none() -> None:
    names = {*LABELS, *(metric.name for metric in METRICS)}
    assert {name for name in names if reason_for_none(name)} == set()


def test_each_reason_for_lower_clocks_has_the_bit_that_the_driver_gives_it() -> None:
    assert dict(CLOCK_EVENTS) == {1 << bit: name for bit, name in enumerate(EVENTS)}


def _labels(running: Daemon, name: str, **wanted: str) -> dict[str, str]:
    (found,) = (
        dict(labels)
        for found, labels in scrape(running)
        if found == name and wanted.items() <= labels
    )
    return {label: value for label, value in found.items() if value}


def test_the_labels_of_a_gpu_a_job_and_an_instance(running: Daemon) -> None:
    of_all = {
        "modelName": "NVIDIA H200",
        "Hostname": "node-7",
        "hostname": "node-7",
        "DCGM_FI_DRIVER_VERSION": "580.159.04",
        "DCGM_FI_SYSTEM_DRIVER_VERSION": "580.159.04",
        "DCGM_FI_DEV_SERIAL": "1654000000000",
        "DCGM_FI_DEV_BOARD_SERIAL": "1654000000000",
        "DCGM_FI_DEV_VBIOS_VERSION": "96.00.BC.00.01",
    }
    assert _labels(running, f"{DEV}GPU_TEMP", gpu="0") == {
        **of_all,
        "gpu": "0",
        "UUID": UUID,
        "pci_bus_id": "00000000:1B:00.0",
        "device": "nvidia0",
        "namespace": "research",
        "pod": "trainer-0",
        "container": "main",
    }
    of_job = _labels(running, f"{DEV}GPU_TEMP", gpu="1")
    assert (of_job["hpc_job"], of_job.get("pod")) == (str(JOB), None)
    of_instance = _labels(running, f"{DEV}FB_TOTAL", gpu="2")
    assert of_instance["GPU_I_ID"] == "1"
    assert of_instance["GPU_I_PROFILE"] == "1g.18gb"
    assert of_instance["modelName"] == "NVIDIA H200"
    assert of_instance["UUID"].startswith("GPU-")
    assert set(of_job) | set(of_instance) < set(LABELS)
    of_board = _labels(running, f"{DEV}POWER_USAGE", gpu="2")
    assert of_board == {k: v for k, v in of_instance.items() if not k.startswith("GPU_I_")}


def test_a_client_finds_what_it_asks_for(running: Daemon) -> None:
    found: dict[str, list[set[str]]] = defaultdict(list)
    for name, pairs in scrape(running):
        found[name].append({label for label, value in pairs if value})
    for client in CLIENTS:
        # Prometheus gives its own name to a label that its target has as well.
        labels = {label.removeprefix("exported_") for label in client.labels}
        missing = {name for name in client.names if not any(labels <= one for one in found[name])}
        assert missing == {name for name in client.names if name in NOT_ANSWERED}, client.name


@pytest.mark.integration
def test_a_real_prometheus_joins_the_pods_and_rates_the_counters(scraped: ScrapedDaemon) -> None:
    """The forms in which rules, dashboards and the console ask."""
    forms = {
        f'sum by (exported_pod, UUID) ({PROF}GR_ENGINE_ACTIVE{{exported_pod=~".+"}})': 0.97,
        f"count(count by (UUID, GPU_I_ID) ({DEV}FB_TOTAL))": 3,
        f'max by (Hostname) ({DEV}COUNT{{Hostname="node-7"}})': 3,
        f"ceil(max({DEV}GPU_TEMP) / max({DEV}SLOWDOWN_TEMP) * 100)": 80,
        f"max(increase({DEV}POWER_VIOLATION[5s]))": 0,
        f'count by (hpc_job) ({DEV}GPU_UTIL{{hpc_job="{JOB}"}})': 1,
        'min by (hostname) (DCGM_EXP_GPU_HEALTH_STATUS{health_watch="MEM"} == bool 0)': 1,
        f'{DEV}XID_ERRORS{{err_code=~"79|95", UUID="{UUID}"}} > 0': None,
        f'max({DEV}XID_ERRORS{{err_code="0"}})': 0,
    }

    def answers() -> dict[str, float | None]:
        found = {form: scraped.query(form) for form in forms}
        return {form: float(f[0]["value"][1]) if f else None for form, f in found.items()}

    until(lambda: answers() == forms)


def test_kempnerpulse_reads_the_page(running: Daemon) -> None:
    url = f"http://127.0.0.1:{running.port}/metrics"
    command = [sys.executable, "-m", "kempnerpulse", "--backend=prometheus", f"--source={url}"]
    told = subprocess.run(
        [*command, "--once", "--export", "all"],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    first, second = list(csv.DictReader(io.StringIO(told.stdout)))[:2]
    assert float(first["tensor_active_pct"]) == 62
    assert float(first["nvlink_gbps"]) == pytest.approx(1.536)
    assert float(first["energy_j"]) == pytest.approx(123456.8)
    assert float(first["gpu_temp_c"]) == 71
    assert float(second["tensor_active_pct"]) == 30
    # A rate needs two looks, and DCGM has no field of the other two.
    empty = {column for column, value in first.items() if not value}
    assert empty == {"pcie_replay_rate_s", "tc_dmma_pct", "tc_qmma_pct"}


@pytest.mark.integration
def test_jobscope_finds_the_gpus_of_a_job(scraped: ScrapedDaemon) -> None:
    client = jobscope.prometheus.PrometheusClient(f"http://127.0.0.1:{scraped.port}", 1, 10)
    specs = jobscope.dcgm.ALL_SPECS

    def look() -> tuple[dict[str, float], dict[tuple[str, str], dict[str, float]]]:
        job = jobscope.sacct.JobRecord(
            jobid=str(JOB), state="COMPLETED", name="train", runtime="00:00:10", nodes="node-7",
            gpus=1, stats={}, start=None, end=int(time.time()), duration=10, jobid_raw=str(JOB),
            cluster="", user="kim",
        )  # fmt: skip
        found: tuple[dict[str, float], dict[tuple[str, str], dict[str, float]]]
        found = jobscope.dcgm.dcgm_for_job(job, specs, client, 10)
        return found

    headers = {spec.header for spec in specs}
    overall = until(lambda: found if (found := look()[0]).keys() == headers else None)
    assert overall["TENSOR%"] == pytest.approx(30)
    assert overall["SMCLK_MHz"] == 345
    assert list(look()[1]) == [("?", "1")]  # a site's Prometheus adds the label ``host``


GOOD = "DCGM_FR_OK", 0
HEALTH = (
    (
        """
        gpu 0 fail nvmlDeviceValidateInforom 14
        gpu 0 field 230 - 1
        """,
        {
            "INFOROM": ("DCGM_FR_CORRUPT_INFOROM", 10),
            "DRIVER": ("DCGM_FR_GPU_RECOVERY_RESET", 20),
            **dict.fromkeys(("THERMAL", "POWER", "PCIE", "NVLINK", "MEM"), GOOD),
        },
    ),
    (
        """
        gpu 0 field 165 3 0
        gpu 0 set RemappedRows.failed 1
        gpu 0 set RemappedRows.pending 1
        """,
        {
            "NVLINK": ("DCGM_FR_NVLINK_DOWN", 20),
            "MEM": ("DCGM_FR_ROW_REMAP_FAILURE", 20),
            **dict.fromkeys(("DRIVER", "THERMAL", "POWER", "PCIE"), GOOD),
        },
    ),
    (
        "gpu 0 set RemappedRows.pending 1\ngpu 0 field 230 - 3\n",
        {
            "NVLINK": ("DCGM_FR_NVLINK_DOWN", 20),  # until it has been up for two minutes
            "MEM": ("DCGM_FR_PENDING_ROW_REMAP", 10),
            "DRIVER": ("DCGM_FR_GPU_RECOVERY_DRAIN_P2P", 10),
        },
    ),
    ("gpu 0 field 165 - fail 3\n", {"MEM": GOOD}),
)
"""Lines of the script, and what the health of each part is then."""


UNSUPPORTED = (
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceValidateInforom",
    "nvmlDeviceGetGridLicensableFeatures",
)


def test_health_and_xids_are_told_in_dcgms_words(fake: FakeDriver) -> None:
    """What NVML does not answer, as of the second GPU, has no series."""
    name = "DCGM_EXP_GPU_HEALTH_STATUS"
    lesser = "".join(("gpus 2\n", *(f"gpu 1 fail {call} 3\n" for call in UNSUPPORTED)))
    fake.write(lesser + HEALTH[0][0])
    with watching(fake, "--compat=dcgm", "--gpu.nvlink-interval=1") as running:

        def told(gpu: str = "0") -> dict[str, tuple[str, float]]:
            return {
                dict(labels)["health_watch"]: (dict(labels)["health_error_code"], value)
                for (found, labels), value in scrape(running).items()
                if found == name and ("gpu", gpu) in labels
            }

        for script, expected in HEALTH:
            fake.write(lesser + script)
            until(lambda e=expected: e.items() <= told().items())  # type: ignore[misc]
        assert told().keys() & WATCHES_NOT_ANSWERED.keys() == set()
        fake.write(f"{lesser}gpu 0 xid 79 1\n")
        until(lambda: values(scrape(running), f"{DEV}XID_ERRORS", err_code="79") == [79])
        assert len(values(scrape(running), f"{DEV}XID_ERRORS", gpu="0")) == 1
        until(lambda: values(scrape(running), f"{PROF}PIPE_TENSOR_ACTIVE", gpu="1"))
        names = {found for found, labels in scrape(running) if ("gpu", "1") in labels}
        assert "INFOROM" not in told("1")
    gone = _parts(
        "ENC_UTIL SLOWDOWN_TEMP POWER_MGMT_LIMIT_MAX TOTAL_ENERGY_CONSUMPTION ECC_SBE_VOL_TOTAL "
        "VGPU_LICENSE_STATUS"
    )
    assert names & gone == set()
    assert names >= _parts("DEC_UTIL GPU_TEMP POWER_VIOLATION")


@with_each(
    (
        ("pcie", "degraded", ("PCIE", 10, "DCGM_FR_PCIE_WIDTH")),
        ("fabric", "access_timeout", ("NVLINK", 20, "DCGM_FR_FIELD_VIOLATION")),
        ("gpu", "memory_lost_data", ("MEM", 20, "DCGM_FR_VOLATILE_DBE_DETECTED")),
        ("thermal", "hw_thermal", ("THERMAL", 10, "DCGM_FR_CLOCKS_EVENT_THERMAL")),
        ("power", "hw_power_brake", ("POWER", 10, "DCGM_FR_CLOCKS_EVENT_POWER")),
        ("gpu", "xid_79", None),
    )
)
def test_a_fault_of_a_gpu_is_told_by_its_watch(
    part: Part, reason: str, watch: tuple[str, int, str] | None
) -> None:
    faults = [
        Fault(Location("0", uuid, part, ""), reason, "ticket", 0.0) for uuid in (UUID, "GPU-p")
    ]
    told = [watch] if watch else []
    assert list(health({}, NOTHING, faults[:1])) == told
    assert list(health({}, NOTHING, faults[1:])) == []


def _parts(names: str) -> set[str]:
    return {DEV + name for name in names.split()}


NOTHING = DcgmFields(
    identity=Identity(0, UUID, "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", parent="GPU-p", mig=True),
    driver_version="",
    energy=None,
    power_now=None,
    power_range=PowerRange(None, None, None),
    temperature_limits=TemperatureLimits(None, None, None, None),
    video=VideoUse(None, None),
    clock_events=None,
    performance_state=None,
    ecc={},
    violations={},
    inforom_valid=None,
    vgpu_licensed=None,
)


class SharedInstance:
    """An instance that two Slurm jobs of two users hold, whose links have moved so many bytes."""

    name = "held"
    every = 1.0
    metrics = (OWNER, TEMPERATURE, NVLINK_BYTES, XIDS)
    moved = 0.0
    xids: float | None = None
    detail = NOTHING

    def find(self) -> list[tuple[Place, Source]]:
        return [(Place("0", UUID), self)]

    def read(self) -> Reading:
        at = "0", UUID
        held = (("1", "kim"), ("1", "lee"), ("2", "kim"))
        jobs = (OWNER.at(1.0, *at, "", "", "", job, user, "process", "", "") for job, user in held)
        links = (NVLINK_BYTES.at(self.moved, *at, way) for way in ("transmit", "receive"))
        counted = XIDS.at(self.xids, *at, "31")
        samples = (*chain(*jobs), *chain(*links), *TEMPERATURE.at(71.0, *at), *counted)
        return Reading(samples, self.detail)


def test_each_job_has_a_series_and_each_user_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("node-8\n")
    node = LocalNode(tmp_path)
    loop = Loop(node.clock, [SharedInstance()], find_every=10.0)
    for watched in loop.find():
        watched.step()
    found = exported(DcgmNames(node, Settings()).read(loop).samples).splitlines()
    of_temperature = [line for line in found if line.startswith(f"{DEV}GPU_TEMP{{")]
    assert len(of_temperature) == 2
    assert all('GPU_I_PROFILE="3g.20gb"' in line for line in of_temperature)
    assert all('modelName="NVIDIA A100-SXM4-40GB"' in line for line in of_temperature)
    assert all('Hostname="node-8"' in line for line in of_temperature)
    assert len([line for line in found if line.startswith("nvidia_gpu_jobId")]) == 1
    assert found == list(dict.fromkeys(found))


@pytest.mark.parametrize("name", ["\udcff", "a\nb", "x" * 9999])
def test_a_name_of_the_node_may_be_anything(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", name)
    node = LocalNode(tmp_path)
    loop = Loop(node.clock, [SharedInstance()], find_every=10.0)
    for watched in loop.find():
        watched.step()
    found = exported(DcgmNames(node, Settings()).read(loop).samples).splitlines()
    (host,) = {re.findall(r'hostname="([^"]*)"', line)[0] for line in found if "DCGM" in line}
    assert 1 <= len(host) <= 253


def test_without_gpm_the_links_counters_tell_their_rate(tmp_path: Path) -> None:
    node, held, clock = LocalNode(tmp_path), SharedInstance(), SteppedClock(1.0)
    loop = Loop(clock, [held], find_every=10.0)
    view = DcgmNames(node, Settings())
    (watched,) = loop.find()

    def rates() -> list[object]:
        watched.step()
        name = f"{DEV}NVLINK_BANDWIDTH_TOTAL"
        return [s.value for s in view.read(loop).samples if s.metric.name == name]

    assert rates() == []
    clock.now, held.moved = 1.0, 1024e6
    assert rates() == [2000, 2000]  # MB/s, half of it sent and half received, for each job
    clock.now, held.moved = 2.0, 0.0
    assert rates() == []  # the counter was reset


def test_the_xids_of_the_last_minutes_are_counted(tmp_path: Path) -> None:
    node, held, clock = LocalNode(tmp_path), SharedInstance(), SteppedClock(1.0)
    loop = Loop(clock, [held], find_every=10.0)
    view = DcgmNames(node, Settings())
    (watched,) = loop.find()

    def count(at: float, xids: float | None) -> dict[str, float]:
        clock.now, held.xids = at, xids
        watched.step()
        samples = exported(view.read(loop).samples).splitlines()
        found = [s for s in samples if s.startswith("DCGM_EXP_XID_ERRORS_COUNT")]
        assert all('window_size_in_ms="300000"' in line for line in found)
        return {re.findall(r'xid="(\d*)"', s)[0]: float(s.split()[-1]) for s in found}

    assert count(0.0, None) == {}
    assert count(1.0, 0.0) == {"": 0}
    assert count(2.0, 2.0) == {"31": 2}
    assert count(200.0, 3.0) == {"31": 3}
    assert count(303.0, 3.0) == {"31": 1}
    assert count(501.0, 3.0) == {"": 0}
    assert count(502.0, None) == {}
    assert count(503.0, 3.0) == {"": 0}, "none of them is new"
    assert count(504.0, 1.0) == {"31": 1}, "the count began anew"


def test_the_reads_with_lower_clocks_are_counted(tmp_path: Path) -> None:
    node, clock = LocalNode(tmp_path), SteppedClock(1.0)
    held = SharedInstance()
    loop = Loop(clock, [held], find_every=10.0)
    view = DcgmNames(node, Settings())
    (watched,) = loop.find()

    def counts(at: float, *events: str) -> tuple[dict[str, float], dict[str, float]]:
        clock.now, held.detail = at, replace(NOTHING, clock_events=events)
        watched.step()
        view.read(loop)
        samples = view.read(loop).samples  # the same read of the GPU counts once
        count, total = (
            {s.labels[-1]: float(s.value) for s in samples if s.metric is metric}  # type: ignore[arg-type]
            for metric in (CLOCK_EVENTS_COUNT, CLOCK_EVENTS_TOTAL)
        )
        return count, total

    assert counts(0.0, "gpu_idle") == ({"gpu_idle": 1}, {})
    assert counts(10.0, "sw_power_cap") == ({"gpu_idle": 1, "power_cap": 1}, {"power_cap": 1})
    assert counts(20.0, "sw_power_cap")[0] == {"gpu_idle": 1, "power_cap": 2}
    assert counts(305.0) == ({"power_cap": 2}, {"power_cap": 1})
    assert counts(700.0, "sw_power_cap") == ({"power_cap": 1}, {"power_cap": 2})
