"""A Unix datagram socket on which the kernel identifies senders.

https://man7.org/linux/man-pages/man7/unix.7.html (SO_PASSCRED, SCM_CREDENTIALS)
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from gpunode.client.protocol import MAX_MESSAGE_BYTES
from gpunode.helper.sockets import bound
from gpunode.node.kernel import parse_stat

log = logging.getLogger(__name__)

RATE = 4000
"""Datagrams received per second, which takes a tenth of a CPU. The rest wait in the kernel, whose
full queue makes senders wait or drop theirs: a flood costs its sender, not the node."""

BURST = 16
"""Datagrams received at once: the kernel's queue, which holds as few as ten, and a few that come
meanwhile. A rest between bursts, not once a second, lets every sender in several times a second."""

MAX_PER_SENDER = 64
"""The most datagrams of one sender waiting to be taken; a client sends one per second."""

MAX_STRANGERS = 128
MAX_PER_STRANGER = 8
"""The most senders not known to the taker, and datagrams of each: 8 MiB at most, and enough for a
process that has just begun."""

COMPLAINT_INTERVAL = 3600.0
"""Seconds after which to say again that the socket was lost: whoever removes it may go on."""

CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Datagram:
    """A message and its sender's PID from the kernel: 0 if not visible in this PID namespace."""

    pid: int
    text: str
    start: float | None = None
    """When the sender started, in ticks since boot; None if it had ended on arrival. A PID alone
    may have been another process's before."""

    dropped: int = 0
    """How many datagrams this one stands for, of any sender, that were dropped unread."""


def start_of(pid: int) -> float | None:
    """When a process started, in ticks since boot; None if it has ended or may not be seen."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read()).start
    except OSError:
        return None


class DatagramSocket:
    """Receives in its own thread, because the kernel's queue holds as few as ten datagrams."""

    def __init__(
        self,
        path: str,
        bound: Callable[[Path], socket.socket] = bound,
        start_of: Callable[[int], float | None] = start_of,
    ) -> None:
        self._path = Path(path)
        self._bound = bound
        self._start_of = start_of
        self._lock = threading.Lock()
        self._known: frozenset[int] = frozenset()
        self._waiting: dict[int, list[Datagram]] = {}
        self._strangers = 0
        self._dropped = 0
        self._said = -math.inf
        self._listen()

    def take(self, known: Collection[int]) -> list[Datagram]:
        """The datagrams since the last call; until the next, there is always room for ``known``.

        Listens again if the socket was removed or replaced. Raises ``OSError``.
        """
        if not self._thread.is_alive() or _file_identity(self._path) != self._place:
            self._listen_again()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            dropped, self._dropped = self._dropped, 0
            self._known, self._strangers = frozenset(known), 0
        taken = [datagram for sent in waiting.values() for datagram in sent]
        return [*taken, Datagram(0, "", dropped=dropped)] if dropped else taken

    def _listen(self) -> None:
        self._socket = self._bound(self._path)
        self._place = _file_identity(self._path)
        self._thread = threading.Thread(
            target=self._receive, args=(self._socket,), name="datagrams", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit on threads or memory
            self._socket.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def _listen_again(self) -> None:
        before = self._socket
        try:
            self._listen()
        finally:
            if self._socket is not before:
                with contextlib.suppress(OSError):  # its thread may have closed it
                    before.shutdown(socket.SHUT_RD)
        if time.monotonic() - self._said >= COMPLAINT_INTERVAL:
            self._said = time.monotonic()
            log.warning("%s was removed or replaced; it is there again", self._path)

    def _receive(self, listener: socket.socket) -> None:
        space = socket.CMSG_SPACE(CREDENTIALS.size)
        begun, count = time.monotonic(), 0
        with listener:
            while listener is self._socket:
                content, extra, _, _ = listener.recvmsg(MAX_MESSAGE_BYTES, space)
                self._keep(_sender(extra), content)
                count += 1
                if count == BURST:
                    time.sleep(max(0.0, begun + BURST / RATE - time.monotonic()))
                    begun, count = time.monotonic(), 0

    def _keep(self, pid: int, content: bytes) -> None:
        """Keep a datagram if there is room for it; what is dropped costs as little as possible."""
        with self._lock:
            sent = self._waiting.get(pid)
            if pid in self._known:
                room = sent is None or len(sent) < MAX_PER_SENDER
            elif sent is None:
                self._strangers += 1
                room = self._strangers <= MAX_STRANGERS
            else:
                room = len(sent) < MAX_PER_STRANGER
            if not room:
                self._dropped += 1
                return
        text = content.decode("utf-8", "replace")
        datagram = Datagram(pid, text, self._start_of(pid))  # which may take a while
        with self._lock:
            self._waiting.setdefault(pid, []).append(datagram)


def _sender(extra: list[tuple[int, int, bytes]]) -> int:
    """The PID in the credentials that the kernel adds to a datagram."""
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(CREDENTIALS.unpack(data)[0])
    return 0


def _file_identity(path: Path) -> tuple[int, int] | None:
    """What is at a path: device and inode, which stays taken for as long as a socket is bound."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
