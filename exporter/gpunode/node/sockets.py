"""The sockets of processes, and which of them wait for connections.

https://docs.kernel.org/networking/proc_net_tcp.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

LISTEN = "0A"
"""The state of a socket that waits for connections, as in include/net/tcp_states.h."""

DESCRIPTORS = 1 << 14
"""The most descriptors of a process to look at."""

TABLE = 1 << 18
"""The most bytes of a table to read, 1,700 sockets; those that wait come first."""


def listens(process: str) -> bool:
    """Whether a process, given by its folder in /proc, waits for TCP connections.

    Raises ``OSError``, also without the right to see its descriptors.
    """
    waiting = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _table(process, table)}
    if not waiting:
        return False
    return any(target in waiting for target in descriptors(process))


def descriptors(process: str) -> Iterator[str]:
    """What the descriptors of a process refer to, such as ``socket:[INODE]``.

    Raises ``OSError`` if the process has ended, or without the right to see them.
    """
    with os.scandir(f"{process}/fd") as entries:
        for entry in islice(entries, DESCRIPTORS):
            try:
                yield os.readlink(entry.path)
            except OSError:  # it has been closed
                continue


def _table(process: str, table: str) -> set[str]:
    try:
        with open(f"{process}/net/{table}", encoding="ascii") as file:
            return listening(file.read(TABLE))
    except FileNotFoundError:
        if table == "tcp":  # the process has ended
            raise
        return set()  # without IPv6


def listening(text: str) -> set[str]:
    """The inodes of the sockets in a table that wait for connections."""
    rows = (line.split() for line in text.splitlines()[1:])
    return {row[9] for row in rows if len(row) > 9 and row[3] == LISTEN}
