"""The ways in which a rank hangs: a comment ``# here`` marks the line where it stands then.

What a way needs before the job begins is in ``rank.py``.
"""

from __future__ import annotations

import ctypes
import inspect
import multiprocessing
import os
import pickle
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.hangs.fuse import own_mounts

HERE = "# here"

HEALTHY = "healthy"
"""In place of a way: it trains until it is ended."""

LIBRARY, NATIVE, INSIDE = "HANGS_LIBRARY", "HANGS_NATIVE", "HANGS_INSIDE"
"""Environment variables: the library of ``beat.py``, the program of ``native.cu``, and whether this
is inside the container already."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a rank has at hand when it hangs."""

    folder: Path
    """Where it may write."""

    library: Path
    """Of ``beat.py``, which also has a call that waits in the kernel."""

    group: Any = None
    """A second process group, where one was asked for."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to hang: its function, which is called once, or at each step if it is only ``slow``."""

    name: str
    what: str
    hangs: Callable[[Around], object]
    reasons: str
    """The reasons that are right, separated by spaces; empty if any is."""

    place: str = ""
    """A pattern of file, line and function, where they are not those of ``hangs``."""

    slow: bool = False
    all_wait: bool = False
    """Whether no GPU waits for another: all spin, each in its own collective."""

    python: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def places(self) -> tuple[str, ...]:
        """What a sentence must have, any of these patterns: file, line and function."""
        if self.place:
            return (self.place,)
        lines, first = inspect.getsourcelines(self.hangs)
        file = "/".join(Path(__file__).parts[-2:])
        marked = [first + n for n, line in enumerate(lines) if HERE in line]
        return tuple(re.escape(f"{file}:{line} {self.hangs.__name__}") for line in marked)


def lock(_: Around) -> None:
    shards = threading.Lock()
    shards.acquire()
    shards.acquire()  # here


def queued(_: Around) -> None:
    batches: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=time.sleep, args=(3600,), name="prefetch", daemon=True).start()
    batches.get()  # here


def received(_: Around) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.recv(1)  # here


def downloaded(_: Around) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    urllib.request.urlopen(f"http://{host}:{port}/shard-00142")  # here


@contextmanager
def mounted(around: Around) -> Iterator[Path]:
    """A folder that a file server in user space has."""
    own_mounts()
    folder = around.folder / "mounted"
    folder.mkdir()
    command = [sys.executable, "-m", "bench.hangs.fuse", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        yield folder


def read_from_fuse(around: Around) -> None:
    with mounted(around) as folder, open(folder / "shard", "rb", buffering=0) as file:
        file.read(4096)  # here


def uninterruptible(around: Around) -> None:
    ctypes.CDLL(str(around.library)).wait_in_the_kernel()  # here


def stopped(_: Around) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)  # here


def gil_held(_: Around) -> None:
    ctypes.PyDLL(None).sleep(3600)  # here


def exception(_: Around) -> None:
    threading.Thread(target=time.sleep, args=(3600,), name="uploader").start()
    raise ValueError("loss is NaN")


def handled(_: Around) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            raise ValueError("loss is NaN")
        except ValueError:
            ours.recv(1)  # here


class Shards:
    """A data set of which no element comes."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        deadlock = multiprocessing.Lock()
        deadlock.acquire()
        deadlock.acquire()
        return index


def loader(_: Around) -> None:
    import torch.utils.data

    shards: Any = Shards()
    for _batch in torch.utils.data.DataLoader(shards, num_workers=2):  # here
        pass


def slept(_: Around) -> None:
    time.sleep(3600)  # here


def debugged(_: Around) -> int:
    loss = 1
    breakpoint()  # here
    return loss  # here


TRACER = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT = 0x4206, 0x4207
parent, nothing = ctypes.c_long(os.getppid()), ctypes.c_void_p(0)
for request in (SEIZE, INTERRUPT):
    assert libc.ptrace(request, parent, nothing, nothing) == 0
time.sleep(3600)
"""


def traced(_: Around) -> None:
    with subprocess.Popen([sys.executable, "-c", TRACER]) as tracer:
        tracer.wait()  # here


def saved(_: Around) -> None:
    import torch

    out, into = os.pipe()
    with open(into, "wb", buffering=0) as file:
        torch.save({"weights": torch.zeros(1 << 20)}, file)  # here
    os.close(out)


def saved_slowly(around: Around) -> None:
    import torch

    with mounted(around) as folder:
        torch.save({"weights": torch.zeros(1 << 24)}, folder / "checkpoint.pt")  # here


def pickled(around: Around) -> None:
    slow_disk = around.folder / "checkpoint"
    os.mkfifo(slow_disk)
    with open(slow_disk, "wb") as file:  # here
        pickle.dump({"step": 1}, file)


def mismatched(around: Around) -> None:
    import torch

    data = torch.zeros(1 << 20, device="cuda")
    torch.distributed.all_reduce(data, group=around.group)
    torch.cuda.synchronize()  # here


def child(_: Around) -> None:
    subprocess.run(["sleep", "3600"])  # here


def in_container(_: Around) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.recv(1)  # here


def native(_: Around) -> None:
    """In ``native.cu``."""


def slow_sleep(_: Around) -> None:
    time.sleep(0.4)  # here


def slow_python(_: Around) -> None:
    until = time.perf_counter() + 0.4
    while time.perf_counter() < until:  # here
        sum(range(500))  # here


WITHOUT_P2P = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}
"""Memory of a process in another PID namespace cannot be mapped."""

WAYS = (
    Way(
        "mismatched",
        "another collective than the others",
        mismatched,
        "",
        all_wait=True,
    ),
    Way(
        "native",
        "C++: a pipe, in a job without Python",
        native,
        "another_process",
        "main thread, waiting in the kernel for a pipe",
        python=False,
    ),
    Way("lock", "a lock", lock, "lock"),
    Way("queue", "a queue whose producer is stuck", queued, "lock"),
    Way("socket", "a socket", received, "socket"),
    Way("download", "an HTTP server that is silent", downloaded, "download"),
    Way("fuse", "a file server (FUSE) that is stopped", read_from_fuse, "storage uninterruptible"),
    Way("uninterruptible", "state D (vfork)", uninterruptible, "uninterruptible another_process"),
    Way("stopped", "SIGSTOP", stopped, "stopped"),
    Way("gil", "a C call that holds the GIL", gil_held, "sleeping"),
    Way(
        "exception",
        "an exception, then a thread that does not end",
        exception,
        "exiting",
        r"threading\.py:\d+ _shutdown",
    ),
    Way("handler", "an exception, then its handler", handled, "socket"),
    Way("loader", "a deadlock in a worker of the loader", loader, "loader"),
    Way("sleep", "a sleep", slept, "sleeping"),
    Way("debugger", "a forgotten breakpoint()", debugged, "debugger"),
    Way("traced", "stopped by a tracer", traced, "stopped another_process"),
    Way("checkpoint", "torch.save to what takes nothing", saved, "checkpointing"),
    Way("slow-disk", "torch.save to a slow disk", saved_slowly, "checkpointing storage"),
    Way("fifo", "a FIFO that nobody opens", pickled, "another_process"),
    Way("child", "a program that it started", child, "another_process"),
    Way(
        "container",
        "a socket, in a container with its own root and PIDs",
        in_container,
        "socket",
        environment=WITHOUT_P2P,
    ),
    Way("slow-sleep", "slow: a sleep in each step", slow_sleep, "", slow=True),
    Way("slow-python", "slow: Python code in each step", slow_python, "", slow=True),
)
BY_NAME = {way.name: way for way in WAYS}
