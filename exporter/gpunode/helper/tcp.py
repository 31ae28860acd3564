"""Asks a server of one process over TCP, also in another network namespace, such as a pod's.

Any process may listen where another says that it does, and with SO_REUSEPORT even next to it. So
the kernel says who would answer, before a byte is sent, and who has accepted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice

from gpunode.helper import sock_diag
from gpunode.helper.capability import elevate, libc
from gpunode.helper.confine import Checks, Work
from gpunode.helper.inside import content, open_file, process

RAS = "CLIENT PROTOCOL 2\nTIMEOUT 3\nSET FORMAT json\nVERBOSE STATUS\n"
"""What is asked of NCCL's RAS service."""


def page(path: str) -> str:
    """The request for a page of metrics, of HTTP/1.0, to which no server answers in pieces."""
    accept = "Accept: text/plain;version=0.0.4"
    return f"GET {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: gpunode\r\n{accept}\r\n\r\n"


PATHS = "/metrics", "/v1/metrics", "/prometheus/metrics"
"""Where a page of metrics may be: in most engines; in NIM; in TensorRT-LLM and some that mount an
application. Some have it only with a slash at the end.
https://docs.nvidia.com/nim/large-language-models/reference/api-reference/get-metrics"""

REQUESTS = {RAS, *map(page, PATHS), *(page(f"{path}/") for path in PATHS)}
"""All that is asked in the network of another."""

DEADLINE = 8.0
"""Seconds allowed for the whole answer, however slowly the server accepts and sends."""

MAX_ANSWER_BYTES = 8 << 20
"""Size limit of an answer in bytes, each run of spaces counted as one: one of NCCL RAS with 16,384
ranks has 8.4 MiB, and without indentation 5.2 MiB."""

INDENTED = 4
"""The most bytes to receive for each that is kept."""

NEAR_PORTS = range(32768, 60999)
"""Ports for our end of a connection: Linux's default for net.ipv4.ip_local_port_range."""

MAX_PORTS = 256
"""Ports to try. Of several servers at one address, such as the ranks of a job, the kernel chooses
by both ends of a connection."""

MAX_PAUSE = 0.05
"""Seconds between two looks whether the server has accepted."""

ACCEPT_TIMEOUT = 1.0
"""Seconds that a process may take within accept(2)."""

LISTEN = 10
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of sched.h."""

SECONDS = struct.Struct("@ll")
"""``struct timeval``."""

FDINFO = re.compile(r"^mnt_id:\t(\d+)\nino:\t(\d+)$", re.MULTILINE)
"""Of /proc/PID/fdinfo, from Linux 5.14 on: the filesystem of a descriptor, and its inode. Unlike
/proc/PID/fd it takes no right to the files of others."""

MAX_DESCRIPTORS = 1 << 14
"""The most descriptors of a process to look at."""

USER = re.compile(r"^Uid:\t\d+\t(\d+)\t", re.MULTILINE)
"""The effective user of a process, whom its sockets have."""

SPACES = re.compile(rb"  +")
PAIR = struct.Struct("!HH16s16s")
ANY_INTERFACE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
DIAG_TAIL = struct.Struct("=2B2x60xII")
"""The end of ``struct inet_diag_msg``: family, state, … uid and inode.
https://github.com/torvalds/linux/blob/master/include/uapi/linux/inet_diag.h
"""


@dataclass(frozen=True, slots=True)
class ServerSocket:
    """A server's end of a connection, as the kernel knows it; ``inode`` is 0 until it accepts."""

    listens: bool
    user: int
    inode: int


LOCAL_ADDRESSES = {**dict.fromkeys(("", "localhost", "0.0.0.0"), "127.0.0.1"), "::": "::1"}  # noqa: S104
"""The address at which to reach a server that listens there."""


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
        host = LOCAL_ADDRESSES.get(host.strip("[]"), host.strip("[]"))
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
    """A process that may serve, by its folder in /proc.

    ``socket_inodes`` returns the inodes of its sockets; None without the right to see them. Raises
    ``OSError`` if the process has ended.
    """

    folder: str
    held: Callable[[], set[str] | None]

    def has(self, server: ServerSocket) -> bool:
        """Whether a server's socket belongs to this process, or else to its user."""
        held = self.held()
        if held is not None:
            return str(server.inode) in held
        return str(server.user) in USER.findall(content(f"{self.folder}/status"))[:1]


def socket_inodes(folder: str) -> set[str] | None:
    """The inodes of a process's sockets; None without the right to see them.

    Raises ``OSError`` if the process has ended.
    """
    ours, its = socket.socketpair()
    with ours, its:
        sockets, _ = _descriptor_target(f"/proc/thread-self/fdinfo/{ours.fileno()}")
    if not sockets:
        return None
    try:
        with elevate(), os.scandir(f"{folder}/fdinfo") as entries:
            found = [_descriptor_target(entry.path) for entry in islice(entries, MAX_DESCRIPTORS)]
    except PermissionError:
        return None
    return {inode for filesystem, inode in found if filesystem == sockets}


def _descriptor_target(path: str) -> tuple[str, str]:
    """The filesystem of a descriptor, and its inode; empty if it has been closed."""
    try:
        found = FDINFO.search(content(path))
    except FileNotFoundError:
        found = None
    return (found[1], found[2]) if found else ("", "")


def ask_in(rootfs: str, pid: str, address: str, request: str) -> bytes:
    """What the server of a process answers in its network, in which the calling thread stays.

    Only what is in ``REQUESTS`` is asked. Raises ``OSError``, as ``ask`` does.
    """
    if request not in REQUESTS:
        raise PermissionError(errno.EPERM, "not a request that may be made", address)
    folder = process(rootfs, pid)
    with elevate(), open_file(f"{folder}/ns/net", os.O_RDONLY) as file:
        if libc.setns(file, NEW_NETWORK):
            number = ctypes.get_errno()
            why = f"{os.strerror(number)}: entering requires CAP_SYS_ADMIN"
            raise OSError(number, why, address)
    return ask(address, request, TcpProcess(folder, partial(socket_inodes, folder)))


def ask(address: str, request: str, process: TcpProcess) -> bytes:
    """Send a request to the server of a process and read until it closes. Raises ``OSError``.

    ``address`` is HOST:PORT in the network namespace of this thread, HOST an IP address or
    ``localhost``. Raises ``ConnectionRefusedError``, and sends nothing, unless that process serves
    there; without the right to see its descriptors, a server of the same user counts as its own. Of
    several spaces in the answer all but one are left out.
    """
    deadline = time.monotonic() + DEADLINE
    far = Address.parse(address)
    with socket.socket(far.family, socket.SOCK_STREAM) as connection, sock_diag.connect() as kernel:
        try:
            near = _bind(connection, kernel, far, process)
            _wait(connection, deadline)
            connection.connect((far.host, far.port))
            _wait_until_accepted(kernel, far, near, process, deadline)
            connection.sendmsg([request.encode()])
            return _received(connection, deadline)
        except (BlockingIOError, TimeoutError) as error:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), address) from error


def _wait(connection: socket.socket, deadline: float) -> None:
    """Have the next call wait until then, by options: a helper may not make the call for others."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    whole, rest = divmod(int(left * 1e6) + 1, 1_000_000)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, SECONDS.pack(whole, rest))


def _bind(
    connection: socket.socket, kernel: socket.socket, far: Address, process: TcpProcess
) -> Address:
    """Bind our end such that the kernel gives the connection to the process."""
    process = TcpProcess(process.folder, cache(process.held))
    for _ in range(MAX_PORTS):
        port = NEAR_PORTS[int.from_bytes(os.urandom(4), "big") % len(NEAR_PORTS)]
        near = Address(far.family, far.host, port)
        server = server_of(kernel, far, near)
        if server is None:
            break
        if not process.has(server):
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
        server = server_of(kernel, far, near)
        if server is None or server.listens:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), str(far))
        if server.inode:
            # The kernel names the socket in accept(2), a moment before there is a descriptor.
            deadline = min(deadline, time.monotonic() + ACCEPT_TIMEOUT)
            if process.has(server):
                return
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)


def server_of(kernel: socket.socket, far: Address, near: Address) -> ServerSocket | None:
    """Who has our connection, or would be given it; None if nobody listens there."""
    ends = PAIR.pack(far.port, near.port, far.packed(), near.packed()) + ANY_INTERFACE_AND_COOKIE
    kernel.sendmsg([sock_diag.question(far.family, which=ends)])
    answer = kernel.recv(1 << 13)
    try:
        if sock_diag.HEAD.unpack_from(answer)[1] == sock_diag.NLMSG_ERROR:
            number = abs(struct.unpack_from("=i", answer, sock_diag.HEAD.size)[0])
            if number == errno.ENOENT:
                return None
            raise OSError(number, f"sock_diag: {os.strerror(number)}", str(far))
        _, state, user, inode = DIAG_TAIL.unpack_from(answer, sock_diag.HEAD.size)
    except (struct.error, OverflowError) as error:
        why = f"sock_diag: an answer of {len(answer)} bytes"
        raise OSError(errno.EPROTO, why, str(far)) from error
    return ServerSocket(state == LISTEN, user, inode)


def _received(connection: socket.socket, deadline: float) -> bytes:
    answer, size = bytearray(), 0
    while True:
        _wait(connection, deadline)
        part = connection.recv(1 << 16)
        answer += SPACES.sub(b" ", part)
        size += len(part)
        if not part:
            return bytes(answer)
        if len(answer) > MAX_ANSWER_BYTES or size > INDENTED * MAX_ANSWER_BYTES:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))


CONNECTS: dict[str, Checks] = {
    "socket": (
        *(
            ((0, 0xFFFFFFFF, family), (1, 0xF, socket.SOCK_STREAM), (2, 0xFFFFFFFF, 0))
            for family in (socket.AF_INET, socket.AF_INET6)
        ),
        ((0, 0xFFFFFFFF, socket.AF_NETLINK), (2, 0xFFFFFFFF, sock_diag.NETLINK_SOCK_DIAG)),
    ),
    "setsockopt": tuple(
        ((1, 0xFFFFFFFF, socket.SOL_SOCKET), (2, 0xFFFFFFFF, option))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
    ),
}
"""TCP, questions to the kernel about sockets, and how long to wait."""


def work(rootfs: str) -> Work:
    """What the helper ``network`` does, on the node whose root is at ``rootfs``."""
    calls = ("bind", "connect", "setns", "setsockopt", "socket")
    return Work({"ask": partial(ask_in, rootfs)}, ("SYS_ADMIN", "SYS_PTRACE"), calls, CONNECTS)
