"""Open files of processes, against the limit of each: at the limit, the next open fails.

A worker of a DataLoader that cannot open its next shard ends its job (``Too many open files``).
https://man7.org/linux/man-pages/man2/getrlimit.2.html (RLIMIT_NOFILE)
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from gpunode.node.kernel import counter
from gpunode.node.node import Node

LOOKED_AT = 4
"""How many processes of a job have their limits read: those with the most open files."""

LIMIT_PREFIX = "Max open files"


def parse_open_files_limit(text: str) -> float | None:
    """The soft limit in /proc/PID/limits on open files; None for none. Raises ``ValueError``."""
    for line in text.split("\n"):
        if line.startswith(LIMIT_PREFIX):
            soft, *_ = line.removeprefix(LIMIT_PREFIX).split() or [""]
            return None if soft == "unlimited" else counter(soft)
    raise ValueError(f"/proc/PID/limits: {LIMIT_PREFIX} is missing")


def open_files_ratio(node: Node, pids: Iterable[str]) -> float | None:
    """The largest share of its limit that one of some processes has open; None if unknown."""
    opened = {}
    for pid in pids:
        try:
            opened[pid] = node.open_files(int(pid))
        except (OSError, ValueError):
            continue
    shares = []
    for pid in nlargest(LOOKED_AT, opened, key=opened.__getitem__):
        try:
            limit = parse_open_files_limit(node.read_text(f"/proc/{pid}/limits"))
        except (OSError, ValueError):
            continue
        if limit is not None and limit > 0:
            shares.append(opened[pid] / limit)
    return max(shares, default=None)
