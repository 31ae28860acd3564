"""What the daemon may do: which capabilities its threads hold, and which system calls it makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.helper.capability import NUMBERS
from tests.attacks import seccomp
from tests.conftest import scrape, until, values
from tests.daemon import Daemon, daemon
from tests.fakes.nvml import FakeDriver
from tests.needs import as_root

PROFILE = Path(__file__).parents[2] / "docker/seccomp.json"
NOBODY = 65534


@contextmanager
def tenant(fake: FakeDriver) -> Iterator[int]:
    """A process of another user that holds the GPU."""
    with subprocess.Popen(["sleep", "infinity"], user=NOBODY, group=NOBODY) as child:
        fake.write(f"gpus 1\ngpu 0 process {child.pid} 1000000000\n")
        try:
            yield child.pid
        finally:
            child.kill()


def effective(running: Daemon) -> set[int]:
    """The bits that any thread of a daemon holds."""
    held = set()
    for thread in Path(f"/proc/{running.process.pid}/task").iterdir():
        try:
            status = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended since
        mask = int(status.split("CapEff:")[1].split()[0], 16)
        held |= {bit for bit in range(64) if mask >> bit & 1}
    return held


def sees(running: Daemon) -> bool:
    """Whether the daemon could read what only the process's user may."""
    return bool(values(scrape(running), "gpunode_job_io_bytes_total", direction="read"))


@as_root
def test_no_thread_keeps_the_capabilities_that_reading_a_process_takes(fake: FakeDriver) -> None:
    with tenant(fake), daemon(environment={**os.environ, **fake.environment()}) as running:
        until(lambda: sees(running))
        # A look may fall into the moment of a read.
        always = set.intersection(*(effective(running) for _ in range(20)))
        assert always
        assert not always & set(NUMBERS.values())


@pytest.mark.skipif(not seccomp.NUMBERS.exists(), reason="needs linux-libc-dev")
def test_the_daemon_makes_no_system_call_beyond_its_profile(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    confined = [sys.executable, str(Path(seccomp.__file__)), str(PROFILE)]
    start = subprocess.Popen

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return start([*confined, *command], **options)  # type: ignore[call-overload, no-any-return]

    with tenant(fake), daemon(environment={**os.environ, **fake.environment()}) as free:
        until(lambda: sees(free) or os.geteuid() != 0)
        monkeypatch.setattr(subprocess, "Popen", popen)
        with daemon(environment={**os.environ, **fake.environment()}) as running:
            until(lambda: names(running) == names(free))


def names(running: Daemon) -> set[str]:
    """All that a daemon exports."""
    return {name for name, _ in scrape(running)}


@pytest.mark.skipif(not seccomp.NUMBERS.exists(), reason="needs linux-libc-dev")
@pytest.mark.parametrize("call", ["ptrace(0, 0, 0, 0)", "unshare(0)", "chroot(b'/')"])
def test_the_profile_refuses_what_the_daemon_never_does(call: str) -> None:
    attempt = (
        f"import ctypes; c = ctypes.CDLL(None, use_errno=True); c.{call}; print(ctypes.get_errno())"
    )
    command = [sys.executable, seccomp.__file__, str(PROFILE), sys.executable, "-c", attempt]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "1\n"
