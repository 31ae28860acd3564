"""Has py-spy read the Python stacks of a process, and parses nothing of what it says.

py-spy reads the memory of a process, which it does not stop: https://github.com/benfred/py-spy
It runs without an environment, one at a time, and for ``LOOK_TIMEOUT`` seconds at most.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from gpunode.helper import capability
from gpunode.helper.capability import elevate
from gpunode.helper.confine import CHECKS, EXECUTE, NAMESPACES, THREAD, WRITE, Checks, Verb, Work
from gpunode.helper.inside import content, open_file, process

MAX_OUTPUT_BYTES = 4 << 20
"""Bytes that py-spy may print."""

MEMORY = 160 << 20
"""Bytes of addresses that py-spy may take, as may the helper itself: a process can lie about how
much there is to read. The unit and the container have 256 MiB for both."""

RUNS = (
    *("arch_prctl", "dup2", "dup3", "execve", "fcntl", "kill", "open", "pipe2", "poll", "ppoll"),
    *("process_vm_readv", "set_tid_address", "stat", "wait4", "write"),
)
"""What it takes to run a program that reads the memory of others and writes to a pipe."""

CHECKS_OF_RUNS: dict[str, Checks] = {
    "clone": (*CHECKS["clone"], ((0, NAMESPACES | THREAD, 0),)),
    "mmap": (*CHECKS["mmap"], ((2, EXECUTE | WRITE, 0),)),
    "write": (((0, 0xFFFFFFFF, 1),), ((0, 0xFFFFFFFF, 2),)),
    "kill": (((1, 0xFFFFFFFF, 9),),),
}
"""A program is a process of its own, and py-spy maps files to read them; it writes to a pipe."""

CAP_AMBIENT, CAP_AMBIENT_RAISE = 47, 2
"""Of include/uapi/linux/prctl.h."""

PYTHON_FOLDERS = Path(sys.executable).parent, Path(__file__).parents[2] / "bin"
FOLDERS: tuple[str | Path, ...] = (*PYTHON_FOLDERS, "/usr/local/bin", "/usr/bin")
"""Where it may be: beside this Python, as the image has it, or installed; never in a PATH."""

LOOK_TIMEOUT = 1.5
"""Seconds; it takes 5 to 90 ms, and longer only for thousands of threads."""

one_at_a_time = threading.Lock()
left: set[int] = set()
"""Those that could not be ended: they wait in the kernel, as for the memory of the process."""

MAX_LEFT_BEHIND = 4
"""The most of them, each of 15 MB: the daemon asks for no process of whoever has left one."""

KILL_TIMEOUT = 0.5
"""Seconds that a killed program is given to end; on a busy node that is no moment."""

NATIVE_TIMEOUT = 10.0
"""Seconds to wait for native frames; a process is stopped meanwhile, and goes on when that ends."""


def python(rootfs: str, pid: str) -> bytes:
    """What py-spy says of every thread of a process. Raises ``OSError``.

    It opens what a process names as its libraries, so why it fails would tell what is there.
    """
    arguments = ["dump", "--nonblocking", "--json", "--pid", pid]
    try:
        return run_tool(rootfs, pid, "py-spy", arguments, LOOK_TIMEOUT)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise OSError(errno.EIO, "py-spy: it is no Python that py-spy can read") from None


def native(rootfs: str, pid: str) -> bytes:
    """What py-spy says with frames of C and C++, while it stops the process. Raises ``OSError``.

    No helper has this verb: it is for a person who asks.
    """
    arguments = ["dump", "--native", "--json", "--pid", pid]
    return run_tool(rootfs, pid, "py-spy", arguments, NATIVE_TIMEOUT)


def run_tool(rootfs: str, pid: str, name: str, arguments: list[str], longest: float) -> bytes:
    """The output of a tool about a process, within ``longest`` seconds. Raises ``OSError``."""
    folder = process(rootfs, pid)
    with elevate(), open_file(f"{folder}/mem", os.O_RDONLY):  # py-spy would not say why it may not
        pass
    if rootfs and _start(folder) != _start(f"/proc/{pid}"):
        raise OSError(errno.ESRCH, "its number is another's here: it takes the PIDs of the node")
    program = next(filter(os.path.isfile, (f"{place}/{name}" for place in FOLDERS)), "")
    if not program:
        raise OSError(errno.ENOPKG, f"{name} is not installed")
    if not one_at_a_time.acquire(blocking=False):
        raise OSError(errno.EBUSY, f"{name} is busy with another process")
    try:
        left.difference_update(child for child in tuple(left) if os.waitpid(child, os.WNOHANG)[0])
        if len(left) >= MAX_LEFT_BEHIND:
            raise OSError(errno.EBUSY, f"{name} has not come back from other processes")
        return _tool_output(name, [program, *arguments], longest)
    finally:
        one_at_a_time.release()


def _tool_output(name: str, command: list[str], longest: float) -> bytes:
    """The output of a tool. Raises ``OSError`` with its message if it fails."""
    until, content = time.monotonic() + longest, bytearray()
    out, into = os.pipe()
    try:
        try:
            both = [(os.POSIX_SPAWN_DUP2, into, 1), (os.POSIX_SPAWN_DUP2, into, 2)]
            child = os.posix_spawn(command[0], command, {}, file_actions=both)
        finally:
            os.close(into)
        waiting = select.poll()
        waiting.register(out, select.POLLIN)
        while len(content) <= MAX_OUTPUT_BYTES and waiting.poll(
            max(0.0, 1e3 * (until - time.monotonic()))
        ):
            if not (part := os.read(out, 1 << 16)):
                break
            content += part
        status = _wait_for_exit(child, 0.0 if len(content) > MAX_OUTPUT_BYTES else until)
    finally:
        os.close(out)
    if child in left:
        raise OSError(errno.EDEADLK, f"{name} does not come back from it")
    if len(content) > MAX_OUTPUT_BYTES:
        raise OSError(errno.EFBIG, f"{name} prints more than {MAX_OUTPUT_BYTES >> 20} MiB")
    if status is None:
        raise OSError(errno.ETIMEDOUT, f"{name} did not end within {longest:g} s")
    if status:
        said = content.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise OSError(errno.EIO, f"{name}: {said[:200]}")
    return bytes(content)


def _wait_for_exit(child: int, until: float) -> int | None:
    """The exit status; None if it had to be killed."""
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    killed = time.monotonic()
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > killed + KILL_TIMEOUT:
            left.add(child)
            break
        time.sleep(0.01)
    return None


def _start(folder: str) -> str:
    """When a process started, which tells it from another of its number."""
    return content(f"{folder}/stat").rpartition(")")[2].split()[19]


def prepare() -> None:
    """Let py-spy have what this helper may, and no more memory than ``MEMORY``."""
    lent = capability.PROCESS_CAPABILITIES
    header, words = capability.sets()
    words[0].inheritable = capability.mask(lent) & words[0].permitted
    capability.call(capability.libc.capset, header, words)
    for name in lent:  # fails for what is not permitted
        capability.libc.prctl(CAP_AMBIENT, CAP_AMBIENT_RAISE, capability.NUMBERS[name], 0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def work(rootfs: str) -> Work:
    """What the helper ``stacks`` does, on the node whose root is at ``rootfs``."""
    verbs: dict[str, Verb] = {"python": partial(python, rootfs)}
    return Work(verbs, capability.PROCESS_CAPABILITIES, RUNS, CHECKS_OF_RUNS, prepare)
