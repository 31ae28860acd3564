"""``gpunode helper``: answers the daemon of this node, and nobody else, at a socket of its own.

There are four, each with the privilege of its work alone: ``files`` reads, ``sockets`` reaches the
kubelet and listens for clients, ``network`` asks servers in the network of a pod, and ``stacks``
has py-spy look where a process stands. The daemon connects once; for each packet that it sends
there, it is passed one end of a pair of sockets, to which nobody else has a way. On that, a request
is one packet: a verb and its arguments, with zeros between them. An answer begins with ``HEAD``.
Each pair has a thread, so that a file that never answers keeps no other request waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpunode.helper import capability
from gpunode.helper.confine import Verb, Work, confine
from gpunode.helper.inside import content

HEAD = struct.Struct("=iI")
"""An error number, or 0, and the bytes that follow: an answer, or what went wrong."""

MAX_REQUEST_BYTES = 1 << 13
"""Bytes of a request; a path has at most half as many."""

PACKET = 1 << 13
"""Bytes of an answer in one packet."""

MAX_PAIRS = 128
"""The most pairs at once; the daemon waits for at most 32 files that do not answer."""

STACK = 1 << 19
"""Bytes of a thread's stack; its addresses count against the limit of ``stacks``."""

M_ARENA_MAX = -8
"""Of malloc.h."""

BEAT = 5
"""The most seconds between two signs of life; systemd waits for a minute, as the units say."""

PEER = struct.Struct("3i")
"""``struct ucred``: process, user and group of who connected."""

SO_PEERPIDFD = 77
"""Of asm-generic/socket.h, from Linux 6.5 on: a descriptor of the process that connected."""

SUBGROUP = re.compile(r"^/\.\./\.\.(/[^/]+)/container$")
"""The cgroup of another container of the pod, within which crun makes one more."""

SECONDS = struct.Struct("@ll")
"""``struct timeval``."""

FINAL_VERBS = frozenset({"space", "part", "ask"})
"""Verbs after which a thread has the rights of another user, or is elsewhere, and so ends."""

HELPERS = ("files", "sockets", "network", "stacks")


def work_of(name: str, rootfs: str, kubelet: str, client: str) -> Work:
    """What one of the four does, on the node whose root is at ``rootfs``; loads no other's code."""
    if name == "files":
        from gpunode.helper import files

        return files.work(rootfs)
    if name == "stacks":
        from gpunode.helper import stacks

        return stacks.work(rootfs)
    if name == "network":
        from gpunode.helper import tcp

        return tcp.work(rootfs)
    from gpunode.helper import sockets

    return sockets.work(rootfs, kubelet, client)


def answer(verbs: dict[str, Verb], request: bytes) -> tuple[int, bytes, list[int]]:
    """The error number, the bytes and the descriptors with which to answer a request."""
    verb, *arguments = os.fsdecode(request).split("\0")
    try:
        found = verbs[verb](*arguments)
    except OSError as error:
        return error.errno or errno.EIO, os.fsencode(error.strerror or str(error)), []
    except (KeyError, TypeError, ValueError, OverflowError):
        return errno.EINVAL, b"the helper knows no such request", []
    return (0, found, []) if isinstance(found, bytes) else (0, b"", found)


def serve(verbs: dict[str, Verb], connection: socket.socket) -> None:
    """Answer the requests of a connection until it ends."""
    with connection, contextlib.suppress(OSError):  # the other end may be gone
        while request := connection.recv(MAX_REQUEST_BYTES):
            number, content, passed = answer(verbs, request)
            try:
                head = HEAD.pack(number, len(content))
                socket.send_fds(connection, [head, content[:PACKET]], passed)
                for begin in range(PACKET, len(content), PACKET):
                    connection.sendmsg([content[begin : begin + PACKET]])
            finally:
                for one in passed:
                    os.close(one)
            if request.partition(b"\0")[0].decode("ascii", "replace") in FINAL_VERBS:
                return


def pairs(verbs: dict[str, Verb], connection: socket.socket) -> None:
    """Pass the daemon one end of a pair of sockets for each packet, until it hangs up."""
    with connection, contextlib.suppress(OSError):
        while connection.recv(1):
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                start(serve, verbs, ours)
                socket.send_fds(connection, [b"\0"], [its.fileno()])


def start(target: Callable[..., None], verbs: dict[str, Verb], connection: socket.socket) -> None:
    """Serve a connection in a thread, or close it where there are too many."""
    try:
        if threading.active_count() <= MAX_PAIRS:
            threading.Thread(target=target, args=(verbs, connection), daemon=True).start()
            return
    except RuntimeError:  # no memory for a thread
        pass
    connection.close()


def is_of(user: int, connection: socket.socket) -> bool:
    """Whether a user connected, as the kernel says."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return bool(PEER.unpack(peer)[1] == user)


def cgroup_of(connection: socket.socket) -> str:
    """The cgroup of the process that connected, which lives. Raises ``OSError``."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    pid = f"{PEER.unpack(peer)[0]}"
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return content(f"/proc/{pid}/cgroup")
    try:
        found = content(f"/proc/{pid}/cgroup")
        if f"\nPid:\t{pid}\n" not in content(f"/proc/self/fdinfo/{pidfd}"):
            raise ProcessLookupError(errno.ESRCH, "who connected has ended")
    finally:
        os.close(pidfd)
    return found


def is_beside(own: str, other: str) -> bool:
    """Whether two texts of /proc/PID/cgroup are of the same unit, or of containers of one pod."""
    return [_parent(line) for line in own.splitlines()] == [
        _parent(line) for line in other.splitlines()
    ]


def _parent(line: str) -> str:
    hierarchy, controllers, path = line.split(":", 2)
    path = SUBGROUP.sub(r"/..\1", path)
    above = "/.." if path == "/" else path.rpartition("/")[0]
    return f"{hierarchy}:{controllers}:{above}"


def is_daemon(user: int, unit: str, connection: socket.socket) -> bool:
    """Whether the daemon connected: a user, in the cgroup of a unit or else beside our own.

    Other processes of that user may reach a socket through /proc/PID/root of the daemon.
    """
    try:
        if not is_of(user, connection):
            return False
        found = cgroup_of(connection)
        if unit:
            return bool(re.search(rf"^(?:0:|\d+:name=systemd):{re.escape(unit)}$", found, re.M))
        return is_beside(content("/proc/self/cgroup"), found)
    except (OSError, ValueError):
        return False


def listening(path: Path, user: int) -> socket.socket:
    """A socket at a path for one user, in place of one from before. Raises ``OSError``."""
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.umask(0o177)
    listener.bind(str(path))
    if user != os.geteuid():
        os.chown(path, user, -1, follow_symlinks=False)
    os.umask(0)  # the socket for clients is for anybody
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECONDS.pack(BEAT, 0))
    listener.listen(MAX_PAIRS)
    return listener


def sign_of_life() -> Callable[[], object]:
    """What tells systemd that this process goes on, where systemd asks for it (``WatchdogSec``).

    https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html. Raises ``OSError``.
    """
    if not (address := os.environ.get("NOTIFY_SOCKET", "")):
        return lambda: None
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SECONDS.pack(1, 0))
    systemd.connect("\0" + address[1:] if address[0] == "@" else address)
    return lambda: systemd.sendmsg([b"WATCHDOG=1"])


def main(arguments: Sequence[str]) -> None:
    """Serve until the end; exits with 2 where it cannot begin."""
    parser = argparse.ArgumentParser("gpunode helper", description=__doc__.partition("\n\n")[0])
    parser.add_argument("work", choices=HELPERS)
    parser.add_argument("--folder", type=Path, required=True, help="where its socket is to be")
    parser.add_argument("--user", type=int, default=os.geteuid(), help="who may ask, as a number")
    parser.add_argument("--unit", default="", help="whose cgroup that is; else one beside its own")
    parser.add_argument("--rootfs", default="/", help="where the root of the node is mounted")
    parser.add_argument("--kubelet", default="", help="socket of the kubelet, on the node")
    parser.add_argument("--client", default="", help="socket for messages from gpunode.client")
    parser.add_argument(
        "--check", action="store_true", help="whether it is well; exits with 0 or 1"
    )
    asked = parser.parse_args(arguments)
    path = asked.folder / f"{asked.work}.sock"
    if asked.check:
        from gpunode.helper.check import is_well

        sys.exit(not is_well(path))
    threading.stack_size(STACK)
    capability.libc.mallopt(M_ARENA_MAX, 1)  # each other heap sets 64 MiB of addresses aside
    work = work_of(asked.work, asked.rootfs.rstrip("/"), asked.kubelet, asked.client)
    try:
        listener = listening(path, asked.user)
        alive = sign_of_life()
        capability.keep(work.capabilities)
        work.prepare()
        confine(work)
    except OSError as error:
        print(f"gpunode helper: {error}", file=sys.stderr)
        sys.exit(2)
    verbs = {**work.verbs, "cost": lambda: str(time.process_time()).encode()}
    while True:
        with contextlib.suppress(OSError):  # systemd is about to start anew
            alive()
        try:
            connection, _ = listener.accept()
        except OSError:  # no descriptor is left, or nobody came
            time.sleep(0.1)
            continue
        if is_daemon(asked.user, asked.unit, connection):
            start(pairs, verbs, connection)
        else:
            connection.close()
