"""How the processes of others ended: their exit codes and signals, though no parent asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.node import endings
from gpunode.node.endings import Endings, in_words
from gpunode.node.kernel import parse_stat
from gpunode.node.local import LocalNode

NODE = LocalNode(Path("/"))


def start_of(pid: int) -> float:
    return parse_stat(NODE.read_text(f"/proc/{pid}/stat")).start


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends once its standard input does."""
    command = [sys.executable, "-c", f"import os, sys; sys.stdin.read(); {code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def kernel_tells() -> bool:
    """Whether the kernel is new enough."""
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1])) >= (6, 15)


only_told = pytest.mark.skipif(not kernel_tells(), reason="takes Linux 6.15")


@only_told
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit(7)", "it ended with exit code 7"),
        ("sys.exit(0)", "it ended with exit code 0"),
        ("os.kill(os.getpid(), 9)", "it was ended by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 40)", "it was ended by signal 40"),
    ],
)
def test_it_is_told_after_the_parent_has_asked(code: str, said: str) -> None:
    before = open_files()
    with running(code) as child:
        start = start_of(child.pid)
        assert NODE.ended(child.pid, start) is None
        assert NODE.ended(child.pid, start) is None
        child.communicate()
        status = NODE.ended(child.pid, start)
    assert status is not None
    assert in_words(status) == said
    assert open_files() == before


def test_nothing_is_told_of_another_process_that_has_the_pid() -> None:
    before = open_files()
    with running("") as child, pytest.raises(ProcessLookupError):
        NODE.ended(child.pid, start_of(child.pid) + 1.0)
    with pytest.raises(ProcessLookupError):
        NODE.ended(child.pid, 1.0)
    assert open_files() == before


def test_no_more_files_are_open_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "MAX_PROCESSES", 3)
    held = Endings(lambda pid: float(pid))
    before = open_files()
    with running("") as one, running("") as two:
        pids = [one.pid, two.pid, os.getpid(), os.getppid()]
        for pid in pids:
            held.of(pid, float(pid))
        assert open_files() - before - 2 == 3  # 2 pipes are of the programs


def test_a_kernel_that_does_not_tell_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr("fcntl.ioctl", refuses)
    held = Endings(lambda _: 1.0)
    assert [held.of(os.getpid(), 1.0), held.of(os.getpid(), 1.0)] == [None, None]
