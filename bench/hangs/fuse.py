"""A file server that stops once it is read, and takes long to write: give it a folder.

It mounts a filesystem in user space, in which every name is one file, and takes root.
https://docs.kernel.org/filesystems/fuse.html, and the structures in
https://github.com/torvalds/linux/blob/master/include/uapi/linux/fuse.h
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys
import time

LOOKUP, GETATTR, SETATTR, OPEN, READ, WRITE, INIT = 1, 3, 4, 14, 15, 16, 26
HEAD = struct.Struct("=IIQQIIII")
"""``fuse_in_header``: length, operation, number of the request, inode, user, group, process."""

WRITTEN = struct.Struct("=QQI")
"""``fuse_write_in``, its beginning: file, offset, bytes."""

ROOT, FILE = 1, 2
LENGTH = 1 << 20
WRITE_SECONDS = 2.0
"""What it takes to write 64 KiB: some gigabytes of a checkpoint take a day."""


def attributes(inode: int) -> bytes:
    """``fuse_attr`` of the folder or of the file."""
    mode = 0o040755 if inode == ROOT else 0o100644
    return struct.pack("=6Q10I", inode, LENGTH, 8, 0, 0, 0, *(0, 0, 0), mode, 1, *(0,) * 3, 4096, 0)


def answer(operation: int, inode: int, rest: bytes) -> tuple[int, bytes]:
    """The error number and the content of an answer to a request, of which this is the rest."""
    if operation == INIT:
        return 0, struct.pack("=4I2H2I2HI7I", 7, 31, 0, 0, 1, 1, 1 << 16, 1, 1, 0, *(0,) * 8)
    if operation in (GETATTR, SETATTR):
        return 0, struct.pack("=QII", 3600, 0, 0) + attributes(inode)
    if operation == LOOKUP:
        return 0, struct.pack("=4QII", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE)
    if operation == OPEN:
        return 0, struct.pack("=QII", 1, 0, 0)
    if operation == WRITE:
        return 0, struct.pack("=II", WRITTEN.unpack_from(rest)[2], 0)
    return errno.ENOSYS, b""


def own_mounts() -> None:
    """Have a thread see its own mounts, which end with its children. Raises ``OSError``.

    https://man7.org/linux/man-pages/man2/unshare.2.html
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private, recursive = 0x20000, 1 << 18, 1 << 14
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private | recursive, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(folder: str) -> None:
    """Mount there and answer until the file is read. Raises ``OSError``."""
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"shards", os.fsencode(folder), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    print("mounted", flush=True)
    while request := os.read(device, 1 << 18):
        _, operation, number, inode, *_ = HEAD.unpack_from(request)
        if operation == READ:
            os.kill(os.getpid(), signal.SIGSTOP)
        if operation == WRITE:
            time.sleep(WRITE_SECONDS)
        error, content = answer(operation, inode, request[HEAD.size :])
        os.write(device, struct.pack("=IiQ", 16 + len(content), -error, number) + content)


if __name__ == "__main__":
    serve(sys.argv[1])
