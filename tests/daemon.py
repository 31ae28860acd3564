"""A real daemon: started as a user would, asked over HTTP, by tests and benchmarks alike."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx2
import psutil

from gpunode.config.web import socket_here

TIMEOUT = 300.0
"""Seconds to wait for what takes one where nothing else runs: a busy machine is no failure."""

SETTLE = 30.0
"""Seconds before a daemon's cost is measured: what is read once at the start is over by then."""


MAX_MEMORY = math.inf
"""Bytes that a daemon may ever have had in the end; who attacks it sets this."""

PORTS = range(10_000, 32_768)
"""Where servers of tests listen: below the ports that Linux gives to connections and to port 0.
https://docs.kernel.org/networking/ip-sysctl.html#ip-variables
"""


def ports_of_this_process() -> Iterator[int]:
    """The ports in turn, without those of the other processes of this test run.

    A port that was free a moment ago would otherwise be taken by a server of another test.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = PORTS[process :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    start = random.randrange(len(mine))  # another test run has the same ports
    return itertools.cycle([*mine[start:], *mine[:start]])


_ports = ports_of_this_process()


def free_port() -> int:
    """A TCP port that nothing listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different."""
    return list(itertools.islice(filter(is_free, _ports), count))


def is_free(port: int) -> bool:
    """Whether a server could listen on this port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running program that serves HTTP: ``gpunode run``, or a peer."""

    process: psutil.Process
    port: int

    def get(self, path: str, accept: str = "*/*") -> bytes:
        """The body of a page. Raises ``urllib.error.URLError``."""
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def private(self, path: str) -> bytes:
        """The body of a page for root, at the daemon's Unix socket."""
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket_here(self.port))) as client:
            return client.get(f"http://localhost{path}").raise_for_status().content

    def connect(self) -> None:
        """See whether anything listens. Raises ``OSError``."""
        socket.create_connection(("127.0.0.1", self.port), 10).close()

    def wait_for(self, path: str, child: subprocess.Popen[bytes]) -> None:
        """Return once a page answers, or the port if the page is none.

        Raises ``RuntimeError`` where the program ends or hangs.
        """
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if child.poll() is not None:
                raise RuntimeError(f"the program ended with {child.returncode}")
            try:
                self.get(path) if path else self.connect()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"the program is not ready after {TIMEOUT:g} s")

    def gpus(self) -> list[dict[str, Any]]:
        """The last window of every GPU."""
        return list(json.loads(self.get("/api/v1/gpus")))

    def next_window(self, gpu: int = 0) -> tuple[float, dict[str, float], dict[str, Any]]:
        """Wait for a window to close: its end, the ledger then, and all about it."""
        before = self._last_window(gpu)[0]
        while True:
            time.sleep(0.05)
            closed, window = self._last_window(gpu)
            if closed not in (None, before):
                return closed, window["ledger"], window

    def _last_window(self, gpu: int) -> tuple[float | None, dict[str, Any]]:
        entries = self.gpus()
        if gpu >= len(entries):
            return None, {}
        return entries[gpu]["times"].get("gpu_activity"), entries[gpu]["gpu_activity"]

    def series(self) -> int:
        """How many series a scrape has."""
        return sum(line[:1] != b"#" for line in self.get("/metrics").splitlines())

    def cpu_seconds(self) -> float:
        """CPU time used so far, to the nanosecond; /proc tells hundredths of a second."""
        # clock_getcpuclockid(3) of another process: https://man7.org/linux/man-pages/man2/clock_getres.2.html
        return time.clock_gettime((~self.process.pid << 3) | 2)


def peak_memory(pid: int) -> int:
    """The most bytes that a process has had; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def pass_on(errors: IO[bytes], said: list[bytes]) -> None:
    """Write on what a program says on its standard error, and keep it."""
    for line in errors:
        said.append(line)
        os.write(2, line)


@contextmanager
def daemon(
    *options: str,
    environment: Mapping[str, str] = os.environ,
    ready: str = "/readyz",
    module: str = "gpunode",
) -> Iterator[Daemon]:
    """Run a daemon on this machine and wait until the page says that it is ready.

    ``module`` is what Python runs, where not gpunode alone.

    A traceback in its log is a fault of ours, which the daemon isolates and this raises as
    ``AssertionError`` in the end, as it does a crash. With ``--log.level=error`` there would be no
    traceback.
    """
    port = free_port()
    command = [sys.executable, "-m", module, "run", f"--web.listen-address=127.0.0.1:{port}"]
    command.append("--client.socket=")  # the one by default would be taken from another test
    child = subprocess.Popen([*command, *options], env=dict(environment), stderr=subprocess.PIPE)
    assert child.stderr is not None
    said: list[bytes] = []
    listener = threading.Thread(target=pass_on, args=(child.stderr, said))
    listener.start()
    running = Daemon(psutil.Process(child.pid), port)
    try:
        running.wait_for(ready, child)
        yield running
    finally:
        peak = peak_memory(child.pid)
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        listener.join()
        child.stderr.close()
    log = b"".join(said).decode(errors="replace")
    assert "Traceback" not in log, log
    assert child.returncode in (0, -signal.SIGKILL), child.returncode
    assert peak < MAX_MEMORY, f"{peak >> 20} MiB"
