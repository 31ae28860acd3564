"""Opens paths without following a link, and files of a process with the rights of who began it.

A tenant chooses what the names below the root of a process lead to, and some of its environment.
So each name is looked up in the folder before it: no link is followed and no name leads above.
(``openat2`` does the same, but no filter of system calls can see its flags: ``confine.py``.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import struct
from collections.abc import Iterator
from ctypes import c_uint

from gpunode.helper.capability import elevate, libc

PID = re.compile(r"\d{1,10}")

PLACE = re.compile(r"/proc/(?P<pid>\d{1,10})/(?P<start>root|cwd)/(?P<path>.*)", re.DOTALL)
"""A path below the root of a process, or one that begins at its working directory."""

NOBODY = 65534
"""Who reads for root: files that everyone may read, and no others."""

MAX_DEPTH = 256
"""The most folders on a path."""

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
libc.setfsuid.argtypes = libc.setfsgid.argtypes = (c_uint,)

SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(os.uname().machine, -1)
"""The system call, which is for one thread; the C library makes it for all of them."""

UIDS = re.compile(r"^Uid:\t(\d+)\t\1\t\1\t\1\nGid:\t(\d+)\t\2\t\2\t\2$", re.MULTILINE)
"""Who a process is, if it is that user in every way: real, effective, saved and for files."""

AT_SECURE = 23
"""Of elf.h: the kernel writes 1 of who became another user, or was given more, by a program."""

PAIR = struct.Struct("@LL")
UNSET = 4294967295
"""Of /proc/PID/loginuid, where nobody has logged in."""


def split_path(path: str) -> re.Match[str]:
    """The parts of a path in the root of a process. Raises ``OSError``."""
    match = PLACE.fullmatch(path)
    if match is None:
        raise OSError(errno.EINVAL, "not inside the root of a process", path)
    return match


@contextlib.contextmanager
def open_file(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """A descriptor for as long as it is needed. Raises ``OSError``."""
    file = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def beneath(folder: int, path: str) -> Iterator[int]:
    """A descriptor that names what is at a path below a folder but cannot read it.

    Raises ``OSError``, also for a link or ``..`` anywhere on the path.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    if len(names) > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    here = os.open(".", FOLDER, dir_fd=folder)
    try:
        for name in names:
            if name == "..":
                raise OSError(errno.EXDEV, "no path may lead above", path)
            before, here = here, os.open(name, NAME, dir_fd=here)
            os.close(before)
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise OSError(errno.ELOOP, "there is a link on its path", path)
        yield here
    finally:
        os.close(here)


@contextlib.contextmanager
def open_place(process: int, where: re.Match[str]) -> Iterator[tuple[int, int]]:
    """A descriptor that names what is at a ``PLACE`` of a process, and for whom it is read.

    The calling thread takes on the rights of that user if it may, and keeps them: of nobody, if the
    process is root's. Raises ``OSError``, also if the process has changed its user, or if root may
    not become that user without groups of its own.
    """
    with elevate():
        user, group = file_owner(process)
        start = os.open(where["start"], FOLDER, dir_fd=process)
    try:
        refused = libc.syscall(SETGROUPS, 0, None)
        libc.setfsgid(group)
        libc.setfsuid(user)
        if not os.geteuid() and (refused or libc.setfsuid(UNSET) != user):
            raise PermissionError(errno.EPERM, "root takes SETUID and SETGID to become another")
        with beneath(start, where["path"]) as name:
            yield name, user
    finally:
        os.close(start)


def file_owner(process: int) -> tuple[int, int]:
    """The user and group for whom files are read that a process names: nobody for root.

    Raises ``OSError`` if the process is not in every way the user who began it, as a program that a
    tenant began with an environment of his own and that made it root's.
    """
    users = UIDS.search(_bytes(process, "status").decode("utf-8", "replace"))
    words = PAIR.iter_unpack(_bytes(process, "auxv")[: 64 * PAIR.size])
    login = UNSET
    with contextlib.suppress(FileNotFoundError):  # a kernel without audit
        login = int(_bytes(process, "loginuid"))
    if users is None or dict(words).get(AT_SECURE) != 0 or login not in (UNSET, int(users[1])):
        raise PermissionError(errno.EPERM, "the process has changed its user")
    return (int(users[1]), int(users[2])) if int(users[1]) else (NOBODY, NOBODY)


def _bytes(process: int, name: str) -> bytes:
    with open_file(name, os.O_RDONLY, process) as file:
        return os.read(file, 1 << 12)


def process(rootfs: str, pid: str) -> str:
    """The folder of a process."""
    if not PID.fullmatch(pid):
        raise OSError(errno.EINVAL, "not the number of a process", pid)
    return f"{rootfs}/proc/{pid}"


def content(path: str) -> str:
    """A short text of the kernel. Raises ``OSError``."""
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        return file.read(1 << 16)
