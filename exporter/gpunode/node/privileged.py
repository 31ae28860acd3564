"""Reads what this process may not, through the helpers of the node (``gpunode.helper``).

A thread that waits for a helper has a pair of sockets for itself, of which the helper passed it
one end over the one connection that there is: an answer that never comes keeps no other waiting,
and no flood of others takes the daemon's place. A helper that is gone or stands still costs what is
asked of it, and soon only little time; once it is back, it is asked again.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.helper import sockets, stacks, tcp
from gpunode.helper.files import MAX_BYTES, READS
from gpunode.helper.serve import FINAL_VERBS, HEAD, HELPERS, PACKET, is_of
from gpunode.node.log import opened_log

TIMEOUT = 2.0
"""Seconds for an answer; a busy helper takes milliseconds."""

RETRY_SECONDS = 10.0
"""Seconds until a helper that did not answer is asked again."""

MAX_ANSWER_BYTES = 2 * MAX_BYTES
"""Bytes; no file that is read has more than half as many."""

DESCRIPTOR = struct.Struct("@i")

MAX_DESCRIPTORS = 1
"""Descriptors in an answer; the kernel closes others."""

MAX_IDLE_PAIRS = 8
"""Pairs that are kept for the next who ask."""

KUBELET_WAIT = 5.0
"""Seconds for a kubelet to accept a connection."""

TENANT_VERBS = frozenset(
    {"ask", "environment", "link", "maps", "part", "python", "sockets", "space"}
)
"""What a tenant can keep from being answered, beside the text of a process's file: whoever asks
gives up by itself."""

DIRECT_READS = {verb.__name__: verb for verb in READS}


@dataclass(slots=True)
class Helper:
    """One helper, by the path of its socket; safe to use from many threads."""

    path: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _passes: socket.socket | None = None
    """Where the helper passes pairs."""

    _idle: list[socket.socket] = field(default_factory=list)
    _silent_until: float = 0.0

    def ask(self, verb: str, *arguments: str, passes: int = 0) -> tuple[bytes, list[int]]:
        """What a helper answers: bytes, and so many descriptors.

        Raises ``OSError`` as the helper does, or where it gives no such answer.
        """
        if time.monotonic() < self._silent_until:
            raise self._unavailable("it did not answer a moment ago")
        request = os.fsencode("\0".join((verb, *arguments)))
        while True:
            connection, fresh = self._pair()
            until = math.inf if _is_of_tenant(verb, *arguments) else time.monotonic() + TIMEOUT
            try:
                _wait(connection, until)
                connection.send(request)
                number, content, passed = _received(connection, until, passes)
                break
            except TimeoutError as error:
                connection.close()
                raise self._silent() from error
            except OSError as error:
                connection.close()
                if fresh:
                    raise self._unavailable(error.strerror or str(error)) from error
        if verb in FINAL_VERBS:
            connection.close()
        else:
            self._keep(connection)
        if number:
            raise OSError(number, os.fsdecode(content), *arguments[:1])
        return content, passed

    def _pair(self) -> tuple[socket.socket, bool]:
        """Our end of a pair, and whether it is a new one: others may have ended with the helper."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
            try:
                try:
                    return self._passed(), True
                except (BrokenPipeError, ConnectionResetError):  # of a helper that has ended
                    self._hang_up()
                    return self._passed(), True
            except TimeoutError as error:
                self._hang_up()
                raise self._silent() from error
            except OSError as error:
                self._hang_up()
                raise self._unavailable(error.strerror or str(error)) from error

    def _passed(self) -> socket.socket:
        """The end of a pair that the helper passes. Raises ``OSError``."""
        if self._passes is None:
            self._passes = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._passes.settimeout(TIMEOUT)
            self._passes.connect(self.path)
            if not any(is_of(user, self._passes) for user in {0, os.geteuid()}):
                raise PermissionError(errno.EPERM, "another user answers in its place")
        self._passes.send(b"\0")
        packet, passed = _taken(self._passes, 1)
        if not packet:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if len(passed) != 1:
            _close(passed)
            raise OSError(errno.EPROTO, "it says what no helper does")
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, passed[0])

    def _hang_up(self) -> None:
        if self._passes is not None:
            self._passes.close()
            self._passes = None

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE_PAIRS:
                self._idle.append(connection)
                return
        connection.close()

    def _silent(self) -> OSError:
        self._silent_until = time.monotonic() + RETRY_SECONDS
        return self._unavailable(f"no answer within {TIMEOUT:g} s")

    def _unavailable(self, why: str) -> OSError:
        """Not any of the errors that say something about what was asked for."""
        return OSError(errno.ENOTCONN, f"the helper of gpunode does not answer: {why}", self.path)


def _is_of_tenant(verb: str, *arguments: str) -> bool:
    return verb in TENANT_VERBS or (verb == "text" and arguments[0].startswith("/proc/"))


def _wait(connection: socket.socket, until: float) -> None:
    """Have the next call wait until then on the monotonic clock. Raises ``TimeoutError``."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(None if math.isinf(left) else left)


def _received(connection: socket.socket, until: float, passes: int) -> tuple[int, bytes, list[int]]:
    """An answer. Raises ``OSError`` if the helper ends in between, or says what none does.

    One that somebody has taken over may say anything, and may answer in place of the others.
    """
    packet, passed = _taken(connection, HEAD.size + PACKET)
    try:
        if not packet:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        number, length = HEAD.unpack_from(packet.ljust(HEAD.size, b"\xff"))
        if length > MAX_ANSWER_BYTES or len(passed) != (0 if number else passes):
            raise OSError(errno.EPROTO, "it says what no helper does")
        content = bytearray(packet[HEAD.size :])
        while len(content) < length:
            _wait(connection, until)
            if not (packet := connection.recv(PACKET)):
                raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            content += packet
    except OSError:
        _close(passed)
        raise
    return number, bytes(content), passed


def _taken(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """A packet, and the descriptors in it, which no program inherits.

    ``socket.recv_fds`` does not pass its flags on.
    """
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * DESCRIPTOR.size)
    packet, messages, _, _ = connection.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    passed = b"".join(
        data[: len(data) - len(data) % DESCRIPTOR.size]
        for level, kind, data in messages
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    )
    return packet, [one for (one,) in DESCRIPTOR.iter_unpack(passed)]


def _close(passed: list[int]) -> None:
    for one in passed:
        os.close(one)


class PrivilegedReads:
    """Reads by itself what this process may read, and through the helpers what it may not.

    ``folder`` has the sockets of the helpers that there are; empty for none. Everything raises
    ``OSError``.
    """

    def __init__(self, rootfs: str, folder: str = "") -> None:
        self.rootfs = rootfs
        self._folder = folder
        self._helpers: dict[str, Helper] = {}

    def read(self, verb: str, *arguments: str) -> bytes:
        """What the function of this name in ``gpunode.helper.files`` returns."""
        try:
            return DIRECT_READS[verb](self.rootfs, *arguments)
        except PermissionError as error:
            return self._helper("files", error).ask(verb, *arguments)[0]

    def names(self, path: str) -> bytes:
        """The names in a folder, which may be mounted only where a helper is."""
        try:
            return self.read("names", path)
        except FileNotFoundError as error:
            return self._helper("files", error).ask("names", path)[0]

    def wait_channel(self, path: str) -> bytes:
        """The function of the kernel in which a process waits; who may not know it reads 0."""
        found = DIRECT_READS["text"](self.rootfs, path)
        if found != b"0" or not self._is_there("files"):
            return found
        return self._helpers["files"].ask("text", path)[0]

    def python(self, pid: str) -> bytes:
        """What py-spy says of the threads of a process."""
        try:
            return stacks.python(self.rootfs, pid)
        except PermissionError as error:
            return self._helper("stacks", error).ask("python", pid)[0]

    def kernel_log(self, path: str) -> int:
        """A descriptor of a log, of the kernel or in a file."""
        try:
            return opened_log(path)
        except PermissionError as error:
            if not path.endswith("/dev/kmsg"):
                raise
            return self._helper("files", error).ask("kernel_log", passes=1)[1][0]

    def kubelet(self, path: str) -> socket.socket:
        """A connection to the kubelet at a socket, which may be mounted only where a helper is."""
        try:
            os.stat(path)  # says what is missing, also of a path that is too long for a socket
            return sockets.kubelet(path, KUBELET_WAIT)
        except (PermissionError, FileNotFoundError) as error:
            passed = self._helper("sockets", error).ask("kubelet", passes=1)[1]
            return socket.socket(fileno=passed[0])

    def client(self, path: Path) -> socket.socket:
        """A socket for datagrams from any user, in a folder that may be root's."""
        try:
            return sockets.bound(path)
        except OSError:
            if os.access(path.parent, os.W_OK) or not self._is_there("sockets"):
                raise
            passed = self._helpers["sockets"].ask("client", passes=1)[1]
            return socket.socket(fileno=passed[0])

    def ask(self, pid: str, address: str, request: str) -> bytes:
        """What the server of a process answers in the network of that.

        Changes the network namespace of the calling thread.
        """
        try:
            return tcp.ask_in(self.rootfs, pid, address, request)
        except PermissionError as error:
            return self._helper("network", error).ask("ask", pid, address, request)[0]

    def cost(self) -> dict[str, float]:
        """The CPU seconds of each helper that there has been. Raises where one does not answer."""
        there = [name for name in HELPERS if self._is_there(name)]
        return {name: float(self._helpers[name].ask("cost")[0]) for name in there}

    def _is_there(self, name: str) -> bool:
        """Whether there has been such a helper; where there was, it is missed when it ends.

        Raises ``OSError`` where the folder may not be looked into.
        """
        if name not in self._helpers and self._folder:
            # Under systemd, each has a folder of its own, which goes when it ends.
            for path in (f"{self._folder}/{name}.sock", f"{self._folder}/{name}/{name}.sock"):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.stat(path)
                    self._helpers[name] = Helper(path)
        return name in self._helpers

    def _helper(self, name: str, error: OSError) -> Helper:
        """A helper. Raises the error where there is none."""
        if not self._is_there(name):
            raise error
        return self._helpers[name]
