"""Capabilities that are only held while they are used.

Linux keeps the capabilities of each thread apart (capabilities(7)). A daemon that has some takes
those that look past the permissions of files and processes from all of its threads
(``cli/rights.py``); ``elevate`` gives them to one thread while it reads one thing. What parses the
data of tenants, follows their paths or answers over HTTP holds none of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

NUMBERS = {"DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "SYS_PTRACE": 19}
"""Those that are lowered, as in include/uapi/linux/capability.h."""

ALL = {**NUMBERS, "SETGID": 6, "SETUID": 7, "SYS_ADMIN": 21, "SYSLOG": 34}
"""All that the daemon uses; it keeps the others."""

PROCESS_CAPABILITIES = ("DAC_READ_SEARCH", "SYS_PTRACE")
"""What it takes to read the environment, I/O, descriptors and root of another user's process: its
files in /proc belong to its user, and the kernel also asks whether it may be traced."""

VERSION_3 = 0x20080522
"""The layout of the structures: two words for each set."""

libc = ctypes.CDLL(None, use_errno=True)


class Header(ctypes.Structure):
    """``cap_user_header_t`` of include/uapi/linux/capability.h; process 0 is this thread."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class Word(ctypes.Structure):
    """``cap_user_data_t``: 32 capabilities of each set."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def mask(names: Iterable[str]) -> int:
    """The bits of capabilities in the first word of a set."""
    return sum(1 << NUMBERS[name] for name in names)


def sets() -> tuple[Header, ctypes.Array[Word]]:
    """The capabilities of this thread."""
    header, words = Header(VERSION_3, 0), (Word * 2)()
    call(libc.capget, header, words)
    return header, words


def call(function: ctypes._NamedFuncPointer, header: Header, words: ctypes.Array[Word]) -> None:
    """Raises ``OSError`` where the kernel refuses."""
    if function(ctypes.byref(header), words):
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities: {os.strerror(number)}")


def keep(names: Iterable[str]) -> None:
    """Give up all other capabilities for good, and hold none of these yet. Raises ``OSError``."""
    kept = sum(1 << ALL[name] for name in names)
    header, words = sets()
    words[0].permitted &= kept & 0xFFFFFFFF
    words[1].permitted &= kept >> 32
    words[0].effective &= words[0].permitted & ~mask(NUMBERS)
    words[1].effective &= words[1].permitted
    words[0].inheritable = words[1].inheritable = 0
    call(libc.capset, header, words)


@contextmanager
def elevate(names: Iterable[str] = PROCESS_CAPABILITIES) -> Iterator[None]:
    """Hold capabilities in this thread, as far as it is permitted to. Raises ``OSError``."""
    header, words = sets()
    before = words[0].effective
    words[0].effective |= mask(names) & words[0].permitted
    if words[0].effective == before:
        yield
        return
    call(libc.capset, header, words)
    words[0].effective = before
    try:
        yield
    finally:
        call(libc.capset, header, words)
