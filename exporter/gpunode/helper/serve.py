"""``gpunode helper``: answers the daemon of this node, and nobody else, at a socket of its own.

There are four, each with the privilege of its work alone: ``files`` reads, ``sockets`` reaches the
kubelet and listens for clients, ``network`` enters the network of a pod, and ``stacks`` has py-spy
look where a process stands. A request is one packet: a verb and its arguments, with zeros between
them. An answer begins with ``HEAD``. Each connection has a thread, so that a file that never
answers keeps no other request waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpunode.helper import capability
from gpunode.helper.confine import Verb, Work, confine

HEAD = struct.Struct("=iI")
"""An error number, or 0, and the bytes that follow: an answer, or what went wrong."""

LONGEST = 1 << 13
"""Bytes of a request; a path has at most half as many."""

PACKET = 1 << 13
"""Bytes of an answer in one packet."""

MOST = 128
"""The most connections at once; the daemon waits for at most 32 files that do not answer."""

BEAT = 5
"""The most seconds between two signs of life; systemd waits for a minute, as the units say."""

PEER = struct.Struct("3i")
"""``struct ucred``: process, user and group of who connected."""

SECONDS = struct.Struct("@ll")
"""``struct timeval``."""

ENDS = frozenset({"space", "part", "in_network"})
"""Verbs after which a thread has the rights of another user, or is elsewhere, and so ends."""

WORKS = ("files", "sockets", "network", "stacks")


def work_of(name: str, rootfs: str, kubelet: str, client: str) -> Work:
    """What one of the four does, on the node whose root is at ``rootfs``; loads no other's code."""
    if name == "files":
        from gpunode.helper import files

        return files.work(rootfs)
    if name == "stacks":
        from gpunode.helper import stacks

        return stacks.work(rootfs)
    from gpunode.helper import sockets

    if name == "network":
        return sockets.of_networks(rootfs)
    return sockets.of_root(rootfs, kubelet, client)


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
        while request := connection.recv(LONGEST):
            number, content, passed = answer(verbs, request)
            try:
                head = HEAD.pack(number, len(content))
                socket.send_fds(connection, [head, content[:PACKET]], passed)
                for begin in range(PACKET, len(content), PACKET):
                    connection.sendmsg([content[begin : begin + PACKET]])
            finally:
                for one in passed:
                    os.close(one)
            if request.partition(b"\0")[0].decode("ascii", "replace") in ENDS:
                return


def is_of(user: int, connection: socket.socket) -> bool:
    """Whether a user connected, as the kernel says."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return bool(PEER.unpack(peer)[1] == user)


def listening(path: Path) -> socket.socket:
    """A socket at a path, in place of one that is left from before. Raises ``OSError``."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECONDS.pack(BEAT, 0))
    listener.listen(MOST)
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
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--folder", type=Path, required=True, help="where its socket is to be")
    parser.add_argument("--user", type=int, default=os.geteuid(), help="who may ask, as a number")
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
    work = work_of(asked.work, asked.rootfs.rstrip("/"), asked.kubelet, asked.client)
    os.umask(0)  # whoever is not the daemon's user is turned away below, and clients are anybody
    try:
        listener = listening(path)
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
        if threading.active_count() > MOST or not is_of(asked.user, connection):
            connection.close()
            continue
        try:
            threading.Thread(target=serve, args=(verbs, connection), daemon=True).start()
        except RuntimeError:  # no memory for a thread
            connection.close()
