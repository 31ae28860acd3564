"""A wall clock that jumps by hours, as when a node is resumed or its time is set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from gpunode.loop.metrics import UP
from tests.conftest import OFTEN, by_label, scrape, until, values
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver

JUMPING = """
import os, time

wall, ahead = time.time, os.environ["CLOCK_AHEAD"]

def jumping():
    with open(ahead) as file:
        return wall() + float(file.read() or 0)

time.time = jumping
"""

HOURS = 36000.0
"""Seconds by which the clock jumps."""


def counters(running: Daemon) -> dict[str, float]:
    """All that may only grow, by name and labels."""
    series = scrape(running)
    return {f"{name}{sorted(of)}": n for (name, of), n in series.items() if name[-6:] == "_total"}


def ledger(running: Daemon) -> float:
    """The seconds of the node's GPU, in all states."""
    return sum(by_label(scrape(running), "gpunode_gpu_seconds_total", "state").values())


def none_is_later(running: Daemon, latest: float) -> bool:
    """Whether all sources of the GPU have been read since the clock was ahead of a moment."""
    (gpu,) = json.loads(running.get("/api/v1/gpus"))
    return bool(max(gpu["times"].values()) < latest)


def suspended(running: Daemon, ahead: Path) -> None:
    """Suspend the node for hours: nothing runs, and afterwards it is later on the wall alone.

    The monotonic clock of Linux stands still meanwhile; here it goes on for the seconds of the
    test. https://man7.org/linux/man-pages/man2/clock_gettime.2.html (CLOCK_BOOTTIME)
    """
    begin, before = time.monotonic(), ledger(running)
    running.process.send_signal(signal.SIGSTOP)
    ahead.write_text(str(HOURS))
    time.sleep(3.0)
    running.process.send_signal(signal.SIGCONT)
    running.next_window(0)
    closed, _, _ = running.next_window(0)
    assert closed - time.time() > HOURS / 2
    assert before < ledger(running) <= before + time.monotonic() - begin + 1.0
    assert 0.0 not in values(scrape(running), UP.name)
    ahead.write_text("0")


def test_a_clock_that_jumps_by_hours_adds_and_takes_no_second(
    fake: FakeDriver, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    environment = {**os.environ, **fake.environment(), "CLOCK_AHEAD": str(ahead)}
    environment["PYTHONPATH"] = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    options = (*OFTEN, "--host.interval=1", "--gpu.processes-interval=1")
    with (
        subprocess.Popen(["sleep", "600"]) as job,
        daemon(*options, environment=environment) as running,
    ):
        try:
            fake.write(f"gpus 1\ngpu 0 process {job.pid} 1000000\n")
            until(lambda: values(scrape(running), "gpunode_job_processes") == [1.0])
            suspended(running, ahead)
            for seconds in (HOURS, -HOURS, 0.0):
                begin, before, counted = time.monotonic(), ledger(running), counters(running)
                ahead.write_text(str(seconds))
                running.next_window(0)
                closed, _, _ = running.next_window(0)
                assert abs(closed - time.time() - seconds) < HOURS / 10
                after, now = ledger(running), counters(running)
                assert before < after <= before + time.monotonic() - begin + 1.0
                assert not {name for name, n in now.items() if n < counted.get(name, n)}
                assert 0.0 not in values(scrape(running), UP.name)
                latest = time.time() + max(0.0, seconds) + HOURS / 10
                until(partial(none_is_later, running, latest))
        finally:
            job.kill()
