"""Files that are written whole or not at all, private, and read without following a link.

What is written has reached the disk under another name before it takes its own, so a crash at any
time leaves what was there before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

FRESH = ".new"
"""What a file is called until it is written, after a dot and its name."""


def write(name: str, data: bytes, folder: int) -> None:
    """Write a file of an open folder. Raises ``OSError``."""
    fresh = f".{name}{FRESH}"
    remove(fresh, folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(fresh, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        remove(fresh, folder)
        raise


def read(name: str, most: int, folder: int) -> bytes:
    """A regular file of an open folder, of at most so many bytes. Raises ``OSError``."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, "too large", name)
    return data


def remove(name: str, folder: int) -> None:
    """Remove a file of an open folder, if it is there. Raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def open_folder(path: os.PathLike[str]) -> int:
    """Open a folder. Raises ``OSError``."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
