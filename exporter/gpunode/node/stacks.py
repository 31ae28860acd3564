"""Where the threads of a process stand: what the kernel says of each, and its Python frames.

No argument, no local variable and no value of a process is kept: functions, files and lines are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from gpunode.node.kernel import parse_stat, parse_status
from gpunode.text import printable

MAX_THREADS = 64
"""The most threads of a process that are looked at; the main thread is always among them."""

MAX_NUMBERED = 1024
"""The most threads of a container of which it is asked what numbers they have there."""

MAX_FRAMES = 32
"""The innermost Python frames that are kept of a thread."""

MAX_FUNCTIONS = 16
"""The innermost functions of the kernel that are kept of the main thread."""

NAME, FILE, FUNCTION = 64, 256, 100
"""Characters of a thread's name, of a file's path and of a function's name."""

WAITS_IN = re.compile(r"[\w.]{1,64}")
STACK_LINE = re.compile(r"^\[<[0-9a-fx]*>\] ([\w.]{1,64})\+0x", re.MULTILINE)
"""A line of /proc/PID/stack, which only root may read."""


MAIN = "MainThread"
"""How Python names the main thread."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call in Python: its function, the path of its file, and a line, 0 if it is not known."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Where a thread stands.

    ``state`` is a letter as in ``ps``, ``waits_in`` the function of the kernel in which it waits;
    both are empty where they are not known. ``frames`` are the innermost first.
    """

    thread: int
    name: str
    state: str = ""
    waits_in: str = ""
    kernel: tuple[str, ...] = ()
    """The innermost functions of the kernel, where they can be read."""

    frames: tuple[Frame, ...] = ()
    holds_gil: bool = False


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """Where a process stands: its main thread first, if that is known."""

    pid: int
    threads: tuple[ThreadStack, ...]
    all_threads: int
    """How many threads it has; no more than ``MAX_THREADS`` are looked at."""

    without_python: str = ""
    """Why there are no Python frames; empty if there are."""


@dataclass(frozen=True, slots=True)
class PySpyFrame:
    """A frame as py-spy writes it."""

    name: str
    filename: str
    line: int | None


@dataclass(frozen=True, slots=True)
class PySpyThread:
    """A thread as py-spy writes it."""

    os_thread_id: Annotated[int, Field(ge=0, le=1 << 31)] | None
    thread_name: str | None
    owns_gil: bool
    frames: list[PySpyFrame]


@cache
def _answer_adapter() -> TypeAdapter[list[PySpyThread]]:
    return TypeAdapter(list[PySpyThread])


def parse(text: str) -> list[ThreadStack]:
    """The threads in what ``py-spy dump --json`` prints. Raises ``ValueError``.

    https://github.com/benfred/py-spy/blob/master/src/dump.rs
    """
    return [
        ThreadStack(
            said.os_thread_id or 0,
            printable(said.thread_name or _main(said), NAME),
            frames=frames_of((one.name, one.filename, one.line) for one in said.frames),
            holds_gil=said.owns_gil,
        )
        for said in _answer_adapter().validate_json(text)
    ]


def _main(said: PySpyThread) -> str:
    """The name of the main thread, where py-spy cannot tell: it alone begins with a module.

    Before 3.11, Python does not keep the numbers that the kernel has for threads.
    """
    outermost = said.frames[-1].name if said.frames else ""
    return MAIN if said.os_thread_id is None and outermost == "<module>" else ""


def frames_of(found: Iterable[tuple[str, str, int | None]]) -> tuple[Frame, ...]:
    """The innermost frames, fit to show: each a function, a file and a line."""
    kept = []
    for function, file, line in found:
        known = line if line is not None and 0 < line < 1 << 31 else 0
        kept.append(Frame(printable(function, FUNCTION), printable(file[-FILE:], FILE), known))
        if len(kept) == MAX_FRAMES:
            break
    return tuple(kept)


def stacks_of(
    pid: int,
    threads: Sequence[int],
    python: Callable[[], str],
    read_text: Callable[[str], str],
) -> ProcessStacks:
    """Where the threads with these numbers stand; those with Python frames come first.

    ``python`` returns what py-spy prints. What cannot be read is left out.
    """
    found: list[ThreadStack] = []
    without = ""
    try:
        found = _map_threads(pid, threads, parse(python()), read_text)
        if not any(one.frames for one in found):
            without = "py-spy saw no Python frame"
    except ValueError:
        without = "py-spy printed what cannot be read"
    except OSError as error:
        without = printable(error.strerror or str(error), 200)
    known = {one.thread for one in found if one.thread}
    others = (ThreadStack(number, "") for number in sorted(threads) if number not in known)
    ordered = sorted((*found, *others), key=lambda one: (one.thread != pid, not one.frames))
    seen = (_seen_by_kernel(pid, one, read_text) for one in ordered[:MAX_THREADS])
    return ProcessStacks(pid, tuple(seen), max(len(threads), len(known)), without)


def _map_threads(
    pid: int,
    threads: Sequence[int],
    found: list[ThreadStack],
    read_text: Callable[[str], str],
) -> list[ThreadStack]:
    """The threads by their numbers on the node: in a container, Python knows others.

    https://man7.org/linux/man-pages/man5/proc_pid_status.5.html (NSpid)
    """
    found = [one for one in found if one.frames or one.thread == pid]
    if all(one.thread in threads for one in found):
        return found
    if [one.name for one in found if not one.thread].count(MAIN) == 1:
        nameless = next(one for one in found if not one.thread and one.name == MAIN)
        others = _map_threads(
            pid, threads, [one for one in found if one is not nameless], read_text
        )
        return [replace(nameless, thread=pid), *others]
    numbers: dict[int, int] = {}
    for thread in sorted(threads)[:MAX_NUMBERED]:
        try:
            known = parse_status(read_text(f"/proc/{pid}/task/{thread}/status"))["NSpid"]
            numbers[int(known[-1])] = int(known[0])
        except (OSError, LookupError, ValueError):
            continue
    return [replace(one, thread=numbers.get(one.thread, 0)) for one in found]


def _seen_by_kernel(pid: int, one: ThreadStack, read_text: Callable[[str], str]) -> ThreadStack:
    """The thread with what the kernel says of it."""
    folder = f"/proc/{pid}/task/{one.thread}"
    try:
        stat = parse_stat(read_text(f"{folder}/stat"))
    except (OSError, ValueError):  # it has ended, or is not of this process
        return one
    return replace(
        one,
        name=one.name or printable(stat.name, NAME),
        state=stat.state if stat.state.isalpha() else "",
        waits_in=_waits_in(folder, read_text),
        kernel=_kernel(folder, read_text) if one.thread == pid else (),
    )


def _waits_in(folder: str, read_text: Callable[[str], str]) -> str:
    """The function of the kernel in which a thread waits; it reads 0 for who may not know it."""
    try:
        found = read_text(f"{folder}/wchan").strip()
    except OSError:
        return ""
    return found if found != "0" and WAITS_IN.fullmatch(found) else ""


def _kernel(folder: str, read_text: Callable[[str], str]) -> tuple[str, ...]:
    try:
        found = STACK_LINE.findall(read_text(f"{folder}/stack"))
    except OSError:
        return ()
    return tuple(found[:MAX_FUNCTIONS])
