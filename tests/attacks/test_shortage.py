"""A daemon that is short of descriptors, memory, threads or a driver, or is shown odd names."""

from __future__ import annotations

import http.client
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpunode.__main__ import MIN_OPEN_FILES
from gpunode.config.daemon import Settings
from gpunode.holders.census import Census
from gpunode.loop.metrics import UP
from gpunode.nccl.ras import NcclRas
from gpunode.node.node import NoDescriptors
from gpunode.serving.requests import ServingEngines
from tests.conftest import scrape, until, values, watching
from tests.daemon import TIMEOUT, Daemon, daemon, free_port
from tests.fakes.nvml import FakeDriver
from tests.holders.slurm import SCOPE, SLUID
from tests.machine import OneGpu, begin
from tests.needs import need

DEADLINE = 10.0
"""Seconds in which a scrape has to be answered, by default."""


def test_a_file_with_an_odd_name_does_not_end_the_exposition(tmp_path: Path) -> None:
    for device in (b"mlx5_\xff", b"mlx5_\xfe", b"mlx5_0\x07", b"mlx5_1"):
        counters = os.fsencode(tmp_path) + b"/sys/class/infiniband/" + device + b"/ports/1/counters"
        os.makedirs(counters)
        Path(os.fsdecode(counters), "port_rcv_data").write_text("1\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu0 1 0 1 1 0 0 0 0 0 0 0\n")
    with daemon(f"--path.rootfs={tmp_path}") as served:
        read = until(lambda: values(scrape(served), "gpunode_infiniband_bytes_total"))
        series = scrape(served)
    assert read
    assert values(series, "gpunode_infiniband_bytes_total", device="mlx5_1") == [4.0]
    assert all(value.isprintable() for _, have in series for _, value in have)


def test_without_descriptors_sources_fail_and_recover(
    fake: FakeDriver, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def failures() -> int:
        said.append(capfd.readouterr().err)
        return "".join(said).count("memory: read failed")

    with watching(fake, "--host.interval=1") as served:
        until(lambda: values(scrape(served), UP.name, source="memory") == [1.0])
        before = served.process.rlimit(resource.RLIMIT_NOFILE)
        served.process.rlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        until(failures, timeout=60)
        served.process.rlimit(resource.RLIMIT_NOFILE, before)
        until(lambda: values(scrape(served), UP.name, source="memory") == [1.0])
    assert failures() == 1


OF_A_JOB = ("gpu_owners, GPU 0", "job_processes, GPU 0")


def test_without_descriptors_nothing_is_told_of_a_job_and_its_seconds_count_on(
    fake: FakeDriver, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cannot be opened would look like processes that have ended, of which nothing is told."""
    said: list[str] = []

    def failed() -> bool:
        said.append(capfd.readouterr().err)
        lines = "".join(said).splitlines()
        return all(any(f"{of}: read failed" in line for line in lines) for of in OF_A_JOB)

    with (
        subprocess.Popen(["sleep", "600"]) as job,
        watching(fake, "--gpu.processes-interval=1") as served,
    ):
        try:
            fake.write(f"gpus 1\ngpu 0 process {job.pid} 1000000\n")
            until(lambda: values(scrape(served), "gpunode_job_processes") == [1.0])
            before = served.process.rlimit(resource.RLIMIT_NOFILE)
            counted = sum(values(scrape(served), "gpunode_gpu_seconds_total", gpu="0"))
            served.process.rlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            begin = time.monotonic()
            until(failed, timeout=60)
            lacked = time.monotonic() - begin
            served.process.rlimit(resource.RLIMIT_NOFILE, before)
            series = scrape(served)
            assert sum(values(series, "gpunode_gpu_seconds_total", gpu="0")) >= counted + lacked / 2
            assert values(series, UP.name, source="gpu_activity") == [1.0]
            until(lambda: values(scrape(served), "gpunode_job_processes") == [1.0])
        finally:
            job.kill()
    assert "no file descriptor left: raise its LimitNOFILE" in "".join(said)


def status(served: Daemon, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("GET", path)
    code = connection.getresponse().status
    connection.close()
    return code


def test_without_memory_for_threads_what_runs_goes_on_and_the_rest_follows(
    fake: FakeDriver,
) -> None:
    def up(gpu: str) -> list[float]:
        return values(scrape(served), UP.name, source="gpu_activity", gpu=gpu)

    fake.write("gpus 2\ngpu 1 fail nvmlDeviceGetHandleByIndex 15\n")
    with watching(fake) as served:
        until(lambda: up("0") == [1.0])
        assert up("1") == []
        before = served.process.rlimit(resource.RLIMIT_AS)
        # Less than a thread's stack of 8 MiB is left.
        served.process.rlimit(
            resource.RLIMIT_AS, (served.process.memory_info().vms + (6 << 20), before[1])
        )
        fake.write("gpus 2\n")
        for _ in range(3):
            served.next_window(0)
        assert up("0") == [1.0]
        served.process.rlimit(resource.RLIMIT_AS, before)
        until(lambda: up("1") == [1.0])
        until(lambda: status(served, "/readyz") == 200)


NO_THREADS = """
import threading

def refuse(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
"""


def test_a_daemon_without_any_thread_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_THREADS)
    ended = subprocess.run(
        [sys.executable, "-m", "gpunode", "--web.listen-address=127.0.0.1:0"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ended.returncode == 2
    assert "can't start new thread: raise pids.max" in ended.stderr
    assert ended.stderr.count("\n") == 1


def may_open(files: int, *arguments: str) -> list[str]:
    """A command of gpunode that may open so many files."""
    limit = f'ulimit -n {files} && exec "$@"'
    return [need("sh"), "-c", limit, "sh", sys.executable, "-m", "gpunode", *arguments]


@pytest.mark.parametrize("command", [["run"], ["helper", "files", "--folder=/nowhere"]])
@pytest.mark.parametrize("files", [5, 7, MIN_OPEN_FILES - 1])
def test_with_too_few_descriptors_to_start_it_ends_with_one_line(
    command: list[str], files: int
) -> None:
    ended = subprocess.run(
        may_open(files, *command), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        f"gpunode: {files} files may be open, and it takes {MIN_OPEN_FILES} at least: "
        "raise its LimitNOFILE (ulimit -n)\n"
    )


@pytest.mark.parametrize(("kind", "call"), [(NcclRas, "ask"), (ServingEngines, "listening_at")])
def test_a_server_that_no_descriptor_is_left_to_ask_is_a_failed_read_and_no_missing_one(
    kind: type[NcclRas] | type[ServingEngines], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: object) -> None:
        raise NoDescriptors

    node = OneGpu(os.getpid())
    source = kind(Census(node), Settings())
    source.read()
    monkeypatch.setattr(node, call, lacks)
    node.stepped.now += 1000
    with pytest.raises(NoDescriptors):
        source.read()
    monkeypatch.undo()
    node.stepped.now += 1000
    assert source.read() is not None


@pytest.mark.nightly
def test_wherever_descriptors_run_out_all_is_read_again_once_there_are_some(
    fake: FakeDriver,
) -> None:
    """With one more each time, another place is the first that cannot open what it needs."""
    with (
        subprocess.Popen(["sleep", "infinity"]) as job,
        watching(fake, "--gpu.processes-interval=1", "--host.interval=1") as served,
    ):
        try:
            fake.write(f"gpus 1\ngpu 0 process {job.pid} 1000000\n")
            until(lambda: values(scrape(served), "gpunode_job_processes") == [1.0])
            before = served.process.rlimit(resource.RLIMIT_NOFILE)
            up = scrape(served)
            for files in range(3, served.process.num_fds() + 16):
                served.process.rlimit(resource.RLIMIT_NOFILE, (files, before[1]))
                time.sleep(1.5)
                served.process.rlimit(resource.RLIMIT_NOFILE, before)
                until(lambda: status(served, "/readyz") == 200)
            wanted = {key for key, value in up.items() if key[0] == UP.name and value}
            until(lambda: all(scrape(served).get(key) for key in wanted))
            assert values(scrape(served), "gpunode_job_processes") == [1.0]
        finally:
            job.kill()


@pytest.mark.nightly
def test_among_a_hundred_thousand_processes_a_job_is_read_and_scrapes_are_answered(
    fake: FakeDriver, tmp_path: Path
) -> None:
    """A job of Slurm whose cgroups are not visible has all of them looked through."""
    rootfs, tenant = tmp_path / "root", tmp_path / "cgroup"
    tenant.write_text("0::/user.slice\n")
    for pid in range(2, 100_002):
        folder = rootfs / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cgroup").symlink_to(tenant)
    job = begin(rootfs, 200_000)
    (job / "cgroup").write_text(f"0::{SCOPE}/{SLUID}/step_0/user/task_0\n")
    fake.write("gpus 1\ngpu 0 process 200000 1000000\n")
    try:
        with watching(fake, f"--path.rootfs={rootfs}", "--gpu.processes-interval=1") as served:
            until(lambda: values(scrape(served), "gpunode_job_processes") == [1.0])
            until(lambda: values(scrape(served), "gpunode_gpu_owner_info", slurm_job=SLUID))
            for _ in range(20):
                asked = time.monotonic()
                served.get("/metrics")
                assert time.monotonic() - asked < DEADLINE
                time.sleep(0.5)
    finally:
        shutil.rmtree(rootfs)


def test_with_the_fewest_descriptors_a_scrape_is_answered() -> None:
    port = free_port()
    address = f"--web.listen-address=127.0.0.1:{port}"
    command = may_open(MIN_OPEN_FILES, "run", address, "--client.socket=")
    with subprocess.Popen(command) as child:
        try:
            served = Daemon(psutil.Process(child.pid), port)
            served.wait_for("/healthz", child)
            assert values(scrape(served), UP.name)
        finally:
            child.kill()


def test_a_driver_that_hangs_as_it_is_opened_hides_nothing_of_the_host(fake: FakeDriver) -> None:
    fake.write("gpus 1\ngpu 0 hang nvmlDeviceGetHandleByIndex 600\n")
    with watching(fake) as served:
        series = scrape(served)
    assert values(series, UP.name, source="memory") == [1.0]
    assert values(series, UP.name, source="cpu") == [1.0]
