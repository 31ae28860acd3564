"""A thread of C in a process, which beats each millisecond, and tells when it could not.

It takes no lock of Python, so the longest time between two beats is how long the process was
stopped, as by a tracer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = r"""
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* From before the thread exists: a process stopped before its thread ran has stood, too. */
static double last;

/* The beats so far, and the longest time between two since the reader set it to 0. */
static void *beat(void *shared)
{
    volatile double *kept = shared;
    const struct timespec a_millisecond = {0, 1000000};
    for (;;) {
        nanosleep(&a_millisecond, 0);
        double now = seconds();
        if (now - last > kept[1]) kept[1] = now - last;
        kept[0] += 1;
        last = now;
    }
}

int begin_to_beat(const char *path)
{
    pthread_t thread;
    const int file = open(path, O_RDWR);
    void *shared = mmap(0, 2 * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    last = seconds();
    return shared == MAP_FAILED || pthread_create(&thread, 0, beat, shared);
}

/* The parent of a vfork waits in the kernel, in state D, until its child ends. */
int wait_in_the_kernel(void)
{
    if (vfork() == 0) {
        pause();
        _exit(0);
    }
    return 0;
}
"""
BEAT_STRUCT = struct.Struct("=dd")

BEAT_TIMEOUT = 2.0
"""Seconds to wait for a beat."""


def build(folder: Path) -> Path:
    """The library, compiled. Raises ``CalledProcessError``."""
    source, library = folder / "beat.c", folder / "beat.so"
    source.write_text(SOURCE)
    command = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def begin(library: Path, shared: Path) -> None:
    """Have a thread of this process beat, for as long as it lives. Raises ``OSError``."""
    shared.write_bytes(bytes(BEAT_STRUCT.size))
    if ctypes.CDLL(str(library)).begin_to_beat(os.fsencode(shared)):
        raise OSError(f"{shared}: no thread beats")


class Beats:
    """What the thread in another process keeps."""

    def __init__(self, shared: Path) -> None:
        with shared.open("r+b") as file:
            self._room = mmap.mmap(file.fileno(), BEAT_STRUCT.size)

    @contextmanager
    def longest(self) -> Iterator[list[float]]:
        """The longest time between two beats within the block, in seconds; none if none beats."""
        found: list[float] = []
        self._room[8:16] = bytes(8)
        before = self._count()
        yield found
        # A process that was let go on beats once before it is known how long it stood.
        after, until = self._count(), time.monotonic() + BEAT_TIMEOUT
        while self._count() == after and time.monotonic() < until:
            time.sleep(0.001)
        if self._count() > before:
            found.append(BEAT_STRUCT.unpack(self._room[:16])[1])

    def _count(self) -> float:
        return float(BEAT_STRUCT.unpack(self._room[:16])[0])
