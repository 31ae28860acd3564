"""A Unix datagram socket on which the kernel identifies senders.

https://man7.org/linux/man-pages/man7/unix.7.html (SO_PASSCRED, SCM_CREDENTIALS)
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from gpunode.client.protocol import LARGEST

ROOM = 2048
"""The most datagrams waiting to be read; beyond that, the oldest are dropped."""

RATE = 2000
"""Datagrams received per second. The rest wait in the kernel, whose full queue makes senders drop
theirs: a flood costs its sender, not the node."""

CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Datagram:
    """A message and its sender's PID from the kernel: 0 if not visible in this PID namespace."""

    pid: int
    text: str


class DatagramSocket:
    """Receives in its own thread, because the kernel's queue holds as few as ten datagrams."""

    def __init__(self, path: str) -> None:
        self._waiting: deque[Datagram] = deque(maxlen=ROOM)
        self._socket = _bound(Path(path))
        threading.Thread(target=self._receive, name="datagrams", daemon=True).start()

    def take(self) -> list[Datagram]:
        """The datagrams received since the last call."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def _receive(self) -> None:
        space = socket.CMSG_SPACE(CREDENTIALS.size)
        second, count = 0.0, 0
        while True:
            content, extra, _, _ = self._socket.recvmsg(LARGEST, space)
            now = time.monotonic()
            if now - second >= 1.0:
                second, count = now, 0
            count += 1
            if count > RATE:
                time.sleep(max(0.0, second + 1.0 - now))
            pid = next((CREDENTIALS.unpack(d[:12])[0] for *_, d in extra if len(d) >= 12), 0)
            self._waiting.append(Datagram(pid, content.decode("utf-8", "replace")))


def _bound(path: Path) -> socket.socket:
    """A socket at a path, open to any sender. Raises ``OSError``, also if the path is in use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if path.is_socket():
            _remove_unless_alive(path)
        bound.bind(str(path))
        os.chmod(path, 0o666)  # noqa: S103 jobs run as any user, and the kernel identifies it
    except OSError:
        bound.close()
        raise
    return bound


def _remove_unless_alive(path: Path) -> None:
    """Remove the socket that a terminated daemon left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
