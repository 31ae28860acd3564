"""Reads inside the roots of other processes, where a tenant chose what every name leads to.

A name there may be a link to a file of the node, a device, a pipe, a file that its process may not
read, or on a server that never answers. So the kernel resolves every path below the process's root,
with the rights of its user; what is found is looked at before it is opened; and each read has a
thread of its own. https://man7.org/linux/man-pages/man2/openat2.2.html
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator

from gpunode.node.capability import raised
from gpunode.node.cgroup import budget
from gpunode.node.node import MOST_READ
from gpunode.node.patience import Patience

PLACE = re.compile(r"(?P<process>/proc/\d+)/(?P<start>root|cwd)/(?P<path>.*)", re.DOTALL)
"""A path below the root of a process, or one that begins at its working directory."""

OPENAT2 = 437
"""The system call; its number is the same on every architecture that has drivers for GPUs."""

MOST_MAPS = 4 << 20
"""Bytes of a table of what a process has mapped: of one that trains, it has a tenth of that."""

NO_MAGICLINKS, BENEATH, IN_ROOT = 0x02, 0x08, 0x10
RESOLVE = {"root": IN_ROOT | NO_MAGICLINKS, "cwd": BENEATH | NO_MAGICLINKS}
"""How a path is resolved: links lead below the root; none leads out of a working directory."""


class How(ctypes.Structure):
    """``struct open_how`` of include/uapi/linux/openat2.h."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.setfsuid.argtypes = LIBC.setfsgid.argtypes = (ctypes.c_uint,)


class Inside:
    """Reads inside the roots of the processes of the node mounted at ``rootfs``."""

    def __init__(self, rootfs: str) -> None:
        self.rootfs = rootfs
        self._patience = Patience()

    def space(self, path: str) -> os.statvfs_result:
        """``statvfs`` of a path below /proc/PID/root. Raises ``OSError``."""

        def answer() -> os.statvfs_result:
            with self._found(path) as (name, _):
                return os.fstatvfs(name)

        return self._patience.ask(self._tenant(path), path, answer)

    def part(self, path: str, after: int) -> tuple[bytes, int]:
        """Bytes of a regular file from ``after``, or from 0 if it is shorter, and where they begin.

        Raises ``OSError``, also if the user of the process may not read it.
        """

        def answer() -> tuple[bytes, int]:
            with self._found(path) as (name, user):
                status = os.fstat(name)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", path)
                if status.st_uid != user and not status.st_mode & stat.S_IROTH:
                    why = "belongs to another user than its process"
                    raise PermissionError(errno.EACCES, why, path)
                begin = after if after <= status.st_size else 0
                size = min(MOST_READ, status.st_size - begin)
                if not size:  # as of a file in /proc, which reading may change
                    return b"", begin
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
                with _opened(f"/proc/self/fd/{name}", flags) as file:
                    return os.pread(file, size, begin), begin

        return self._patience.ask(self._tenant(path), path, answer)

    def maps(self, pid: int) -> bytes:
        """The beginning of a process's /proc/PID/maps. Raises ``OSError``.

        Who maps a file of a server that never answers can make the kernel wait for it here.
        """
        path = f"/proc/{pid}/maps"

        def answer() -> bytes:
            with raised(), open(self.rootfs + path, "rb") as file:
                return file.read(MOST_MAPS)

        return self._patience.ask(self._tenant(f"/proc/{pid}/root/"), path, answer)

    def _tenant(self, path: str) -> str:
        """Whose path it is, as the kernel tells it of the process."""
        try:
            with _opened(f"{self.rootfs}{_place(path)['process']}/cgroup", os.O_RDONLY) as file:
                text = os.read(file, 1 << 16).decode("utf-8", "replace")
                return budget(text, str(os.fstat(file).st_uid))
        except FileNotFoundError:
            return ""

    @contextlib.contextmanager
    def _found(self, path: str) -> Iterator[tuple[int, int]]:
        """A descriptor that names what is at a path but cannot read it, and the process's user.

        The calling thread takes on the rights of that user if it may, and keeps them.
        """
        place = _place(path)
        folder = os.O_PATH | os.O_DIRECTORY
        with contextlib.ExitStack() as opened:
            process = opened.enter_context(_opened(self.rootfs + place["process"], folder))
            with raised():
                start = opened.enter_context(_opened(place["start"], folder, process))
            # The owner of this folder is the effective user, even if all else there is root's.
            user = os.fstat(process)
            LIBC.setfsgid(user.st_gid)
            LIBC.setfsuid(user.st_uid)
            how = How(os.O_PATH | os.O_CLOEXEC, 0, RESOLVE[place["start"]])
            name = os.fsencode(place["path"].lstrip("/"))
            file = LIBC.syscall(OPENAT2, start, name, ctypes.byref(how), ctypes.sizeof(how))
            if file < 0:
                raise _error(ctypes.get_errno(), path)
            try:
                yield file, user.st_uid
            finally:
                os.close(file)


def is_inside(path: str) -> bool:
    """Whether a path of the node leads through the root or working directory of a process."""
    return PLACE.fullmatch(path) is not None


def _place(path: str) -> re.Match[str]:
    match = PLACE.fullmatch(path)
    if match is None:
        raise OSError(errno.EINVAL, "not inside the root of a process", path)
    return match


def _error(number: int, path: str) -> OSError:
    if number in (errno.ENOSYS, errno.EPERM):  # the latter from a seccomp profile that is older
        why = "reading inside a process's root takes openat2(2): Linux 5.6, and seccomp to allow it"
        return OSError(errno.ENOSYS, why, path)
    if number == errno.EXDEV:
        return OSError(number, "leads out of the working directory of its process", path)
    return OSError(number, os.strerror(number), path)


@contextlib.contextmanager
def _opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)
