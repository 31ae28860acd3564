"""A driver that is reloaded, hangs, lies, or changes while the daemon uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpunode.audit.source import CHECKS
from gpunode.node.tape import TapeNode
from tests.conftest import OFTEN, Series, by_label, scrape, until, values, watching
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver


def test_a_driver_that_is_reloaded_under_its_users_ends_no_process(fake: FakeDriver) -> None:
    assert int(fake.run("tests.attacks.reloads", "60")) > 60


def of_gpu(series: Series, gpu: int) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Every series of one GPU, those about its sources aside."""
    return {
        (name, labels)
        for name, labels in series
        if ("gpu", str(gpu)) in labels and not name.startswith("gpunode_source_")
    }


def up(series: Series, source: str, **labels: str) -> list[float]:
    return values(series, "gpunode_source_up", source=source, **labels)


def grows(running: Daemon) -> bool:
    """Whether several looks for GPUs add threads, as they do while some hang for the first time."""
    before = running.process.num_threads()
    time.sleep(1.5)
    return running.process.num_threads() > before


@pytest.fixture(scope="module")
def of_a_well_gpu(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all series that a GPU has when all is well."""
    fake = FakeDriver(fake_library, tmp_path_factory.mktemp("well") / "script")
    fake.write("gpus 2\n")
    with watching(fake) as running:
        until(lambda: len(of_gpu(scrape(running), 1)) > 100)
        time.sleep(1.5)  # the slowest source of a GPU
        return {name for name, _ in of_gpu(scrape(running), 0)}


def assert_complete(running: Daemon, wanted: set[str]) -> None:
    def missing() -> set[str]:
        return wanted - {name for name, _ in of_gpu(scrape(running), 0)}

    until(lambda: not missing())


HANG_AT_START = [
    "gpu 1 hang nvmlDeviceGetHandleByIndex 600",
    "gpu 1 hang nvmlDeviceGetUUID 600",
    "gpu 1 hang nvmlDeviceGetName 600",
    "gpu 1 hang nvmlDeviceGetMigMode 600",
    "gpu 1 hang nvmlDeviceGetPciInfo 600",
]


def test_gpus_that_hang_from_the_start_are_found_when_they_answer(
    fake: FakeDriver, of_a_well_gpu: set[str]
) -> None:
    lines = [line.replace("gpu 1", f"gpu {n}") for n, line in enumerate(HANG_AT_START, 1)]
    fake.write("gpus 6\n" + "\n".join(lines))
    begun = time.monotonic()
    with watching(fake) as running:
        assert time.monotonic() - begun < 25, "not ready"
        assert_complete(running, of_a_well_gpu)
        series = scrape(running)
        assert up(series, "gpu") == [1]
        assert values(series, "gpunode_filefd_allocated")
        until(lambda: not grows(running))
        fake.write("gpus 6\n")
        until(lambda: len(by_label(scrape(running), "gpunode_gpu_info", "gpu")) == 6)


@pytest.mark.parametrize("call", ["PersistenceMode", "ComputeRunningProcesses"])
def test_an_audit_beside_a_gpu_that_hangs_ends_and_says_what_it_cannot_tell(
    fake: FakeDriver, call: str
) -> None:
    fake.write(f"gpus 2\ngpu 1 hang nvmlDeviceGet{call} 600\n")
    ran = subprocess.run(
        [sys.executable, "-m", "gpunode", "audit", "--json"],
        env={**os.environ, **fake.environment()},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout, ran.stderr
    checks = json.loads(ran.stdout)
    assert [check["check"] for check in checks] == [check.name for check in CHECKS]
    hung = [check for check in checks if check["found"].startswith("no answer within")]
    assert hung
    assert {check["status"] for check in hung} == {"unknown"}


def test_a_driver_that_hangs_from_the_start_costs_no_other_source(fake: FakeDriver) -> None:
    fake.write("init hang 600\n")
    with watching(fake) as running:
        series = scrape(running)
        assert up(series, "gpu") == [0]
        assert values(series, "gpunode_filefd_allocated")
        fake.write("")
        until(lambda: of_gpu(scrape(running), 0))


def test_what_is_not_about_the_gpus_that_hang_goes_on(
    fake: FakeDriver, tmp_path: Path, of_a_well_gpu: set[str]
) -> None:
    fake.write("gpus 4\n")
    options = (*OFTEN, "--client.interval=1", "--host.interval=1")
    socket = f"--client.socket={tmp_path}/client.sock"
    environment = {**os.environ, **fake.environment()}
    with daemon(*options, socket, environment=environment) as running:
        assert_complete(running, of_a_well_gpu)
        fake.write(
            "gpus 5\n"
            "gpu 1 hang nvmlDeviceGetComputeRunningProcesses 600\n"
            "gpu 2 hang nvmlDeviceGetMigMode 600\n"
            "gpu 3 hang nvmlDeviceGetFieldValues 600\n"
        )
        until(lambda: up(scrape(running), "gpu_activity", gpu="1") == [0])
        until(lambda: up(scrape(running), "gpu_health", gpu="2") == [0])
        until(lambda: up(scrape(running), "gpu_health", gpu="3") == [0])
        until(lambda: of_gpu(scrape(running), 4))  # and a GPU that is added is found
        begun = time.monotonic()
        while time.monotonic() < begun + 3:
            series = scrape(running)
            assert of_a_well_gpu <= {name for name, _ in of_gpu(series, 0)}
            time.sleep(0.5)
        assert up(series, "training_steps") == up(series, "nccl_ras") == [1]
        fake.write("gpus 5\n")
        until(lambda: up(scrape(running), "gpu_activity", gpu="1") == [1])


def test_gpus_that_come_go_and_have_no_valid_name_are_found_at_the_next_look(
    fake: FakeDriver,
) -> None:
    looks = [json.loads(line) for line in fake.run("tests.attacks.changes").splitlines()]
    assert [[gpu["index"] for gpu in look] for look in looks] == [
        [0],
        [0, 1, 2],
        [0, 2],
        [0],
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2, 3],
    ]
    misnamed = looks[-1][3]
    assert misnamed["uuid"] == "GPU-\ufffd\ufffd\ufffd-1"
    assert misnamed["name"] == "NVIDIA\ufffd\ufffd( H200\ufffd[31m"
    assert misnamed["serial"] == "\ufffd\ufffd"
    assert misnamed["vbios"] == "\ufffd(\ufffd"
    assert misnamed["bus_id"] == "\ufffdf:1b"


def test_no_error_or_garbage_of_one_gpu_is_exported_or_costs_another(fake: FakeDriver) -> None:
    assert fake.run("tests.attacks.campaign") == ""


HANG_AT_EXIT = {
    "a call": ("", "gpu 0 hang nvmlDeviceGetTemperature 600\n"),
    "a look": ("", "gpu 0 hang nvmlDeviceGetMigMode 600\n"),
    "the start": ("init hang 600\n", "init hang 600\n"),
    "a reload": ("", "system 1\ninit hang 600\n"),
}


@pytest.mark.parametrize("what", HANG_AT_EXIT)
def test_an_exit_tears_no_driver_down_under_what_hangs_in_it(fake: FakeDriver, what: str) -> None:
    before, after = HANG_AT_EXIT[what]
    fake.write(before)
    with watching(fake) as running:
        fake.write(after)
        time.sleep(1.5)  # everything is asked at least once
        running.process.terminate()
        assert running.process.wait(10) == 0


def test_a_recording_beside_a_gpu_that_hangs_ends_with_a_whole_tape(
    fake: FakeDriver, tmp_path: Path
) -> None:
    fake.write("gpu 0 hang nvmlDeviceGetTemperature 600\n")
    path = tmp_path / "tape.jsonl.gz"
    fake.run("gpunode", "record", f"{path}", "--duration=2", "--client.socket=")
    assert TapeNode(path).end > 0
