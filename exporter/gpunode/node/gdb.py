"""Has gdb tell where the threads of a process stand, in any language: for a person who asks."""

from __future__ import annotations

import re
from dataclasses import replace

from gpunode.helper.stacks import NATIVE_TIMEOUT, run_tool
from gpunode.node.stacks import MAX_THREADS, NAME, ThreadStack, frames_of
from gpunode.text import printable

ARGUMENTS = (
    *("-nx", "-nh", "-batch", "-iex", "set auto-load no", "-iex", "set debuginfod enabled off"),
    *("-iex", "set print frame-arguments presence", "-ex", "thread apply all backtrace 32"),
)
"""It reads no file of settings, runs no script of the process, asks no server, and prints no value.

https://sourceware.org/gdb/current/onlinedocs/gdb.html/Auto_002dloading-safe-path.html
"""

THREAD = re.compile(
    r'Thread \d+ \((?:Thread 0x[0-9a-f]+ \()?(?:LWP|process) (\d+)\)?(?: "(.*)")?\):'
)
FRAME = re.compile(
    r"#\d+ +(?:0x[0-9a-f]+ in )?(.+?) \((?:\.\.\.)?\)(?: const)?"
    r"(?: at (.+):(\d+)| from (?:target:)?(.+))?"
)
UNNAMED = "??"
MAX_LINE = 4096
"""Characters of a line that are looked at: a program names its functions as it likes."""


def backtraces(rootfs: str, pid: int) -> str:
    """What gdb prints of every thread of a process, which it stops meanwhile.

    It finds the files of a process in a container. Raises ``OSError``.
    """
    arguments = [*ARGUMENTS, "-p", str(pid)]
    return run_tool(rootfs, str(pid), "gdb", arguments, NATIVE_TIMEOUT).decode("utf-8", "replace")


def parse(text: str) -> list[ThreadStack]:
    """The threads in what gdb prints for ``thread apply all backtrace``, the main one first.

    Where gdb knows no line of a function, its file is the program or library that it is of, or
    empty. A function that gdb cannot name is left out, unless its library is known.
    https://sourceware.org/gdb/current/onlinedocs/gdb.html/Backtrace.html
    """
    found: list[ThreadStack] = []
    frames: list[list[tuple[str, str, int]]] = []
    for line in (line[:MAX_LINE] for line in text.splitlines()):
        if thread := THREAD.fullmatch(line):
            if len(found) == MAX_THREADS:
                break
            found.append(ThreadStack(int(thread[1]), printable(thread[2] or "", NAME)))
            frames.append([])
        elif frames and (frame := FRAME.fullmatch(line)):
            function, file, number, library = frame.groups("")
            if function != UNNAMED or library:
                frames[-1].append((function, file or library, int(number[:10] or 0)))
    told = (replace(one, frames=frames_of(of)) for one, of in zip(found, frames, strict=True))
    return sorted(told, key=lambda one: one.thread)
