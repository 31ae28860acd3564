"""``gpunode stacks``, as somebody types it on a node where a job hangs."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from gpunode.cli.main import main
from gpunode.cli.settings.stacks import StacksCommandSettings
from gpunode.cli.stacks import ProcessRow, lines, look_here
from gpunode.driver.driver import Driver
from gpunode.helper import stacks as helper
from gpunode.mistake import UsageError
from gpunode.node import gdb, local
from gpunode.node.kernel import parse_stat
from gpunode.node.local import LocalNode
from gpunode.node.stacks import Frame, ProcessStacks, ThreadStack
from tests.conftest import until
from tests.machine import OneGpu
from tests.needs import as_root, need

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
        try:
            until(lambda: "nanosleep" in wchan_of(child) or child.poll() is not None)
            yield child.pid
        finally:
            child.kill()


def wchan_of(child: subprocess.Popen[bytes]) -> str:
    """Where in the kernel a process waits."""
    return Path(f"/proc/{child.pid}/wchan").read_text()


def with_gpu(pid: int) -> LocalNode:
    """This machine, with a GPU that a process is on."""
    drivers: list[Driver] = list(OneGpu(pid).drivers)
    return LocalNode(Path("/"), drivers)


def test_it_tells_where_the_process_on_a_gpu_stands(job: int) -> None:
    (found,) = look_here(with_gpu(job), StacksCommandSettings(gpu="0"))
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
        look_here(with_gpu(1), StacksCommandSettings(gpu="7"))


@pytest.mark.usefixtures("no_driver")
def test_a_machine_without_a_driver_is_told_in_words_and_what_works_there(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stacks"])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert said.startswith("gpunode: there is no NVIDIA driver here: ")
    assert said.endswith("; `gpunode stacks --pid=PID` looks at any process\n")


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
        until(lambda: "nanosleep" in wchan_of(child) or child.poll() is not None)
        main(["stacks", f"--pid={child.pid}"])
        without = capfd.readouterr().out
        main(["stacks", f"--pid={child.pid}", "--native"])
        text = capfd.readouterr().out
        child.kill()
    assert "libc" not in without
    assert "libc.so.6" in text
    assert text.index("    sleep  ") < text.rindex("    kernel  ")


IN_CPP = """
#include <unistd.h>
#include <thread>
namespace data {
struct Shards {
    int next(int count) {
        int ends[2];
        char byte;
        return pipe(ends) || read(ends[0], &byte, 1) + count;
    }
};
}
int main() {
    std::thread beside([] { sleep(1000); });
    return data::Shards().next(3);
}
"""
OWN_ROOT = "mount --bind . . && cd $PWD && mkdir -p old && pivot_root . old && exec /shards"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a container with nothing but a program of C++ and its libraries."""
    folder = tmp_path_factory.mktemp("root")
    program = folder / "shards"
    command = [need("g++"), "-g", "-x", "c++", "-", "-pthread", "-o", str(program)]
    subprocess.run(command, input=IN_CPP, text=True, check=True)
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"/\S+", said):
        place = folder / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    return folder


@contextmanager
def shards(root: Path, container: bool) -> Iterator[int]:
    """The program, which waits for ever, on the node or in a container with its own root."""
    own_root = [need("unshare"), "--mount", "sh", "-c", OWN_ROOT]
    command = own_root if container else [str(root / "shards")]
    with subprocess.Popen(command, cwd=root) as child:
        folder = Path(f"/proc/{child.pid}")

        def waits() -> bool:
            started = (folder / "comm").read_text() == "shards\n"
            both = started and len(list(folder.glob("task/*"))) == 2
            return both and "pipe" in (folder / "wchan").read_text()

        until(lambda: waits() or child.poll() is not None)
        yield child.pid
        child.kill()


@as_root
@pytest.mark.parametrize("container", [False, True])
def test_a_program_without_python_has_the_functions_that_gdb_names(
    root: Path, container: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    need("gdb")
    with shards(root, container) as pid:
        main(["stacks", f"--pid={pid}", "--native"])
        until(lambda: parse_stat(Path(f"/proc/{pid}/stat").read_text()).state == "S")
    text = capfd.readouterr().out
    assert re.search(r"\n    data::Shards::next\n    main\n", re.sub("  <stdin>:[0-9]+", "", text))
    assert "\n    operator()  " in text
    assert "count" not in text


@as_root
def test_of_a_python_that_is_stopped_gdb_names_the_functions_of_c(
    job: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """py-spy cannot unwind it, as it takes the signal that stopped it for its own."""
    need("gdb")

    def state() -> str:
        return parse_stat(Path(f"/proc/{job}/stat").read_text()).state

    os.kill(job, signal.SIGSTOP)
    until(lambda: state() == "T")
    main(["stacks", f"--pid={job}", "--native"])
    text = capfd.readouterr().out
    assert "/train.py:4 back_off, is stopped by a signal" in text
    assert "nanosleep" in text[text.index("with native frames: ") :]
    assert state() == "T"


def test_a_failure_of_py_spy_is_told_where_gdb_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Callable[..., NoReturn]:
        def asked(*_: object) -> NoReturn:
            raise OSError(errno.EIO, f"{name} failed")

        return asked

    monkeypatch.setattr(local, "native", fails("py-spy"))
    monkeypatch.setattr(gdb, "backtraces", fails("gdb"))
    with pytest.raises(OSError, match="py-spy failed"):
        LocalNode(Path("/")).native_stacks(1, python=True)


def test_a_thread_whose_number_python_does_not_know_is_shown_without_one() -> None:
    threads = ThreadStack(0, "loader", frames=(Frame("read", "a.py", 3),)), ThreadStack(7, "", "S")
    shown = ProcessRow("", 7, "train", "", "", ProcessStacks(7, threads, 2))
    assert list(lines([shown]))[1:4] == ["  loader", "    read  a.py:3", "  thread (7, S)"]


@as_root
def test_a_process_goes_on_once_a_look_takes_too_long(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """gdb has stopped it, and does not come back."""
    need("gdb")
    monkeypatch.setattr(gdb, "ARGUMENTS", (*gdb.ARGUMENTS[:-1], "shell sleep 2"))
    monkeypatch.setattr(gdb, "NATIVE_TIMEOUT", 1.5)
    with shards(root, container=False) as pid:
        main(["stacks", f"--pid={pid}", "--native"])
        until(lambda: parse_stat(Path(f"/proc/{pid}/stat").read_text()).state == "S")
    # On a busy machine, it may take a while until gdb is gone, too.
    left = "no native frames: gdb (did not end within 1.5 s|does not come back from it)"
    assert re.search(left, capfd.readouterr().out)


@as_root
def test_what_cannot_be_named_without_gdb_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(helper, "FOLDERS", ())
    with shards(root, container=False) as pid:
        main(["stacks", f"--pid={pid}", "--native"])
    advice = "install gdb, or gdb-minimal, with the packages of the system"
    assert f"  no native frames: gdb is not installed: {advice}\n" in capfd.readouterr().out
