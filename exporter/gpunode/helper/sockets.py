"""Sockets that the daemon may not make itself: to the kubelet, and for clients.

All of these raise ``OSError``.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from gpunode.helper.confine import Verb, Work
from gpunode.helper.inside import open_file


def kubelet(path: str, wait: float | None = None) -> socket.socket:
    """A connection to the kubelet, which has so many seconds to accept it."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if wait is not None:  # which takes a system call that a helper may not make
            connected.settimeout(wait)
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected


def bound(path: Path) -> socket.socket:
    """A socket for datagrams that is open to any sender, whom the kernel identifies.

    Raises ``OSError`` if it is in use.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _refuse_shared(path.parent)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        _remove_abandoned(path)
        made.bind(str(path))
        _open_to_all(path)
    except OSError:
        made.close()
        raise
    return made


def _refuse_shared(folder: Path) -> None:
    """Whoever may write to the folder could put a socket of their own, or a link, in our place.

    In a folder with the sticky bit, such as /tmp, they may not touch what is ours.
    """
    found = folder.stat()
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if writable or found.st_uid not in (0, os.geteuid()):
        why = f"others may write to {folder}; make it this user's own, with mode 755"
        raise OSError(errno.EPERM, why, str(folder))


def _remove_abandoned(path: Path) -> None:
    """Remove the socket that a terminated program of this user left behind, and nothing else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EADDRINUSE, "something else is there; remove it", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))


def _open_to_all(path: Path) -> None:
    """The mode is set through a descriptor, because a path may lead elsewhere by now."""
    with open_file(str(path), os.O_PATH | os.O_NOFOLLOW) as name:
        found = os.fstat(name)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EADDRINUSE, "something else took its place", str(path))
        if found.st_mode & 0o666 != 0o666:  # a helper has no umask, and no right to do this
            os.chmod(f"/proc/self/fd/{name}", 0o666)  # noqa: S103 jobs run as any user


def work(rootfs: str, kubelet_at: str, client_at: str) -> Work:
    """The work of the helper ``sockets``, for the paths that are given."""
    made: dict[str, Verb] = {}
    if kubelet_at:
        made["kubelet"] = lambda: [kubelet(rootfs + kubelet_at).detach()]
    if client_at:
        made["client"] = lambda: [bound(Path(client_at)).detach()]
    return Work(made, (), ("bind", "connect", "setsockopt", "socket", "unlink", "unlinkat"))
