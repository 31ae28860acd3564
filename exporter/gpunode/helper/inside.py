"""Finds a path inside the root of another process, where a tenant chose what every name leads to.

A link there may point to a file of the node, and a name may be a device or a file that its process
may not read. So each name is looked up in the folder before it, with the rights of the process's
user and without following links. Links and ``..`` are followed here, and never out of the root.
(``openat2`` does the same, but a filter of system calls cannot see its flags: ``confine.py``.)
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator

from gpunode.helper.capability import raised

PID = re.compile(r"\d{1,10}")

PLACE = re.compile(r"(?P<process>/proc/\d+)/(?P<start>root|cwd)/(?P<path>.*)", re.DOTALL)
"""A path below the root of a process, or one that begins at its working directory."""

LINKS = 40
"""The most links on a path, as the kernel has it: https://man7.org/linux/man-pages/man7/path_resolution.7.html"""

DEEPEST = 256
"""The most folders on a path: each takes a descriptor."""

OUT = "leads out of the working directory of its process"

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.setfsuid.argtypes = LIBC.setfsgid.argtypes = (ctypes.c_uint,)


def place(path: str) -> re.Match[str]:
    """The parts of a path in the root of a process. Raises ``OSError``."""
    match = PLACE.fullmatch(path)
    if match is None:
        raise OSError(errno.EINVAL, "not inside the root of a process", path)
    return match


@contextlib.contextmanager
def opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """A descriptor for as long as it is needed. Raises ``OSError``."""
    file = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def found(rootfs: str, path: str) -> Iterator[tuple[int, int]]:
    """A descriptor that names what is at a path but cannot read it, and the process's user.

    The calling thread takes on the rights of that user if it may, and keeps them.
    Raises ``OSError``.
    """
    at = place(path)
    with contextlib.ExitStack() as left:
        process = left.enter_context(opened(rootfs + at["process"], FOLDER))
        with raised():
            start = os.open(at["start"], FOLDER, dir_fd=process)
        # The owner of this folder is the effective user, even if all else there is root's.
        user = os.fstat(process)
        LIBC.setfsgid(user.st_gid)
        LIBC.setfsuid(user.st_uid)
        way = [start]
        left.callback(_close, way)
        _go(way, at["path"].lstrip("/"), at["start"] == "root", path)
        yield way[-1], user.st_uid


def _close(way: list[int]) -> None:
    for one in way:
        os.close(one)


def _go(way: list[int], rest: str, to_root: bool, path: str) -> None:
    """Add a descriptor for each step; from a working directory, none leads out of it."""
    names, links = rest.split("/")[::-1], 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if len(way) > 1:
                os.close(way.pop())
            elif not to_root:
                raise OSError(errno.EXDEV, OUT, path)
            continue
        if len(way) > DEEPEST:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        step = os.open(name, NAME, dir_fd=way[-1])
        if not stat.S_ISLNK(os.fstat(step).st_mode):
            way.append(step)
            continue
        try:
            target = os.readlink("", dir_fd=step)
        finally:
            os.close(step)
        links += 1
        if links > LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            if not to_root:
                raise OSError(errno.EXDEV, OUT, path)
            _close(way[1:])
            del way[1:]
        names += target.split("/")[::-1]


def process(rootfs: str, pid: str) -> str:
    """The folder of a process."""
    if not PID.fullmatch(pid):
        raise OSError(errno.EINVAL, "not the number of a process", pid)
    return f"{rootfs}/proc/{pid}"
