"""Processes of a tenant that the kernel keeps for ever, as a file server does not answer them.

- One maps a file. The kernel holds the lock of its memory: who reads its command line waits, too.
- One executes a program. It shares the memory of the first, as all do that posix_spawn starts, and
  waits for it, while the kernel holds the right to trace it: who reads its ``stat`` waits, too.
- One executes a program by itself, and waits as it closes a file.

https://github.com/torvalds/linux/blob/master/include/uapi/linux/fuse.h
https://github.com/torvalds/linux/blob/master/fs/exec.c (``exec_mmap``, ``do_close_on_exec``)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

REQUEST = struct.Struct("=IIQQ8xI4x")
"""Length, operation, number, file and process, as far as they matter here."""

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ = 1, 2, 3, 5, 14, 15
FLUSH, INIT, INTERRUPT = 25, 26, 36
PAST_THE_CACHE, KEEP_CACHE = 1, 2
FOLDER, FILE, PROGRAM = 1, 2, 3
TYPES = {FOLDER: 0o40755, FILE: 0o100644, PROGRAM: 0o120777}
NEW_MOUNTS, PRIVATE_BELOW = 0x20000, 0x44000
SET_DUMPABLE = 4
LASTS = 3600
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class KeptProcesses:
    """The processes that the kernel keeps."""

    maps: int
    shares: int
    closes: int


def attributes(file: int) -> bytes:
    size = 1 << 16 if file == FILE else 0
    return struct.pack("=6Q3I6II", file, size, 8, *[0] * 6, TYPES[file], 1, 0, 0, 0, 4096, 0)


def answer(operation: int, file: int, opened: int) -> bytes | None:
    """The answer to a request; None for none."""
    if operation == INIT:
        return struct.pack("=4I2H2I2H8I", 7, 31, 1 << 17, 0, 12, 10, 1 << 16, 1, 32, 0, *[0] * 8)
    if operation == LOOKUP:
        return struct.pack("=4Q2I", file, 0, LASTS, LASTS, 0, 0) + attributes(file)
    if operation == GETATTR:
        return struct.pack("=Q2I", LASTS, 0, 0) + attributes(file)
    if operation == READLINK:
        return b"/bin/true"
    if operation == OPEN:  # to map it past the cache waits for what is being read into the cache
        return struct.pack("=Q2I", opened, KEEP_CACHE | (PAST_THE_CACHE if opened > 1 else 0), 0)
    return None if operation in (READ, FLUSH, FORGET, INTERRUPT) else b""


def be(user: int) -> None:
    """Become a user, whose processes look at each other."""
    os.setgid(user)
    os.setuid(user)
    LIBC.prctl(SET_DUMPABLE, 1, 0, 0, 0)


def map_the_file(folder: str, user: int) -> None:
    """Never returns. A child begins to execute a program before, and so shares the memory."""
    be(user)
    first = os.open(f"{folder}/file", os.O_RDONLY)
    threading.Thread(target=os.read, args=(first, 1), daemon=True).start()
    program = f"{folder}/program".encode()
    words = (ctypes.c_char_p * 2)(program, None)
    child = (ctypes.byref(ctypes.c_int()), program, None, None, words, words)
    threading.Thread(target=LIBC.posix_spawn, args=child, daemon=True).start()
    time.sleep(0.2)
    second = os.open(f"{folder}/file", os.O_RDONLY)
    mmap.mmap(second, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)


def close_the_file(folder: str, user: int) -> None:
    """Never returns."""
    be(user)
    os.open(f"{folder}/file", os.O_RDONLY)
    os.execv("/bin/true", ["true"])


def main(folder: str, user: int) -> None:
    """Serve until the input ends; prints the three processes once they are kept.

    One that is to share the memory of another is told where its program is once that one maps.
    """
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if (
        LIBC.unshare(NEW_MOUNTS)
        or LIBC.mount(None, b"/", None, PRIVATE_BELOW, None)
        or LIBC.mount(b"fuse", folder.encode(), b"fuse", 0, options)
    ):
        sys.exit(f"FUSE is not allowed here: {os.strerror(ctypes.get_errno())}")

    def say(number: int, said: bytes) -> None:
        os.write(server, struct.pack("=IiQ", 16 + len(said), 0, number) + said)

    def begin(does: Callable[[str, int], None]) -> int:
        if child := os.fork():
            return child
        os.close(server)
        does(folder, user)
        os._exit(1)

    maps, shares, asked, opened = begin(map_the_file), 0, 0, 0
    while True:
        ready = select.select([server, 0], [], [], 0.01 if asked else None)[0]
        if 0 in ready:
            return
        if asked and state(maps) == "D":
            say(asked, answer(LOOKUP, PROGRAM, 0) or b"")
            asked = 0
            begin(close_the_file)
        if server not in ready:
            continue
        request = os.read(server, 1 << 18)
        _, operation, number, file, process = REQUEST.unpack_from(request)
        opened += operation == OPEN
        if operation == LOOKUP and request[REQUEST.size :] == b"program\0":
            asked, shares = number, process
            continue
        if operation == FLUSH:
            print(maps, shares, process, flush=True)
        said = answer(operation, FILE if operation == LOOKUP else file, opened)
        if said is not None:
            say(number, said)


def state(process: int) -> str:
    """The letter of a process's state."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def kept(user: int) -> Iterator[KeptProcesses]:
    """Processes of a user that never come back."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("only root may mount, and only where there is /dev/fuse")
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.dead_file", folder, str(user)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as server,
    ):
        assert server.stdout is not None
        said = [int(word) for word in server.stdout.readline().split()]
        try:
            if not said:
                pytest.skip("FUSE is not allowed here")
            time.sleep(0.2)
            yield KeptProcesses(*said)
        finally:
            for process in said:
                os.kill(process, 9)
            server.kill()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
