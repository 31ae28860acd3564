"""Runs a program with the rights of one in a container: ``rights.py UID GID KEPT COMMAND``.

``KEPT`` are the numbers of the capabilities that are left, with commas between them. Root has them;
another user has none, as Kubernetes makes no capability ambient.
https://man7.org/linux/man-pages/man7/capabilities.7.html
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

LAST = Path("/proc/sys/kernel/cap_last_cap")

DROP = 24
"""prctl's PR_CAPBSET_DROP."""


def confine(user: int, group: int, kept: set[int]) -> None:
    """Be that user for good, whose programs get no other capabilities."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in set(range(int(LAST.read_text()) + 1)) - kept:
        if libc.prctl(DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"capability {capability}")
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


if __name__ == "__main__":
    numbers = {int(number) for number in sys.argv[3].split(",") if number}
    confine(int(sys.argv[1]), int(sys.argv[2]), numbers)
    os.execvp(sys.argv[4], sys.argv[4:])
