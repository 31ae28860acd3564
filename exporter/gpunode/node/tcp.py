"""Asks a server of one process over TCP, also in another network namespace, such as a pod's.

Any process may listen where another says that it does, and with SO_REUSEPORT even next to it. So
the kernel says who would answer, before a byte is sent, and who has accepted.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import struct
import time
from dataclasses import dataclass

from gpunode.helper.sockets import in_this_network
from gpunode.node import sock_diag
from gpunode.node.inside import Inside
from gpunode.node.kernel import parse_status

DEADLINE = 8.0
"""Seconds allowed for the whole answer, however slowly the server accepts and sends."""

LARGEST_ANSWER = 8 << 20
"""Size limit of an answer in bytes, each run of spaces counted as one: one of NCCL RAS with 16,384
ranks has 8.4 MiB, and without indentation 5.2 MiB."""

INDENTED = 4
"""The most bytes to receive for each that is kept."""

NEAR_PORTS = range(32768, 60999)
"""Ports for our end of a connection: Linux's default for net.ipv4.ip_local_port_range."""

TRIES = 256
"""Ports to try. Of several servers at one address, such as the ranks of a job, the kernel chooses
by both ends of a connection."""

LONGEST_PAUSE = 0.05
"""Seconds between two looks whether the server has accepted."""

LONGEST_ACCEPT = 1.0
"""Seconds that a process may take within accept(2)."""

LISTEN = 10
SPACES = re.compile(rb"  +")
ENDS = struct.Struct("!HH16s16s")
ANY_INTERFACE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
FOUND = struct.Struct("=2B2x60xII")
"""The end of ``struct inet_diag_msg``: family, state, … uid and inode.
https://github.com/torvalds/linux/blob/master/include/uapi/linux/inet_diag.h
"""


@dataclass(frozen=True, slots=True)
class ServerSocket:
    """A server's end of a connection, as the kernel knows it; ``inode`` is 0 until it accepts."""

    listens: bool
    user: int
    inode: int


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address and port."""

    family: int
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse HOST:PORT without asking a name server. Raises ``OSError``."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        host = {"": "127.0.0.1", "localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(  # noqa: S104 where a server listens, not we
            host, host
        )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.inet_pton(family, host)
            number = int(port)
        except (OSError, ValueError) as error:
            raise OSError(errno.EINVAL, f"not an IP address and port: {text[:64]!r}") from error
        if not 0 < number < 1 << 16:
            raise OSError(errno.EINVAL, f"no such port: {text[:64]!r}")
        return cls(family, host, number)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def packed(self) -> bytes:
        """The IP address in binary, as the kernel takes it."""
        return socket.inet_pton(self.family, self.host).ljust(16, b"\0")


@dataclass(frozen=True, slots=True)
class TcpProcess:
    """A process that may serve."""

    pid: int
    inside: Inside

    @property
    def folder(self) -> str:
        return f"{self.inside.rootfs}/proc/{self.pid}"

    def held(self) -> set[str] | None:
        """The inodes of its sockets; None without the right to see them.

        Raises ``OSError`` if the process has ended.
        """
        try:
            return self.inside.sockets(self.pid)
        except PermissionError:
            return None


def ask(address: str, request: str, pid: int, inside: Inside) -> str:
    """Send a request to the server of a process and read until it closes. Raises ``OSError``.

    ``address`` is HOST:PORT in the network namespace of the process, HOST an IP address or
    ``localhost``. Raises ``ConnectionRefusedError``, and sends nothing, unless that process serves
    there; without the right to see its descriptors, a server of the same user counts as its own. Of
    the answer, bytes that are not ASCII are left out, and of several spaces all but one.
    """
    deadline = time.monotonic() + DEADLINE
    far = Address.parse(address)
    process = TcpProcess(pid, inside)
    connection, kernel = _sockets_in(process, far.family)
    with connection, kernel:
        near = _bind(connection, kernel, far, process)
        try:
            connection.settimeout(DEADLINE)
            connection.connect((far.host, far.port))
            _wait_until_accepted(kernel, far, near, process, deadline)
            connection.sendall(request.encode())
            return _received(connection, deadline)
        except TimeoutError as error:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), address) from error


def _bind(
    connection: socket.socket, kernel: socket.socket, far: Address, process: TcpProcess
) -> Address:
    """Bind our end such that the kernel gives the connection to the process."""
    held = process.held()
    for _ in range(TRIES):
        near = Address(far.family, far.host, secrets.choice(NEAR_PORTS))
        server = _server(kernel, far, near)
        if server is None:
            break
        if not _has(process, held, server):
            continue
        try:
            connection.bind((near.host, near.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return near
    raise ConnectionRefusedError(errno.ECONNREFUSED, f"{process.folder} does not serve", str(far))


def _wait_until_accepted(
    kernel: socket.socket, far: Address, near: Address, process: TcpProcess, deadline: float
) -> None:
    """Wait until the process, and no other, holds the server's end of our connection."""
    pause = 0.0005
    while True:
        server = _server(kernel, far, near)
        if server is None or server.listens:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), str(far))
        if server.inode:
            # The kernel names the socket in accept(2), a moment before there is a descriptor.
            deadline = min(deadline, time.monotonic() + LONGEST_ACCEPT)
            if _has(process, process.held(), server):
                return
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _server(kernel: socket.socket, far: Address, near: Address) -> ServerSocket | None:
    """Who has our connection, or would be given it; None if nobody listens there."""
    ends = ENDS.pack(far.port, near.port, far.packed(), near.packed()) + ANY_INTERFACE_AND_COOKIE
    kernel.send(sock_diag.question(far.family, which=ends))
    answer = kernel.recv(1 << 13)
    try:
        if sock_diag.HEAD.unpack_from(answer)[1] == sock_diag.NLMSG_ERROR:
            number = abs(struct.unpack_from("=i", answer, sock_diag.HEAD.size)[0])
            if number == errno.ENOENT:
                return None
            raise OSError(number, f"sock_diag: {os.strerror(number)}", str(far))
        _, state, user, inode = FOUND.unpack_from(answer, sock_diag.HEAD.size)
    except (struct.error, OverflowError) as error:
        why = f"sock_diag: an answer of {len(answer)} bytes"
        raise OSError(errno.EPROTO, why, str(far)) from error
    return ServerSocket(state == LISTEN, user, inode)


def user_of(near: Address, far: Address) -> int | None:
    """The user whose socket is the near end of a connection in our network namespace.

    None if the kernel does not tell, as of a socket that its process has closed.
    """
    try:
        with sock_diag.opened() as kernel:
            found = _server(kernel, near, far)
    except OSError:
        return None
    return found.user if found is not None and found.inode else None


def _has(process: TcpProcess, held: set[str] | None, server: ServerSocket) -> bool:
    """Whether a server's socket belongs to a process, or else to its user."""
    if held is not None:
        return str(server.inode) in held
    with open(f"{process.folder}/status", encoding="utf-8", errors="replace", newline="\n") as file:
        users = parse_status(file.read()).get("Uid", [])
    return str(server.user) in users[1:2]  # the effective one, which its sockets have


def _received(connection: socket.socket, deadline: float) -> str:
    answer, size = bytearray(), 0
    while True:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(1 << 16)
        answer += SPACES.sub(b" ", part)
        size += len(part)
        if not part:
            return answer.decode("ascii", "ignore")
        if len(answer) > LARGEST_ANSWER or size > INDENTED * LARGEST_ANSWER:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        if time.monotonic() > deadline:
            raise TimeoutError


def _sockets_in(process: TcpProcess, family: int) -> tuple[socket.socket, socket.socket]:
    """Sockets in the network namespace of a process, for TCP and to ask the kernel about it."""
    try:
        namespace = process.inside.link(f"/proc/{process.pid}/ns/net")
        other = namespace != os.readlink("/proc/self/ns/net")
    except TimeoutError:
        raise
    except OSError:
        other = False  # a namespace that cannot be read cannot be entered either
    if not other:
        return in_this_network(family)
    return process.inside.in_network(process.pid, family)
