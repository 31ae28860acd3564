"""A process that never comes back from mapping a file, because its server answers no read.

The kernel holds the lock of its memory meanwhile: who reads its command line waits, too.
https://github.com/torvalds/linux/blob/master/include/uapi/linux/fuse.h
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUEST = struct.Struct("=IIQQ16x")
"""Length, operation, number and file, as far as they matter here."""

LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, INTERRUPT = 1, 2, 3, 14, 15, 26, 36
PAST_THE_CACHE, KEEP_CACHE = 1, 2
FOLDER, FILE = 1, 2
NEW_MOUNTS, PRIVATE_BELOW = 0x20000, 0x44000
SET_DUMPABLE = 4
LASTS = 3600


def attributes(file: int) -> bytes:
    size, mode = (0, 0o40755) if file == FOLDER else (1 << 16, 0o100644)
    return struct.pack("=6Q3I6II", file, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation: int, file: int, opened: int) -> bytes | None:
    """The answer to a request; None for none."""
    if operation == INIT:
        return struct.pack("=4I2H2I2H8I", 7, 31, 1 << 17, 0, 12, 10, 1 << 16, 1, 32, 0, *[0] * 8)
    if operation == LOOKUP:
        return struct.pack("=4Q2I", FILE, 0, LASTS, LASTS, 0, 0) + attributes(FILE)
    if operation == GETATTR:
        return struct.pack("=Q2I", LASTS, 0, 0) + attributes(file)
    if operation == OPEN:  # to map it past the cache waits for what is being read into the cache
        return struct.pack("=Q2I", opened, KEEP_CACHE | (PAST_THE_CACHE if opened > 1 else 0), 0)
    return None if operation in (READ, FORGET, INTERRUPT) else b""


def map_the_file(folder: str, user: int) -> None:
    """Never returns."""
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 1, 0, 0, 0)
    first = os.open(f"{folder}/file", os.O_RDONLY)
    threading.Thread(target=os.read, args=(first, 1), daemon=True).start()
    time.sleep(0.2)
    second = os.open(f"{folder}/file", os.O_RDONLY)
    mmap.mmap(second, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)


def main(folder: str, user: int) -> None:
    """Serve until the input ends; prints the process that maps, once it is about to."""
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if (
        libc.unshare(NEW_MOUNTS)
        or libc.mount(None, b"/", None, PRIVATE_BELOW, None)
        or libc.mount(b"fuse", folder.encode(), b"fuse", 0, options)
    ):
        sys.exit(f"FUSE is not allowed here: {os.strerror(ctypes.get_errno())}")
    child = os.fork()
    if not child:
        os.close(server)
        map_the_file(folder, user)
    opened = 0
    while server in select.select([server, 0], [], [])[0]:
        _, operation, number, file = REQUEST.unpack_from(os.read(server, 1 << 18))
        opened += operation == OPEN
        said = answer(operation, file, opened)
        if said is not None:
            os.write(server, struct.pack("=IiQ", 16 + len(said), 0, number) + said)
        if opened == 2 and operation == OPEN:
            print(child, flush=True)


@contextmanager
def mapping(user: int) -> Iterator[int]:
    """A process of a user that never comes back from mapping a file."""
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
        said = server.stdout.readline()
        try:
            if not said:
                pytest.skip("FUSE is not allowed here")
            until = time.monotonic() + 10
            while Path(f"/proc/{int(said)}/stat").read_text().rpartition(")")[2].split()[0] != "D":
                assert time.monotonic() < until
                time.sleep(0.01)
            yield int(said)
        finally:
            if said:
                os.kill(int(said), 9)
            server.kill()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
