"""The sockets of processes: which of them wait for connections, and which are communicators'.

https://docs.kernel.org/networking/proc_net_tcp.html
https://man7.org/linux/man-pages/man5/proc_pid_net.5.html
"""

from __future__ import annotations

import errno
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile

LISTEN = "0A"
"""The state of a socket that waits for connections, as in include/net/tcp_states.h."""

ROWS = 1 << 14
"""The most rows of a table to look at, in 40 ms of CPU; a node of a hundred pods has 5,000 Unix
sockets. The kernel mixes the sockets of all who share a network, in no order."""

COMMUNICATOR = re.compile(r"[@/]tmp/nccl-socket-\d+-[0-9a-f]+")
"""The name of the socket by which a communicator of NCCL passes handles of memory, from version
2.20 on and whatever program uses it; @ stands for the zero byte that makes a name abstract, in
place of the slash. https://github.com/NVIDIA/nccl/blob/v2.28.3-1/src/misc/ipcsocket.cc"""

READ_BYTES = 600
"""Bytes to read at a time, four rows: those that wait come first, and to find the others the kernel
walks its table of all connections, which takes 5 ms where it has room for 262,144."""


EPHEMERAL = 32768
"""Ports from which the kernel gives one to who asks for any: of a process on a GPU, those of
communicators, which before NCCL 2.17 take who connects for a rank. A server's is chosen by a
person. https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)"""

STORE = 29500
"""Where ranks of PyTorch meet by default.
https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py"""


def listens(process: str, held: Callable[[], set[str]]) -> bool:
    """Whether a process, given by its folder in /proc, waits for TCP connections as a server does.

    Not so at a port that the kernel gave it, nor at that of PyTorch's ranks.

    ``held`` returns the inodes of its sockets. Raises ``OSError``, also as that does, and with
    ``EFBIG`` if there are more than ``ROWS``.
    """
    ports = map(port_of, listening_at(process, held))
    return any(port < EPHEMERAL and port != STORE for port in ports)


def listening_at(process: str, held: Callable[[], set[str]]) -> list[str]:
    """The addresses, as HOST:PORT, at which a process waits for TCP connections.

    ``held`` returns the inodes of its sockets. Raises ``OSError``, as ``listens`` does.
    """
    return [address for address in dict.fromkeys(_waiting(process, held)) if address]


def port_of(address: str) -> int:
    """The port of HOST:PORT."""
    return int(address.rpartition(":")[2])


def communicates(process: str, held: Callable[[], set[str]]) -> bool:
    """Whether a process, given by its folder in /proc, has the socket of a communicator of NCCL.

    ``held`` returns the inodes of its sockets. Raises ``OSError``, as ``listens`` does.
    """
    mine = cache(held)
    with open(f"{process}/net/unix", encoding="utf-8", errors="replace", newline="\n") as file:
        return any(inode in mine() for inode in communicator_inodes(file))


def _waiting(process: str, held: Callable[[], set[str]]) -> list[str]:
    """The addresses of a process's own sockets that wait, in both tables."""
    mine = cache(held)
    return [*_table(process, "tcp", mine), *_table(process, "tcp6", mine)]


def _table(process: str, table: str, mine: Callable[[], set[str]]) -> list[str]:
    try:
        with open(f"{process}/net/{table}", "rb", buffering=READ_BYTES) as file:
            waiting = listening(line.decode("ascii", "replace") for line in file)
            return [address for inode, address in waiting if inode in mine()]
    except FileNotFoundError:
        if table == "tcp":  # the process has ended
            raise
        return []  # without IPv6


def communicator_inodes(lines: Iterable[str]) -> Iterator[str]:
    """The inodes of the sockets in a table of Unix sockets whose names are communicators'."""
    rows = (line.split() for line in _rows(lines) if "nccl" in line)
    return (row[6] for row in rows if len(row) > 7 and COMMUNICATOR.match(row[7]))


def listening(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The sockets in a table that wait for connections, which are its first rows.

    The inode of each, and its address as HOST:PORT; empty if it cannot be read.
    """
    rows = (line.split() for line in _rows(lines))
    waiting = takewhile(lambda row: len(row) > 9 and row[3] == LISTEN, rows)
    return ((row[9], _address(row[1])) for row in waiting)


def _rows(lines: Iterable[str]) -> Iterator[str]:
    """What follows the head of a table. Raises ``OSError`` at the first row beyond ``ROWS``."""
    for at, line in enumerate(lines):
        if at > ROWS:
            raise OSError(errno.EFBIG, f"there are more than {ROWS:,} sockets")
        if at:
            yield line


def _address(text: str) -> str:
    """An address of a table, whose words are in the byte order of the machine."""
    host, _, port = text.partition(":")
    with suppress(ValueError, struct.error):
        number, packed = int(port, 16), bytes.fromhex(host)
        words = struct.unpack(f"={len(packed) // 4}I", packed)
        family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
        name = socket.inet_ntop(family, struct.pack(f">{len(words)}I", *words))
        return f"{name}:{number}" if family == socket.AF_INET else f"[{name}]:{number}"
    return ""
