"""Real programs that hang, and what is said of where they stand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.client.protocol import SOCKET_VARIABLE
from gpunode.config.daemon import ClientSettings, Settings, StacksSettings
from gpunode.holders.census import Census
from gpunode.jobs.steps import SECONDS, TrainingSteps
from gpunode.node.kernel import parse_stat
from gpunode.node.local import LocalNode
from gpunode.node.stacks import ProcessStacks
from gpunode.verdict.looking import Looking
from gpunode.verdict.where import main_thread, own_frame, reason_of, sentence
from tests.conftest import until
from tests.machine import OneGpu
from tests.needs import as_root, need
from tests.verdict.hangs import FILES, HANGS, HERE, LOCK, NOT_PYTHON, Hang
from tests.verdict.stage import Actor, Stage

pytestmark = pytest.mark.integration

NODE = LocalNode(Path("/"))
EXPORTER = str(Path(__file__).parents[2] / "exporter")


@contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[int]:
    """A program, which is ended with all that it started."""
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as child:
        try:
            yield child.pid
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as of installed packages, with those that the programs import."""
    folder = tmp_path_factory.mktemp("venv") / "lib/python3.11/site-packages"
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def child_of(pid: int) -> int:
    """The process that a process started, 0 before it does."""
    return int((Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or ["0"])[0])


def stands(pid: int, line: int) -> ProcessStacks | None:
    """Where a process stands, if that is at the line, and the kernel says what it does."""
    stacks = NODE.stacks(pid)
    thread = main_thread(stacks)
    frame = own_frame(thread.frames) if thread else None
    return stacks if thread and frame and line in (0, frame.line) and thread.state else None


@as_root
@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.name)
def test_file_line_and_function_are_told_of_a_program_that_hangs(
    hang: Hang, tmp_path: Path, libraries: Path
) -> None:
    if sys.version_info >= hang.before:
        pytest.skip("this Python lacks what the program uses")
    file = tmp_path / f"job_{hang.name}.py"  # not the name of a module that it imports
    file.write_text(hang.program)
    lines = hang.program.splitlines()
    line = next((n for n, text in enumerate(lines, 1) if HERE in text), 0)
    command = [sys.executable, str(file)]
    if hang.own_pid_namespace:
        command = [need("unshare"), "--fork", "--pid", "--mount-proc", *command]
    with running(command, PYTHONPATH=str(libraries)) as pid:
        if hang.own_pid_namespace:
            pid = until(lambda: child_of(pid))
        until(lambda: stands(pid, line))
        if hang.signal:
            os.kill(pid, hang.signal)
        wanted = f"{tmp_path.name}/{file.name}:{line} {hang.function}" if line else ""

        def stays() -> tuple[str, str] | None:
            """What is told, once it may hang: without a marked line, it may have yet to start."""
            now = sentence_and_reason(pid)
            return now if hang.says in now[0] and (line or now[1] == hang.reason) else None

        said = until(stays)
    assert wanted in said[0]
    assert said[1] == hang.reason


def python_of(minor: int) -> str:
    """A Python of this version: from the PATH, or of pyenv."""
    name = f"python3.{minor}"
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*versions.glob(f"3.{minor}.*/bin/{name}"), *filter(None, [shutil.which(name)])]
    for one in found:
        asked = [str(one), "-c", "import sys; print(sys.version_info.minor)"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.stdout.strip() == str(minor):
            return str(one)
    pytest.skip(f"{name} is not here")


@as_root
@pytest.mark.parametrize("minor", range(9, 14))
@pytest.mark.parametrize("threads", [0, 1])
def test_a_python_of_any_version_is_read(minor: int, threads: int, tmp_path: Path) -> None:
    file, line = waits_for_a_lock(tmp_path, threads)
    with running([python_of(minor), str(file)]) as pid:
        is_told(pid, file, line)


@pytest.fixture(scope="module")
def newest_pythons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a Debian to come, with Pythons that few machines have yet."""
    root = tmp_path_factory.mktemp("debian") / "root"
    packages = ",".join(f"python3.{minor}-minimal" for minor in NEWEST)
    command = [need("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={packages}"]
    # A mirror that is kept as of a date is no worse for this.
    command += ['--aptopt=Acquire::Check-Valid-Until "false"', "forky", str(root)]
    subprocess.run(command, check=True)
    return root


NEWEST = (14, 15)


@as_root
@pytest.mark.nightly
@pytest.mark.parametrize("minor", NEWEST)
@pytest.mark.parametrize("threads", [0, 1])
def test_the_newest_pythons_are_read_in_a_root_of_their_own(
    newest_pythons: Path, minor: int, threads: int
) -> None:
    file, line = waits_for_a_lock(newest_pythons / "tmp", threads)
    command = ["chroot", str(newest_pythons), f"/usr/bin/python3.{minor}", f"/tmp/{file.name}"]
    with running(command) as pid:
        is_told(pid, file, line)


def waits_for_a_lock(folder: Path, threads: int) -> tuple[Path, int]:
    """A program whose main thread waits for ever beside others, and the line that does."""
    file = folder / "job.py"
    others = "import threading, time\n"
    others += "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n" * threads
    file.write_text(others + LOCK)
    lines = file.read_text().splitlines()
    return file, next(n for n, text in enumerate(lines, 1) if HERE in text)


def is_told(pid: int, file: Path, line: int) -> None:
    until(lambda: stands(pid, line))
    said, reason = sentence_and_reason(pid)
    where = f"{file.parent.name}/{file.name}:{line}"
    assert f"main thread in {where} step, waiting in the kernel for" in said
    assert reason == "lock"


@as_root
def test_the_verdict_has_the_line_of_a_process_that_hangs(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOCK)
    line = next(n for n, text in enumerate(LOCK.splitlines(), 1) if HERE in text)
    with running([sys.executable, str(file)]) as pid:
        until(lambda: stands(pid, line))
        start = parse_stat(NODE.read_text(f"/proc/{pid}/stat")).start
        late = Actor(0, processes=((pid, start),))
        others = [Actor(n, processes=((0, 0.0),)) for n in (1, 2)]
        settings = Settings(stacks=StacksSettings(code=True))
        stage = Stage(late, *others, views=(Looking(NODE, settings),))
        stage.play(40.0)
        late.states = {"idle": 1.0}
        for other in others:
            other.block()
        stage.play(16.0)
    assert stage.waited_for == [(0, "lock")]
    said = " ".join(one.meaning for one in stage.verdict(1).evidence)
    assert f"GPU 0: main thread in {tmp_path.name}/train.py:{line} step, waiting" in said


STANDS_IN_CHECKPOINT = """
import time
from gpunode import client
for _ in range(3):
    client.step()
with client.phase("checkpoint"):
    time.sleep(1000)  # here
"""


@as_root
def test_the_verdict_has_phase_and_step_of_a_process_that_tells_them(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(STANDS_IN_CHECKPOINT)
    line = next(n for n, text in enumerate(STANDS_IN_CHECKPOINT.splitlines(), 1) if HERE in text)
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:  # a path of 108 bytes
        path = f"{folder}/client.sock"
        machine = OneGpu()
        settings = Settings(client=ClientSettings(socket=path), stacks=StacksSettings(code=True))
        steps = TrainingSteps(Census(machine), settings)
        assert list(steps.find())
        environment = {"PYTHONPATH": EXPORTER, SOCKET_VARIABLE: path}
        with running([sys.executable, str(file)], **environment) as pid:
            machine.pids = (pid,)
            until(lambda: any(s.metric is SECONDS and s.value for s in steps.read().samples))
            start = parse_stat(NODE.read_text(f"/proc/{pid}/stat")).start
            late, other = Actor(0, processes=((pid, start),)), Actor(1, processes=((0, 0.0),))
            stage = Stage(late, other, finders=(steps,), views=(Looking(NODE, settings),))
            stage.play(40.0)
            late.states = {"idle": 1.0}
            other.block()
            stage.play(16.0)
    said = " ".join(one.meaning for one in stage.verdict(1).evidence)
    place = f"GPU 0: main thread in {tmp_path.name}/train.py:{line} <module>"
    assert f"{place}, phase `checkpoint`, step 3 since its start, waiting" in said


def sentence_and_reason(pid: int) -> tuple[str, str]:
    """The sentence, and the name of the reason."""
    stacks = NODE.stacks(pid)
    reason = reason_of(stacks)
    return sentence(stacks, code=True), reason.name if reason else ""


@pytest.fixture(scope="module")
def not_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("binary")
    source = folder / "hang.cpp"
    source.write_text(NOT_PYTHON)
    subprocess.run([need("g++", "c++"), "-o", folder / "hang", source], check=True)
    return folder / "hang"


@as_root
@pytest.mark.parametrize(
    ("how", "says", "reason"),
    [
        ("pipe", "main thread, waiting in the kernel for a pipe", "another_process"),
        ("uninterruptible", "main thread, waiting in the kernel for a child", "another_process"),
        ("pause", "main thread, waiting in the kernel (`", ""),
    ],
)
def test_of_a_program_that_is_not_python_the_kernel_tells(
    not_python: Path, how: str, says: str, reason: str
) -> None:
    with running([str(not_python), how]) as pid:
        until(lambda: says in sentence_and_reason(pid)[0])
        assert sentence_and_reason(pid)[1] == reason
        stacks = NODE.stacks(pid)
    assert stacks.without_python.startswith("py-spy: ")
    assert stacks.threads[0].kernel
