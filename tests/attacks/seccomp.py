"""Runs a program under a seccomp profile, as container runtimes do: ``seccomp.py FILE COMMAND``.

``--allow=NAME,NAME`` before the command adds system calls.

https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
from collections.abc import Collection
from pathlib import Path

NUMBER = re.compile(r"^#define __NR_(\w+)\s+(\d+)$", re.MULTILINE)
NUMBERS = Path(f"/usr/include/{os.uname().machine}-linux-gnu/asm/unistd_64.h")
"""Where the system calls of this machine have their numbers (linux-libc-dev)."""

SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
"""BPF: load a word of the call's description, compare it, and return what becomes of the call."""


def program(profile: Path, more: Collection[str] = ()) -> bytes:
    """The filter: what the profile names and ``more`` are allowed, all else fails with EPERM."""
    allowed = {
        name for rule in json.loads(profile.read_text())["syscalls"] for name in rule["names"]
    }.union(more)
    numbers = [int(n) for name, n in NUMBER.findall(NUMBERS.read_text()) if name in allowed]
    steps = [(LOAD, 0, 0, 0)]
    for number in numbers:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, (RETURN, 0, 0, REFUSE)])


def confine(profile: Path, more: Collection[str] = ()) -> None:
    """Put this process under the profile for good."""
    filter_ = program(profile, more)
    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    header = struct.pack("@HP", len(filter_) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((SET_NO_NEW_PRIVS, 1, 0, 0, 0), (SET_SECCOMP, FILTER, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    file, *command = sys.argv[1:]
    _, found, names = command[0].partition("--allow=")
    command = command[1:] if found else command
    confine(Path(file), names.split(","))
    os.execvp(command[0], command)
