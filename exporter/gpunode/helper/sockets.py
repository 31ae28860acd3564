"""Sockets that the daemon may not make itself: to the kubelet, for clients, and in another network.

All of these raise ``OSError``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
from pathlib import Path

from gpunode.helper.capability import libc, raised
from gpunode.helper.confine import Checks, Verb, Work
from gpunode.helper.inside import opened, process

NEW_NETWORK = 0x40000000
SOCK_DIAG = 4
"""CLONE_NEWNET of sched.h, and NETLINK_SOCK_DIAG of linux/netlink.h."""


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
    with opened(str(path), os.O_PATH | os.O_NOFOLLOW) as name:
        found = os.fstat(name)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EADDRINUSE, "something else took its place", str(path))
        if found.st_mode & 0o666 != 0o666:  # a helper has no umask, and no right to do this
            os.chmod(f"/proc/self/fd/{name}", 0o666)  # noqa: S103 jobs run as any user


def in_network(namespace: str, family: int) -> tuple[socket.socket, socket.socket]:
    """Sockets in a network namespace, for TCP and to ask the kernel about it.

    The calling thread stays in that namespace, which the kernel gives to what a thread creates.
    """
    with raised(), opened(namespace, os.O_RDONLY) as file:
        if libc.setns(file, NEW_NETWORK):
            number = ctypes.get_errno()
            why = f"{os.strerror(number)}: entering requires CAP_SYS_ADMIN"
            raise OSError(number, why, namespace)
    return in_this_network(family)


def in_this_network(family: int) -> tuple[socket.socket, socket.socket]:
    """Sockets for TCP and to ask the kernel about it."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        return connection, socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG)
    except OSError:
        connection.close()
        raise


def of_root(rootfs: str, kubelet_at: str, client_at: str) -> Work:
    """What the helper ``sockets`` does, as far as it is told where."""
    made: dict[str, Verb] = {}
    if kubelet_at:
        made["kubelet"] = lambda: [kubelet(rootfs + kubelet_at).detach()]
    if client_at:
        made["client"] = lambda: [bound(Path(client_at)).detach()]
    return Work(made, (), ("bind", "connect", "setsockopt", "socket", "unlink", "unlinkat"))


OF_NETWORKS: Checks = (
    *(
        ((0, 0xFFFFFFFF, family), (1, 0xF, socket.SOCK_STREAM), (2, 0xFFFFFFFF, 0))
        for family in (socket.AF_INET, socket.AF_INET6)
    ),
    ((0, 0xFFFFFFFF, socket.AF_NETLINK), (2, 0xFFFFFFFF, 4)),  # NETLINK_SOCK_DIAG
)
"""TCP without the call that would connect, and questions to the kernel about sockets."""


def of_networks(rootfs: str) -> Work:
    """What the helper ``network`` does, on the node whose root is at ``rootfs``."""

    def made(pid: str, family: str) -> list[int]:
        return [one.detach() for one in in_network(f"{process(rootfs, pid)}/ns/net", int(family))]

    kept = ("SYS_ADMIN", "SYS_PTRACE")
    return Work({"in_network": made}, kept, ("setns", "socket"), {"socket": OF_NETWORKS})
