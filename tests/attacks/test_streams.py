"""Programs whose output nobody takes: full disks, closed pipes, and pipes that nobody reads."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from gpunode.cli.streams import complain
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from tests.conftest import scrape, until, values
from tests.daemon import Daemon, free_port

TAPE = INCIDENTS / "compute.jsonl.gz"
GPUNODE = [sys.executable, "-m", "gpunode"]
PLAYED = ["replay", f"{TAPE}", "--speed=0", "--log.level=error"]
PRINTS = {
    "metrics": [*PLAYED, "--print=metrics"],
    "a table": PLAYED,
    "the version": ["--version"],
    "the commands": ["--help"],
    "an audit": ["audit", "--json", "--log.level=error"],
    "a demo": ["demo", "hang", "--once", "--speed=1000"],
}


def listening(*arguments: str) -> list[str]:
    return [*GPUNODE, *arguments, f"--web.listen-address=127.0.0.1:{free_port()}"]


def command(name: str) -> list[str]:
    arguments = PRINTS[name]
    serves = arguments[0] in ("replay", "demo")
    return listening(*arguments) if serves else [*GPUNODE, *arguments]


@pytest.mark.parametrize("name", PRINTS)
def test_output_to_a_full_disk_is_one_line(name: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command(name), stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    expected = "gpunode: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, expected)


@pytest.mark.parametrize("name", PRINTS)
def test_a_reader_that_has_seen_enough_is_told_nothing(name: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        ended = subprocess.run(
            command(name), stdout=closed, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert ended.returncode in (1, 128 + signal.SIGPIPE)  # 1 is rich's own
    assert ended.stderr == ""


def test_a_program_that_can_say_nothing_ends_as_it_should() -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([*GPUNODE, "nonsense"], stderr=full, check=False).returncode == 2
    for closed in ("2>&-", "<&- >&- 2>&-"):
        line = f'exec "$0" "$@" {closed}'
        ended = subprocess.run(["sh", "-c", line, *GPUNODE, "nonsense"], check=False)
        assert ended.returncode == 2


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that is full, and that nobody reads."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write, b"x" * 4096)
    yield write
    os.close(read)
    os.close(write)


def test_a_line_that_nobody_takes_is_left(unread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpunode.cli.streams.STANDARD_ERROR", unread)
    complain("a line")  # or this test would not end


WHERE = ("a full disk", "nowhere", "a closed pipe", "a pipe that nobody reads")


@pytest.mark.parametrize("where", WHERE)
def test_a_daemon_outlives_its_log(where: str, unread: int, tmp_path: Path) -> None:
    proc_stat = tmp_path / "proc/stat"
    proc_stat.parent.mkdir()
    port = free_port()
    gpunode = [*GPUNODE, "run", f"--web.listen-address=127.0.0.1:{port}"]
    gpunode += [f"--path.rootfs={tmp_path}", "--discovery.interval=0.3", "--client.socket="]
    with ExitStack() as stack:
        if where == "nowhere":
            child = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *gpunode])
        elif where == "a closed pipe":
            child = subprocess.Popen(gpunode, stderr=subprocess.PIPE)
            assert child.stderr is not None
            child.stderr.close()
        elif where == "a full disk":
            child = subprocess.Popen(gpunode, stderr=stack.enter_context(open("/dev/full", "w")))
        else:
            child = subprocess.Popen(gpunode, stderr=unread)
        stack.callback(child.wait)
        stack.callback(child.kill)
        served = Daemon(psutil.Process(child.pid), port)
        served.wait_for("/healthz", child)

        def host() -> list[float]:
            return values(scrape(served), "gpunode_source_up", source="host")

        # Each change is a line in the log.
        until(lambda: host() == [0.0])
        proc_stat.touch()
        until(lambda: host() == [1.0])
        proc_stat.unlink()
        until(lambda: host() == [0.0])
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0


def recording(path: Path) -> subprocess.Popen[str]:
    """A recording with at most 16 KiB for a file, as on a disk that runs full, in a new process."""
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384));"
    gpunode = [*GPUNODE, "record", f"{path}", "--client.socket=", "--host.interval=1"]
    start = [sys.executable, "-c", f"{limit} os.execv(sys.argv[1], sys.argv[1:])"]
    return subprocess.Popen(
        [*start, *gpunode, "--log.level=error"], stderr=subprocess.PIPE, text=True
    )


def test_a_disk_that_runs_full_ends_a_recording_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl.gz"
    with recording(path) as child:
        _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (2, f"gpunode: {path}: File too large\n")
    assert TapeNode(path).tracks, "what there was room for"


def test_a_tape_that_is_removed_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl.gz"
    gpunode = [*GPUNODE, "record", f"{path}", "--client.socket=", "--log.level=error"]
    with subprocess.Popen(gpunode, stderr=subprocess.PIPE, text=True) as child:
        until(path.exists)
        path.unlink()
        until(lambda: handles(child.pid, signal.SIGTERM))
        child.terminate()
        _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (2, f"gpunode: {path}: No such file or directory\n")


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal: ``SigCgt`` in ``man 5 proc_pid_status``."""
    (caught,) = re.findall(r"^SigCgt:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(caught, 16) >> (number - 1) & 1)
