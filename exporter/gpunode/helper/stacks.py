"""Has py-spy read the Python stacks of a process, and parses nothing of what it says.

py-spy reads the memory of a process, which it does not stop: https://github.com/benfred/py-spy
It runs without an environment, one at a time, and for ``LONGEST`` seconds at most.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from gpunode.helper.capability import raised
from gpunode.helper.files import LARGEST, process
from gpunode.helper.inside import opened

BESIDE = Path(sys.executable).parent, Path(__file__).parents[2] / "bin"
PLACES = tuple(f"{folder}/py-spy" for folder in (*BESIDE, "/usr/local/bin", "/usr/bin"))
"""Where it may be: beside this Python, as the image has it, or installed; never in a PATH."""

LONGEST = 1.5
"""Seconds; it takes 5 to 90 ms, and longer only for thousands of threads."""

one_at_a_time = threading.Lock()
left: set[int] = set()
"""Those that could not be ended: they wait in the kernel, as for the memory of the process."""


def python(rootfs: str, pid: str) -> bytes:
    """What it says of every thread of a process. Raises ``OSError``."""
    folder = process(rootfs, pid)
    with raised(), opened(f"{folder}/mem", os.O_RDONLY):  # py-spy would not say why it may not
        pass
    if rootfs and _start(folder) != _start(f"/proc/{pid}"):
        raise OSError(errno.ESRCH, "its number is another's here: it takes the PIDs of the node")
    program = next(filter(os.path.isfile, PLACES), "")
    if not program:
        raise OSError(errno.ENOPKG, "py-spy is not installed")
    if not one_at_a_time.acquire(blocking=False):
        raise OSError(errno.EBUSY, "py-spy is busy with another process")
    try:
        left.difference_update(child for child in tuple(left) if os.waitpid(child, os.WNOHANG)[0])
        if left:
            raise OSError(errno.EBUSY, "py-spy has not come back from another process")
        return _said(program, pid)
    finally:
        one_at_a_time.release()


def _said(program: str, pid: str) -> bytes:
    """What the program writes. Raises ``OSError`` with its words if it fails."""
    command = [program, "dump", "--nonblocking", "--json", "--pid", pid]
    until, content = time.monotonic() + LONGEST, bytearray()
    out, into = os.pipe()
    try:
        try:
            both = [(os.POSIX_SPAWN_DUP2, into, 1), (os.POSIX_SPAWN_DUP2, into, 2)]
            child = os.posix_spawn(program, command, {}, file_actions=both)
        finally:
            os.close(into)
        waiting = select.poll()
        waiting.register(out, select.POLLIN)
        while len(content) <= LARGEST and waiting.poll(max(0.0, 1e3 * (until - time.monotonic()))):
            if not (part := os.read(out, 1 << 16)):
                break
            content += part
        status = _ended(child, until)
    finally:
        os.close(out)
    if status is None:
        raise OSError(errno.ETIMEDOUT, f"py-spy did not end within {LONGEST:g} s")
    if status:
        said = content.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise OSError(errno.EIO, f"py-spy: {said[:200]}")
    return bytes(content)


def _ended(child: int, until: float) -> int | None:
    """How it ended; None if it had to be killed."""
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    time.sleep(0.05)
    if not os.waitpid(child, os.WNOHANG)[0]:
        left.add(child)
    return None


def _start(folder: str) -> str:
    """When a process started, which tells it from another of its number."""
    with open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]
