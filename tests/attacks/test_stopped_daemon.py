"""A daemon that stands still, as on a node whose hypervisor pauses it."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from contextlib import ExitStack

import pytest

from gpunode.export.web.server import CONNECTIONS
from tests.conftest import by_label, scrape, until, values, watching
from tests.daemon import Daemon
from tests.fakes.nvml import FakeDriver

STANDS = 8.0
"""Seconds for which it is stopped: sixteen windows."""

LONG_STOP = 600.0
"""Seconds for which it is stopped where nothing waits for the test."""


def seconds(running: Daemon) -> dict[str, float]:
    """The ledger of the node's GPU."""
    return by_label(scrape(running), "gpunode_gpu_seconds_total", "state")


@pytest.mark.parametrize("stands", [STANDS, pytest.param(LONG_STOP, marks=pytest.mark.nightly)])
def test_what_was_not_seen_is_unknown_and_nothing_is_concluded_from_it(
    stands: float, fake: FakeDriver
) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as job, watching(fake) as running:
        try:
            fake.write(f"gpus 1\ngpu 0 process {job.pid} 1000000\n")
            until(lambda: seconds(running).get("idle", 0.0) > 2.0)
            before, began = seconds(running), time.monotonic()
            running.process.send_signal(signal.SIGSTOP)
            with ExitStack() as clients:
                for _ in range(3 * CONNECTIONS):
                    client = clients.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(("127.0.0.1", running.port))
                time.sleep(stands)
                running.process.send_signal(signal.SIGCONT)
                assert running.get("/healthz") == b"ok\n"
            until(lambda: seconds(running).get("idle", 0.0) > before["idle"] + 2.0)
            after, took = seconds(running), time.monotonic() - began
            verdict = until(lambda: by_label(scrape(running), "gpunode_gpu_bottleneck", "cause"))
        finally:
            job.kill()
        assert stands - 1.0 <= after["unknown"] - before["unknown"] <= took
        assert sum(after.values()) - sum(before.values()) <= took + 1.0
        late = values(scrape(running), "gpunode_source_late_reads_total", source="gpu_activity")
        assert late >= [1.0]
        assert [cause for cause, holds in verdict.items() if holds] == ["none"]
