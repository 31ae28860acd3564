"""The standard streams of a program whose caller closed them, or lets nobody read them."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpunode.mistake import UsageError

STANDARD_ERROR = 2


def open_missing() -> None:
    """Have something at the numbers of the standard streams.

    If one is closed, the next file that is opened gets its number, and what any library writes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(opened, "w" if number else "r", encoding="utf-8"))


@contextmanager
def printing() -> Iterator[None]:
    """Print to the end, or end the program: with a line for a full disk, none for a closed pipe.

    Whoever reads a pipe gets each line when it is printed. What the terminal's encoding lacks, such
    as the blocks of a bar in Latin-1, becomes ``?``. Raises ``UsageError``.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Or what is left would fail at the exit: https://docs.python.org/3/library/signal.html#note-on-sigpipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        raise UsageError(f"standard output: {error.strerror}") from error


def content_of(name: str, most: int) -> bytes:
    """Up to so many bytes of a file, or of the standard input for ``-``. Raises ``OSError``."""
    if name == "-":
        return sys.stdin.buffer.read(most)
    with Path(name).open("rb") as file:
        return file.read(most)


def complain(line: str) -> None:
    """Write a line of up to ``select.PIPE_BUF`` bytes to the standard error, if it takes it now.

    A full disk, and a pipe that nobody reads, must stop no thread.
    """
    with suppress(OSError):
        if select.select((), (STANDARD_ERROR,), (), 0)[1]:
            os.write(STANDARD_ERROR, f"{line}\n".encode(errors="backslashreplace"))
