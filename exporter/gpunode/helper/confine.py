"""Takes from this process, for good, every system call that its work does not take.

The kernel compares numbers and plain arguments, and looks into no memory. So there is no
``openat2``, whose flags lie in memory; ``openat`` opens for reading only, and nothing can be
written to but sockets.
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpunode.helper.capability import libc

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Of each architecture: its number in include/uapi/linux/audit.h, and its column below."""

NUMBERS = """
accept4 288 242, brk 12 214, capget 125 90, capset 126 91, clock_gettime 228 113,
clock_nanosleep 230 115, clone 56 220, close 3 57, exit 60 93, exit_group 231 94, fstat 5 80,
fstatfs 138 44, futex 202 98, getdents64 217 61, getegid 108 177, geteuid 107 175, getgid 104 176,
getpid 39 172, getrandom 318 278, getsockopt 55 209, gettid 186 178, getuid 102 174, lseek 8 62,
madvise 28 233, mmap 9 222, mprotect 10 226, mremap 25 216, munmap 11 215, newfstatat 262 79,
openat 257 56, pread64 17 67, read 0 63, readlink 89 -1, readlinkat 267 78, recvfrom 45 207,
restart_syscall 219 128, rseq 334 293, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, sched_yield 24 124, sendmsg 46 211, set_robust_list 273 99, setfsgid 123 152,
setfsuid 122 151, setgroups 116 159, sigaltstack 131 132, socketpair 53 199, statfs 137 43,
bind 49 200, connect 42 203, setns 308 268, setsockopt 54 208, socket 41 198, unlink 87 -1,
unlinkat 263 35,
arch_prctl 158 -1, dup2 33 -1, dup3 292 24, execve 59 221, fcntl 72 25, kill 62 129, open 2 -1,
pipe2 293 59, poll 7 -1, ppoll 271 73, process_vm_readv 310 270, set_tid_address 218 96,
stat 4 -1, wait4 61 260, write 1 64
"""
"""System calls and their numbers; those of the last lines are for work that names them."""

COMMON_CALLS = NUMBERS.partition("\nbind")[0]
"""The calls that every helper makes."""

WRITES = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | 0o20000000  # __O_TMPFILE
NAMESPACES, THREAD, NEW_NETWORK = 0x7E020000, 0x10000, 0x40000000
EXECUTE, WRITE, SHARING, PRIVATE = 0x4, 0x2, 0x3, 0x2

Check = tuple[int, int, int]
"""An argument, the bits of it to look at, and what they have to be."""

Checks = tuple[tuple[Check, ...], ...]

CHECKS: dict[str, Checks] = {
    "open": (((1, WRITES, os.O_RDONLY),),),
    "openat": (((2, WRITES, os.O_RDONLY),),),
    "mmap": (((2, EXECUTE, 0), (3, SHARING, PRIVATE)),),
    "mprotect": (((2, EXECUTE, 0),),),
    "clone": (((0, NAMESPACES | THREAD, THREAD),),),
    "sendmsg": (((2, 0xFFFFFFFF, 0),),),  # MSG_FASTOPEN would connect
    "setsockopt": (((1, 0xFFFFFFFF, socket.SOL_SOCKET), (2, 0xFFFFFFFF, socket.SO_PASSCRED)),),
    "setgroups": (((0, 0xFFFFFFFF, 0),),),
    "setns": (((1, 0xFFFFFFFF, NEW_NETWORK),),),
    "unlinkat": (((2, 0xFFFFFFFF, 0),),),
}
"""Of a call with more than one list of checks, one list has to hold."""

UNIX_ONLY: Checks = (((0, 0xFFFFFFFF, socket.AF_UNIX),),)

Verb = Callable[..., bytes | list[int]]
"""Returns what was read, or descriptors to pass on. Raises ``OSError``."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a helper does, the capabilities that it keeps if it has them, and its system calls."""

    verbs: dict[str, Verb]
    capabilities: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    checks: Mapping[str, Checks] = field(default_factory=lambda: {"socket": UNIX_ONLY})
    """Of arguments, beside those of every helper."""

    prepare: Callable[[], None] = lambda: None
    """Is done before its system calls are taken from it. May raise ``OSError``."""


LOAD, AND, EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
CLONE3, EPERM, ENOSYS = 435, 1, 38
SET_DUMPABLE, SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 4, 38, 22, 2


def program(machine: str, special: Iterable[str], checks_of_work: Mapping[str, Checks]) -> bytes:
    """The filter in BPF. Raises ``KeyError`` for an architecture that it does not know."""
    audit, column = MACHINES[machine]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), (RETURN, 0, 0, KILL)]
    # Its flags lie in memory; the C library then takes clone.
    steps += [(LOAD, 0, 0, 0), (EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, FAIL | ENOSYS)]
    checked = {**CHECKS, **checks_of_work}
    known = COMMON_CALLS.count(",")
    for at, (name, *numbers) in enumerate(entry.split() for entry in NUMBERS.split(",")):
        number = int(numbers[column])
        if number < 0 or (at >= known and name not in special):
            continue
        for checks in checked.get(name, ((),)):
            left = 3 * len(checks) + 1
            steps += [(LOAD, 0, 0, 0), (EQUAL, 0, left, number)]
            for argument, mask, value in checks:
                left -= 3
                steps += [(LOAD, 0, 0, 16 + 8 * argument), (AND, 0, 0, mask)]
                steps += [(EQUAL, 0, left, value)]
            steps.append((RETURN, 0, 0, ALLOW))
    steps.append((RETURN, 0, 0, FAIL | EPERM))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def confine(work: Work) -> None:
    """Keep the calls above, and no way to more; nobody may look into this process either.

    Raises ``OSError``, also on an architecture that the list does not know.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(ENOSYS, f"no list of system calls for {machine}")
    filter_ = program(machine, work.calls, work.checks)
    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    header = struct.pack("@HP", len(filter_) // 8, ctypes.addressof(buffer))
    for call in ((SET_DUMPABLE, 0), (SET_NO_NEW_PRIVS, 1), (SET_SECCOMP, FILTER, header)):
        if libc.prctl(*call, *([0] * (5 - len(call)))):
            raise OSError(ctypes.get_errno(), "prctl")
