"""The sockets of processes: which of them wait for connections, and which are communicators'.

https://docs.kernel.org/networking/proc_net_tcp.html
https://man7.org/linux/man-pages/man5/proc_pid_net.5.html
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice, takewhile

LISTEN = "0A"
"""The state of a socket that waits for connections, as in include/net/tcp_states.h."""

ROWS = 2000
"""The most rows of a table to look at."""

UNIX_ROWS = 1 << 14
"""The most rows of the table of Unix sockets to look at; a node of a hundred pods has 5,000."""

COMMUNICATOR = re.compile(r"[@/]tmp/nccl-socket-\d+-[0-9a-f]+")
"""The name of the socket by which a communicator of NCCL passes handles of memory, from version
2.20 on and whatever program uses it; @ stands for the zero byte that makes a name abstract, in
place of the slash. https://github.com/NVIDIA/nccl/blob/v2.28.3-1/src/misc/ipcsocket.cc"""

AT_ONCE = 600
"""Bytes to read at a time, four rows: those that wait come first, and to find the others the kernel
walks its table of all connections, which takes 5 ms where it has room for 262,144."""


def listens(process: str, held: Callable[[], set[str]]) -> bool:
    """Whether a process, given by its folder in /proc, waits for TCP connections.

    ``held`` returns the inodes of its sockets. Raises ``OSError``, also as that does.
    """
    waiting = {inode for table in ("tcp", "tcp6") for inode in _table(process, table)}
    return bool(waiting) and not waiting.isdisjoint(held())


def listening_at(process: str, held: Callable[[], set[str]]) -> list[str]:
    """The addresses, as HOST:PORT, at which a process waits for TCP connections.

    ``held`` returns the inodes of its sockets. Raises ``OSError``, also as that does.
    """
    waiting = {
        inode: address
        for table in ("tcp", "tcp6")
        for inode, address in _table(process, table).items()
    }
    if not waiting:
        return []
    mine = held()
    found = (address for inode, address in waiting.items() if inode in mine and address)
    return list(dict.fromkeys(found))


def communicates(process: str, held: Callable[[], set[str]]) -> bool:
    """Whether a process, given by its folder in /proc, has the socket of a communicator of NCCL.

    ``held`` returns the inodes of its sockets. Raises ``OSError``, also as that does.
    """
    with open(f"{process}/net/unix", encoding="utf-8", errors="replace", newline="\n") as file:
        named = of_communicators(file)
    return bool(named) and not named.isdisjoint(held())


def _table(process: str, table: str) -> dict[str, str]:
    try:
        with open(f"{process}/net/{table}", "rb", buffering=AT_ONCE) as file:
            return listening(line.decode("ascii", "replace") for line in file)
    except FileNotFoundError:
        if table == "tcp":  # the process has ended
            raise
        return {}  # without IPv6


def of_communicators(lines: Iterable[str]) -> set[str]:
    """The inodes of the sockets in a table of Unix sockets whose names are communicators'."""
    named = (line for line in islice(lines, 1, UNIX_ROWS) if "nccl" in line)
    rows = (line.split() for line in named)
    return {row[6] for row in rows if len(row) > 7 and COMMUNICATOR.match(row[7])}


def listening(lines: Iterable[str]) -> dict[str, str]:
    """The sockets in a table that wait for connections, which are its first rows.

    By inode, the address as HOST:PORT; empty if it cannot be read.
    """
    rows = (line.split() for line in islice(lines, 1, ROWS))
    waiting = takewhile(lambda row: len(row) > 9 and row[3] == LISTEN, rows)
    return {row[9]: _address(row[1]) for row in waiting}


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
