"""``gpunode stacks``: where the processes on the GPUs of this node stand now."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace

from gpunode.cli import streams
from gpunode.cli.daemon import DaemonAddress, DaemonError, read_answer
from gpunode.cli.settings.stacks import StacksCommandSettings
from gpunode.cli.this_node import WAKE_TIMEOUT, local_node
from gpunode.driver.driver import DriverError, list_gpus
from gpunode.mistake import UsageError
from gpunode.node.local import LocalNode
from gpunode.node.stacks import MAX_THREADS, ProcessStacks, ThreadStack
from gpunode.text import printable
from gpunode.verdict.asking import ProcessStands, StacksNow
from gpunode.verdict.where import reason_of, sentence

ANSWER_TIMEOUT = 10.0
"""Seconds for an answer of a daemon, which hangs up after as many."""

CODE_WITHHELD = "  no files, functions and lines: that daemon tells them with stacks.code alone"


@dataclass(frozen=True, slots=True)
class ProcessRow(ProcessStands):
    """Where one process stands, as this command shows it."""

    native: tuple[ThreadStack, ...] = ()
    """The threads with frames of other languages, if they were asked for."""

    without_native: str = ""
    """Why the stacks are missing."""

    without_code: bool = False
    """Whether a daemon kept frames for itself."""


def stacks(settings: StacksCommandSettings) -> None:
    """Print where the processes on the GPUs stand."""
    found = find_processes(settings, lambda: local_node(settings.path, patience=WAKE_TIMEOUT))
    with streams.printing():
        if settings.json_output:
            print(json.dumps(as_json(found), indent=2))
        else:
            print("\n".join(lines(found)), end="")
    if any(one.stacks is None for one in found):
        sys.exit(1)


def find_processes(
    settings: StacksCommandSettings, node: Callable[[], LocalNode]
) -> list[ProcessRow]:
    """Where the processes stand that were asked for, here or where a daemon is.

    Raises ``UsageError``.
    """
    return ask_daemon(settings) if settings.url else look_here(node(), settings)


def ask_daemon(settings: StacksCommandSettings) -> list[ProcessRow]:
    """The stacks of the processes on a GPU, from a daemon. Raises ``UsageError``."""
    if not settings.gpu or settings.pid is not None:
        raise UsageError("--url: a daemon looks at the processes on a GPU: say which with --gpu")
    if settings.native:
        raise UsageError("--native: no daemon tells functions of C; run it as root on the node")
    daemon = DaemonAddress.of(settings)
    try:
        answer = daemon.private(f"/api/v1/stacks?gpu={settings.gpu}", ANSWER_TIMEOUT)
        found = read_answer(answer, StacksNow)
    except DaemonError as error:
        raise UsageError(f"{daemon.url}: {error}") from error
    if not found.processes:
        raise UsageError(f"no process is on GPU {settings.gpu}")
    names = [field.name for field in fields(ProcessStands)]
    return [
        ProcessRow(**{name: getattr(one, name) for name in names}, without_code=not found.code)
        for one in found.processes
    ]


def look_here(node: LocalNode, settings: StacksCommandSettings) -> list[ProcessRow]:
    """The stacks of the chosen processes on this node. Raises ``UsageError`` if there are none."""
    if settings.pid is not None:
        return [_look_at(node, "", settings.pid, settings.native)]
    gpus, errors = list_gpus(node.drivers)
    wanted = [gpu for gpu in gpus if settings.gpu in ("", str(gpu.identity.index))]
    if not wanted:
        why = "; ".join(errors.values()) or f"there is no GPU {settings.gpu or 'here'}"
        raise UsageError(f"{why}; `gpunode stacks --pid=PID` looks at any process")
    found: dict[int, str] = {}
    for gpu in wanted:
        try:
            processes = gpu.processes()
        except DriverError as error:
            raise UsageError(f"GPU {gpu.identity.index}: {error}") from error
        for process in processes:
            found.setdefault(process.pid, str(gpu.identity.index))
    if not found:
        raise UsageError(f"no process is on {f'GPU {settings.gpu}' if settings.gpu else 'a GPU'}")
    return [_look_at(node, index, pid, settings.native) for pid, index in found.items()]


def _look_at(node: LocalNode, gpu: str, pid: int, native: bool) -> ProcessRow:
    try:
        program = printable(node.program(pid), 64)
        stacks = node.stacks(pid)
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ESRCH)
        why = "there is no such process" if gone else error.strerror or str(error)
        return ProcessRow(gpu, pid, "", "", "", None, why)
    reason = reason_of(stacks)
    said = sentence(stacks, code=True)
    found = ProcessRow(gpu, pid, program, said, reason.name if reason else "", stacks)
    return _add_native(node, found, not stacks.without_python) if native else found


def _add_native(node: LocalNode, one: ProcessRow, python: bool) -> ProcessRow:
    try:
        found = node.native_stacks(one.pid, python)
        return replace(one, native=tuple(found[:MAX_THREADS]))
    except OSError as error:
        return replace(one, without_native=printable(error.strerror or str(error), 200))


def lines(found: list[ProcessRow]) -> Iterator[str]:
    """What the command prints."""
    for one in found:
        gpu = f"GPU {one.gpu}, " if one.gpu else ""
        whose = filter(None, (one.program, one.rank and f"rank {one.rank}", one.owner))
        program = f" ({described})" if (described := ", ".join(whose)) else ""
        said = one.why_not or one.sentence or "nothing tells where it stands"
        yield f"{gpu}process {one.pid}{program}: {said}"
        if one.without_code and one.stacks is not None and not one.stacks.without_python:
            yield CODE_WITHHELD
        if one.stacks is not None:
            yield from _threads(one.stacks)
        if one.without_native:
            yield f"  no native frames: {_advised(one.without_native)}"
        for thread in one.native:
            number = f" ({thread.thread})" if thread.thread else ""
            yield f"  with native frames: {thread.name or 'thread'}{number}"
            yield from _frames(thread)
        yield ""


def _threads(stacks: ProcessStacks) -> Iterator[str]:
    if stacks.without_python:
        yield f"  no Python frames: {_advised(stacks.without_python)}"
    for thread in stacks.threads:
        number = str(thread.thread) if thread.thread else ""  # Python before 3.11 has none
        gil = "holds the GIL" if thread.holds_gil else ""
        words = ", ".join(filter(None, (number, thread.state, thread.waits_in, gil)))
        yield f"  {thread.name or 'thread'}{f' ({words})' if words else ''}"
        yield from _frames(thread)
    if stacks.all_threads > len(stacks.threads):
        yield f"  and {stacks.all_threads - len(stacks.threads)} more threads"


def _frames(thread: ThreadStack) -> Iterator[str]:
    if thread.kernel:
        yield f"    kernel: {' < '.join(thread.kernel)}"
    for frame in thread.frames:
        place = f"{frame.file}:{frame.line}" if frame.line else frame.file
        yield f"    {frame.function}  {place}".rstrip()


def _advised(why: str) -> str:
    """Why the frames are missing, with a remedy."""
    if why == "gdb is not installed":
        return f"{why}: install gdb, or gdb-minimal, with the packages of the system"
    if "not installed" in why:
        return f"{why}: pip install 'gpunode[stacks]'"
    if why in (os.strerror(errno.EACCES), os.strerror(errno.EPERM)):
        return f"{why}: run it as root, or as the user of the process"
    return why


def as_json(found: list[ProcessRow]) -> list[dict[str, object]]:
    """The processes for a program to read."""
    return [asdict(one) for one in found]
