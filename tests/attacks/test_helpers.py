"""A daemon that is nobody, while its helpers are killed, stopped and flooded."""

from __future__ import annotations

import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Series, parse, until, values
from tests.daemon import free_port
from tests.helm.test_chart_profiles import machine, namespaces, opened_folder, own_programs
from tests.helper.helper import helper
from tests.needs import ROOT, as_root, need

NOBODY = "65534"

pytestmark = [as_root, pytest.mark.usefixtures(namespaces.__name__)]


class Nobody:
    """A daemon without any right, on a node with a GPU and a process of a tenant on it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def scrape(self) -> Series:
        """What it exports; nothing while it does not listen yet."""
        assert self.process.poll() is None, "the daemon has ended"
        try:
            url = f"http://127.0.0.1:{self.port}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return parse(answer.read().decode())
        except OSError:
            return {}

    def up(self) -> float | None:
        """Whether it says that its helpers answer."""
        found = values(self.scrape(), "gpunode_source_up", source="helpers")
        return found[0] if found else None


@contextmanager
def nobody(node: Path, helpers: Path) -> Iterator[Nobody]:
    programs, port = own_programs(), free_port()
    command = [need("bwrap"), "--die-with-parent", "--cap-add", "ALL", *programs.root]
    for path, place in (("tests/attacks", "/confine"), ("docker", "/seccomp")):
        command += ["--ro-bind", str(ROOT / path), place]
    command += ["--ro-bind", str(node / "driver"), programs.driver]
    command += ["--ro-bind", str(helpers), "/helpers", "--proc", "/proc", "--dev", "/dev"]
    command += ["--ro-bind", "/sys", "/sys", "--remount-ro", "/"]
    command += [programs.python, "/confine/rights.py", NOBODY, NOBODY, ""]
    command += [programs.python, "-m", "gpunode", "run", "--client.socket="]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--path.helpers=/helpers"]
    command += ["--gpu.processes-interval=1", "--host.interval=1"]
    environment = {**programs.environment, "FAKE_NVML": f"{programs.driver}/nvml.script"}
    with subprocess.Popen(command, env=environment) as child:
        try:
            yield Nobody(child, port)
        finally:
            child.terminate()


def read(series: Series) -> list[float]:
    """What only a helper can have read."""
    return values(series, "gpunode_job_io_bytes_total", direction="read")


def test_helpers_that_end_hang_or_are_flooded_cost_what_they_read_and_nothing_else() -> None:
    with (
        opened_folder() as node,
        opened_folder() as folder,
        machine(node, True),
        nobody(node, folder) as running,
    ):
        until(lambda: values(running.scrape(), "gpunode_gpu_info"))
        assert not read(running.scrape())
        with helper("files", folder, f"--user={NOBODY}") as child:
            until(lambda: read(running.scrape()) and running.up() == 1.0)
            child.send_signal(signal.SIGSTOP)
            until(lambda: running.up() == 0.0)
            assert values(running.scrape(), "gpunode_gpu_info")
            child.send_signal(signal.SIGCONT)
            until(lambda: running.up() == 1.0)
        until(lambda: running.up() == 0.0)
        assert values(running.scrape(), "gpunode_gpu_info")
        with helper("files", folder, f"--user={NOBODY}"):
            until(lambda: read(running.scrape()) and running.up() == 1.0)
            strangers = [connected(folder / "files.sock") for _ in range(500)]
            until(lambda: read(running.scrape()) and running.up() == 1.0)
            for one in strangers:
                one.close()


def connected(path: Path) -> socket.socket:
    """A connection of root's, which a helper does not answer."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(str(path))
    return one
