"""A daemon that is nobody, while its helpers are killed, stopped and flooded."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from gpunode.helper.files import MAX_READ
from gpunode.helper.inside import content
from gpunode.helper.serve import HELPERS
from gpunode.node.patience import CROWDED as OVERDUE
from helm.generate import CHART
from tests.attacks.conftest import MAX_MEMORY
from tests.conftest import OFTEN, Series, by_label, parse, until, values
from tests.daemon import Daemon, free_port, peak_memory
from tests.fakes.nvml import FakeDriver
from tests.helm.test_chart_profiles import (
    inside,
    machine,
    namespaces,
    opened_folder,
    own_programs,
    stop,
)
from tests.helper.helper import ask, helper
from tests.needs import ROOT, as_root, need
from tests.tenant import root_with_home, tenant

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
            assert peak_memory(inside(child)) < MAX_MEMORY
        finally:
            stop(child)


def read(series: Series) -> list[float]:
    """What only a helper can have read."""
    return values(series, "gpunode_job_io_bytes_total", direction="read")


@pytest.mark.parametrize("work", HELPERS)
def test_a_helper_that_ends_hangs_or_is_flooded_costs_what_it_reads_and_nothing_else(
    work: str,
) -> None:
    with (
        opened_folder() as node,
        opened_folder() as folder,
        machine(node, True),
        nobody(node, folder) as running,
        ExitStack() as others,
    ):
        options = [f"--user={NOBODY}"]
        if work == "sockets":
            options += [f"--kubelet={node}/kubelet/kubelet.sock", f"--client={folder}/client.sock"]
        if work != "files":
            others.enter_context(helper("files", folder, options[0]))
            until(lambda: read(running.scrape()))

        def goes_on(up: float, *helpers: str) -> bool:
            """Whether this helper answers or not, while all else is read."""
            series = running.scrape()
            reads = read(series) or (work == "files" and not up)
            there = values(series, "gpunode_gpu_info") and answering(series) >= set(helpers)
            return bool(running.up() == up and reads and there)

        with helper(work, folder, *options) as child:
            until(lambda: goes_on(1.0, work))
            child.send_signal(signal.SIGSTOP)
            until(lambda: goes_on(0.0))
            child.send_signal(signal.SIGCONT)
            until(lambda: goes_on(1.0))
        until(lambda: goes_on(0.0))
        with helper(work, folder, *options):
            until(lambda: goes_on(1.0))
            strangers = [connected(folder / f"{work}.sock") for _ in range(500)]
            until(lambda: goes_on(1.0, work, "files"))
            for one in strangers:
                one.close()


def answering(series: Series) -> set[str]:
    """The helpers that tell what they cost."""
    return set(by_label(series, "gpunode_helper_cpu_seconds_total", "helper"))


ENTER = """echo $$ > "$0" && exec "$@\""""


@contextmanager
def limited(memory: int) -> Iterator[Path]:
    """The folder of a cgroup whose processes have so many bytes of memory."""
    cgroups = Path("/sys/fs/cgroup")
    second = (cgroups / "cgroup.controllers").exists()
    made = cgroups / ("" if second else "memory") / f"gpunode-{os.getpid()}"
    try:
        made.mkdir()
        name = "memory.max" if second else "memory.limit_in_bytes"
        (made / name).write_text(str(memory))
    except OSError as error:
        pytest.skip(f"no right to limit memory: {error}")
    try:
        yield made
    finally:
        until(lambda: not (made / "cgroup.procs").read_text())
        made.rmdir()


def test_the_memory_that_the_chart_gives_is_enough_for_all_that_the_daemon_asks_at_once(
    tmp_path: Path,
) -> None:
    template = (CHART / "templates/daemonset.yaml").read_text()
    memory = int(re.findall(r'"limits" \(dict "memory" "(\d+)Mi"\)', template)[0]) << 20
    root = root_with_home(tmp_path)
    (root / "home/log").write_bytes(b"x" * MAX_READ)
    with limited(memory) as cgroup, tenant(root, NCCL_DEBUG_FILE="/home/log") as pid:
        before = (need("sh"), "-c", ENTER, str(cgroup / "cgroup.procs"))
        own = re.search(r"^(?:0:|\d+:name=systemd):(/.*)$", content("/proc/self/cgroup"), re.M)
        assert own
        with helper("files", tmp_path, f"--unit={own[1]}", before=before) as child:
            assert (cgroup / "cgroup.procs").read_text().split() == [str(child.pid)]
            part = (tmp_path, "files", "part", f"/proc/{pid}/root/home/log", "0")
            with ThreadPoolExecutor(OVERDUE) as asking:
                answers = list(asking.map(lambda _: len(ask(*part)), range(4 * OVERDUE)))
            assert answers == [MAX_READ + len("0 ")] * (4 * OVERDUE)
            assert child.poll() is None


SMALL = 64 << 20
"""Bytes of memory that are too few for four GPUs."""


def test_in_a_cgroup_of_64_mib_it_answers_in_time_or_is_ended_by_the_kernel(
    fake: FakeDriver,
) -> None:
    fake.write("gpus 4\n")
    port = free_port()
    command = [sys.executable, "-m", "gpunode", "run", "--client.socket=", *OFTEN]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with limited(SMALL) as cgroup:
        enter = [need("sh"), "-c", ENTER, str(cgroup / "cgroup.procs")]
        environment = {**os.environ, **fake.environment()}
        with subprocess.Popen([*enter, *command], env=environment) as child:
            try:
                served = Daemon(psutil.Process(child.pid), port)
                with suppress(RuntimeError):  # it has ended
                    served.wait_for("/readyz", child)
                for _ in range(60):
                    try:
                        served.get("/metrics")
                    except OSError:
                        assert child.wait(10) == -signal.SIGKILL
                    if child.poll() is not None:
                        break
                    time.sleep(0.5)
                assert child.poll() in (None, -signal.SIGKILL)
            finally:
                child.kill()


def connected(path: Path) -> socket.socket:
    """A connection of root's, which a helper does not answer."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(str(path))
    return one
