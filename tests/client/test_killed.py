"""Real trainings that are killed at a known step and go on from a checkpoint: what they repeat."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conftest import Series, by_label, scrape, until, values, watching
from tests.daemon import TIMEOUT, Daemon
from tests.fakes.nvml import FakeDriver
from tests.needs import ROOT, need_library

pytestmark = pytest.mark.integration

REPEATED = "gpunode_job_repeated_seconds_total"
WORKS = "gpu 0 power 650\ngpu 0 util 100\ngpu 0 gpm 2 95\ngpu 0 gpm 3 60\ngpu 0 gpm 1 99\n"


def attempt(running: Daemon, fake: FakeDriver, command: list[str], socket: str) -> Series:
    """What is exported after one attempt, which ends or is killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter"), "CUDA_VISIBLE_DEVICES": ""}
    environment["GPUNODE_CLIENT_SOCKET"] = socket
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True) as process:
        try:
            fake.write(f"gpus 1\n{WORKS}gpu 0 process {process.pid} 1000000\n")
            until(lambda: len(values(scrape(running), "gpunode_gpu_process_info")) == 1)
            print(file=process.stdin, flush=True)
            process.wait(timeout=TIMEOUT)
            found = scrape(running)
        finally:
            process.kill()
    fake.write("gpus 1\n")
    until(lambda: not values(scrape(running), "gpunode_gpu_process_info"))
    return found


def killed(fake: FakeDriver, folder: Path, program: str, *way: str) -> Series:
    """What is told once a training has gone on from its checkpoint."""
    python = need_library("lightning" if "lightning" in program else "torch")
    path = ROOT / f"tests/client/frameworks/{program}.py"
    command = [python, "-W", "ignore", str(path), str(folder), *way]
    fake.write("gpus 1\n")
    with (
        tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as short,  # 108 bytes at most
        watching(
            fake,
            f"--client.socket={short}/client.sock",
            "--client.interval=1",
            "--gpu.owners-interval=1",
            "--gpu.processes-interval=1",
        ) as running,
    ):
        attempt(running, fake, command, f"{short}/client.sock")
        return attempt(running, fake, command, f"{short}/client.sock")


def truth(folder: Path) -> tuple[list[int], dict[tuple[str, int], float]]:
    """The steps that were done twice, and when each thing ended first."""
    steps: list[int] = []
    times: dict[tuple[str, int], float] = {}
    for line in (folder / "truth").read_text().splitlines():
        what, number, time = line.split()
        if what == "step":
            what += " again" if int(number) in steps else ""
            steps.append(int(number))
        times.setdefault((what, int(number)), float(time))
    return [number for number in set(steps) if steps.count(number) > 1], times


@pytest.mark.parametrize("way", ["client", "lightning"])
def test_the_steps_that_are_repeated_are_told_by_their_numbers(
    way: str, fake: FakeDriver, tmp_path: Path
) -> None:
    program = ("killed_with_lightning",) if way == "lightning" else ("killed", way)
    found = killed(fake, tmp_path, *program)
    repeated, times = truth(tmp_path)
    assert len(repeated) == 3
    again = [times["step again", number] for number in sorted(repeated)]
    a_step = (again[-1] - again[0]) / (len(again) - 1)
    seconds = by_label(found, REPEATED, "bound")
    print(way, "repeated", len(repeated), "steps of", a_step, "s; told", seconds)
    assert seconds["lower"] == seconds["estimate"] == seconds["upper"]
    assert seconds["estimate"] / a_step == pytest.approx(len(repeated), abs=1.2)


def test_without_a_client_the_time_since_the_last_checkpoint_is_told_within_bounds(
    fake: FakeDriver, tmp_path: Path
) -> None:
    found = killed(fake, tmp_path, "killed", "none")
    repeated, times = truth(tmp_path)
    lost = times["killed", max(repeated)] - times["saved", min(repeated) - 1]
    seconds = by_label(found, REPEATED, "bound")
    print("lost", lost, "told", seconds)
    assert 0 < seconds["lower"] <= lost <= seconds["upper"] < 2 * lost + 3
    assert seconds["estimate"] == pytest.approx(lost, abs=2)
