"""A real daemon, a real process that is killed, and the incident that is read the next morning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from gpunode.cli.main import main
from gpunode.incidents.black_box import BlackBox
from gpunode.incidents.folder import Folder
from gpunode.incidents.incident import Incident, parse
from gpunode.node.tape import TapeNode
from tests.conftest import until, watching
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver
from tests.needs import as_root

OFTEN = ("--gpu.owners-interval=1", "--gpu.processes-interval=1")


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a GPU is held by."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as child:
        yield child
        child.kill()


def incidents(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(daemon.private("/api/v1/incidents"))
    return found


def test_who_was_killed_for_memory_before_the_daemon_began_is_no_incident(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu0 1 0 1 1 0 0 0 0 0 0 0\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    killed = tmp_path / "proc/vmstat"
    with daemon(f"--path.rootfs={tmp_path}", "--host.interval=1") as running:
        until(lambda: b"gpunode_incidents_total" in running.get("/metrics"))
        killed.write_text("oom_kill 7\n")  # as it is read late
        until(lambda: b"gpunode_memory_oom_kills_total 7" in running.get("/metrics"))
        time.sleep(2 * BlackBox.every)
        assert incidents(running) == []
        killed.write_text("oom_kill 8\n")
        (brief,) = until(lambda: incidents(running))
        assert brief["kind"] == "out_of_memory"


def incident(daemon: Daemon, name: str) -> Incident:
    return parse(daemon.private(f"/api/v1/incidents/{name}"))


@pytest.mark.integration
def test_the_incident_of_a_killed_process_is_read_from_the_next_daemon(
    fake: FakeDriver, job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    holds = f"gpu 0 process {job.pid} 1000000000 compute\n"
    fake.write(holds)
    kept = Folder(tmp_path / "kept", 1 << 20)
    folder = f"--incident.folder={tmp_path / 'kept'}"
    with watching(fake, *OFTEN, folder) as daemon:
        until(lambda: f'pid="{job.pid}"' in daemon.get("/metrics").decode())
        assert incidents(daemon) == []
        fake.write(f"{holds}gpu 0 xid 31 1\n")
        (brief,) = until(lambda: incidents(daemon))
        assert (brief["kind"], brief["gpus"]) == ("xid", ["0"])
        assert brief["title"].startswith("GPU 0: XID 31: ")
        os.kill(job.pid, signal.SIGKILL)
        job.wait()  # nobody but its parent is told, and only once
        fake.write("gpu 0 xid 31 1\n")

        def end() -> str | None:
            found = incident(daemon, brief["id"]).processes
            return next((one.end for one in found if one.gone), None)

        assert until(end) == "it was ended by signal 9 (SIGKILL)"
        # A slow disk has it later than the page.
        until(lambda: any(one.end for one in kept.read(brief["id"]).processes))
        daemon.process.kill()
    with watching(fake, *OFTEN, folder) as daemon:
        (again,) = incidents(daemon)
        assert again["id"] == brief["id"]
        told = incident(daemon, brief["id"])
        assert [(one.pid, one.end) for one in told.processes] == [
            (job.pid, "it was ended by signal 9 (SIGKILL)")
        ]
        path = tmp_path / "tape.jsonl.gz"
        main(["incident", f"--web.listen-address=127.0.0.1:{daemon.port}", f"--tape={path}"])
    tape = TapeNode(path)
    assert any(of == str(job.pid) or f"/proc/{job.pid}/" in of for of, _ in tape.tracks)


ASKS = """
import os, socket, sys
os.setresuid(*[int(sys.argv[2])] * 3)
one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
one.settimeout(20)
one.connect(f"\\0gpunode-{sys.argv[1]}")
try:
    one.sendall(b"GET /api/v1/incidents HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    print(one.recv(99))
except OSError:
    print(b"")
"""


@as_root
def test_the_socket_on_the_node_answers_root_and_nobody_else() -> None:
    """Also where a proxy on the node passes on what somebody else asks, without saying so."""
    with daemon() as running:
        with pytest.raises(HTTPError, match="403"):
            running.get("/api/v1/incidents")
        for user, told in ((0, "200 OK"), (65534, "b''")):
            command = [sys.executable, "-I", "-S", "-c", ASKS, str(running.port), str(user)]
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            assert told in ran.stdout, user
