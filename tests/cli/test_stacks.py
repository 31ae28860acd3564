"""``gpunode stacks``, as somebody types it on a node where a job hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.cli.commands import main
from gpunode.cli.stacks import lines, look
from gpunode.config import StacksCommandSettings, UsageError
from gpunode.driver.driver import Driver
from gpunode.node.local import LocalNode
from tests.conftest import until
from tests.machine import OneGpu
from tests.needs import as_root

HANGS = """
import time
def back_off(token):
    time.sleep(1000)
back_off("correct-horse-battery-staple")
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[int]:
    """A process that hangs at line 4 of train.py."""
    file = tmp_path / "train.py"
    file.write_text(HANGS)
    with subprocess.Popen([sys.executable, str(file)]) as child:
        wchan = Path(f"/proc/{child.pid}/wchan")
        until(lambda: "nanosleep" in wchan.read_text() or child.poll() is not None)
        yield child.pid
        child.kill()


def with_gpu(pid: int) -> LocalNode:
    """This machine, with a GPU that a process is on."""
    drivers: list[Driver] = list(OneGpu(pid).drivers)
    return LocalNode(Path("/"), drivers)


def test_it_tells_where_the_process_on_a_gpu_stands(job: int) -> None:
    (found,) = look(with_gpu(job), StacksCommandSettings(gpu="0"))
    text = "\n".join(lines([found]))
    assert text.startswith(f"GPU 0, process {job} (train): main thread in ")
    assert "/train.py:4 back_off, waiting in the kernel for a timer (`" in text
    assert "\n    back_off  " in text
    assert found.reason == "sleeping"
    assert "battery" not in text


def test_a_process_is_asked_for_by_its_number(job: int, capfd: pytest.CaptureFixture[str]) -> None:
    main(["stacks", f"--pid={job}", "--json"])
    (found,) = json.loads(capfd.readouterr().out)
    assert found["stacks"]["threads"][0]["frames"][0]["line"] == 4
    assert found["gpu"] == ""


def test_what_is_not_there_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stacks", "--pid=4194304000"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        main(["stacks", "--pid=2147483647"])
    assert ended.value.code == 1
    assert "process 2147483647: there is no such process" in capfd.readouterr().out
    with pytest.raises(UsageError, match="there is no GPU 7"):
        look(with_gpu(1), StacksCommandSettings(gpu="7"))


IN_C = """
import ctypes
def kernel():
    ctypes.PyDLL(None).sleep(1000)
kernel()
"""


@as_root
def test_functions_of_c_are_shown_to_who_asks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(IN_C)
    with subprocess.Popen([sys.executable, str(file)]) as child:
        wchan = Path(f"/proc/{child.pid}/wchan")
        until(lambda: "nanosleep" in wchan.read_text() or child.poll() is not None)
        main(["stacks", f"--pid={child.pid}"])
        without = capfd.readouterr().out
        main(["stacks", f"--pid={child.pid}", "--native"])
        text = capfd.readouterr().out
        child.kill()
    assert "libc" not in without
    assert "libc.so.6" in text
    assert text.index("    sleep  ") < text.rindex("    kernel  ")


@as_root
def test_a_program_without_python_has_no_frames_of_c(capfd: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        main(["stacks", f"--pid={child.pid}", "--native"])
        child.kill()
    assert "  no frames of C: py-spy: " in capfd.readouterr().out
