"""The tour, as somebody walks it: each of its commands, in its order, in one shell."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from gpunode.cli.main import main
from tests.daemon import free_ports
from tests.needs import find, need

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs/tour.md").read_text()
BLOCKS = [block.strip() for block in re.findall(r"```sh\n(.*?)```", TOUR, re.DOTALL)]
INSTALL, *WALK = BLOCKS
ENDED = "the block has ended with"
TIMEOUT = 150.0

SEEN = (
    "hang: they wait for GPU 5",
    "",
    "stalled_collective",
    "",
    "JobStalled",
    "Continue it: `kill -CONT 41500` on laptop",
    "eight weeks",
    "gpunode-report.html",
    "",
)
"""What each block after the installation comes to print."""


class Shell:
    """A shell that is told one block after the other, and what it has printed."""

    def __init__(self, folder: Path, replace: dict[str, str]) -> None:
        self.replace = replace
        self.printed = folder / "printed"
        self.file: IO[bytes] = self.printed.open("wb")
        tools = {Path(found).parent for name in ("prometheus", "promtool") if (found := find(name))}
        path = [str(Path(sys.executable).parent), *map(str, tools), os.environ["PATH"]]
        self.process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=self.file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PATH": os.pathsep.join(path), "COLUMNS": "120"},
            process_group=0,
        )

    def run(self, block: str, number: int, until: str) -> None:
        """Tell it a block; one that asks for something again, while it is not there yet."""
        for before, after in self.replace.items():
            block = block.replace(before, after)
        deadline = time.monotonic() + TIMEOUT
        for attempt in itertools.count():
            begin = self.printed.stat().st_size
            assert self.process.stdin
            told = f"{block}\necho {ENDED} $? {number}.{attempt}\n"
            self.process.stdin.write(told.encode())
            self.process.stdin.flush()
            ended = self._wait(rf"{ENDED} (\d+) {number}\.{attempt}", begin, deadline)
            asks = any(one in block for one in ("curl", "query instant", "gpunode why"))
            if block.endswith("&"):
                self._wait(f"({until})", begin, deadline)
                return
            if ended == "0" and until in self.since(begin):
                return
            assert asks, self.since(begin)
            assert time.monotonic() < deadline, self.since(begin)
            time.sleep(1.0)

    def _wait(self, pattern: str, begin: int, deadline: float) -> str:
        while not (found := re.search(pattern, self.since(begin))):
            assert time.monotonic() < deadline, self.since(begin)
            time.sleep(0.1)
        return found[1]

    def since(self, begin: int) -> str:
        return self.printed.read_bytes()[begin:].decode(errors="replace")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    node, prometheus, past = free_ports(3)
    config = (ROOT / "docs/tour/prometheus.yml").read_text()
    own = tmp_path / "prometheus.yml"
    config = config.replace("9816", str(node)).replace("/tmp/gpunode-tour", str(tmp_path / "tsdb"))
    config = config.replace("15s", "5s")
    own.write_text(config)
    started = Shell(
        tmp_path,
        {
            "pip install -e '.[dev]'\n": "",  # the tests have it already
            "docs/tour/prometheus.yml": str(own),
            "/tmp/gpunode-tour": str(tmp_path / "tsdb"),
            "demo hang --once": "demo hang --once --speed 40 --web.listen-address=127.0.0.1:0",
            "--times 100": f"--times 100 --web.listen-address=127.0.0.1:{node}",
            "127.0.0.1:9816": f"127.0.0.1:{node}",
            "127.0.0.1:9095": f"127.0.0.1:{prometheus}",
            "9091": str(past),
            "--from 28d": f"--from 28d --output {tmp_path}/gpunode-report.html",
            "curl -s": "curl -s --retry 30 --retry-connrefused --retry-delay 1",
        },
    )
    yield started
    if started.process.poll() is None:
        os.killpg(started.process.pid, 15)
    started.process.communicate()
    started.file.close()


def test_the_installation_names_what_there_is() -> None:
    assert "pip install -e '.[report]'" in INSTALL
    for extra in re.findall(r"pip install [^\[]*\[(\w+)\]", TOUR):
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()


def test_what_the_tour_shows_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TOUR):
        assert (ROOT / "docs" / target).exists(), target
    for path in re.findall(r"`((?:dashboards|alerts|exporter)/[^` ]+)`", TOUR):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    ("incident", "gpus"), [("comm", 2), ("comm_nop2p", 2), ("h2d", 2), ("hang", 1)]
)
def test_what_nvidia_smi_takes_for_work_is_none(
    incident: str, gpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"`{incident}`" in TOUR
    main(["replay", incident, "--speed=0", "--print=metrics"])
    told = capsys.readouterr().out
    for gpu in range(gpus):
        (shown,) = re.findall(rf'gpunode_gpu_utilization_ratio{{gpu="{gpu}".*}} (\S+)', told)
        ledger = rf'gpunode_gpu_seconds_total{{gpu="{gpu}",state="(\w+)".*}} (\S+)'
        hours = {state: float(seconds) for state, seconds in re.findall(ledger, told)}
        assert float(shown) >= 0.98
        assert hours["compute"] < 0.02 * sum(hours.values())


@pytest.mark.integration
def test_every_command_of_the_tour_works(shell: Shell) -> None:
    need("prometheus")
    need("promtool")
    assert len(WALK) == len(SEEN)
    for number, (block, until) in enumerate(zip(WALK, SEEN, strict=True)):
        shell.run(block, number, until)
    deadline = time.monotonic() + TIMEOUT
    while psutil.Process(shell.process.pid).children(recursive=True):
        assert time.monotonic() < deadline, "what the tour starts has not ended"
        time.sleep(0.1)
    report = Path(shell.replace["--from 28d"].split()[-1])
    assert "GPU hours, worth EUR" in report.read_text()
