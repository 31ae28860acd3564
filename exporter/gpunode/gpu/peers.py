"""Whether the processes on a GPU have peers on other GPUs, for which their kernels may wait.

A communicator of NCCL keeps threads whose names anyone may read: ``NCCL Service`` and the like,
and PyTorch's ``pt_nccl_watchdg``.
https://github.com/NVIDIA/nccl/blob/master/src/proxy.cc (ncclSetThreadName),
https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.driver.driver import Process
from gpunode.node.node import Node

FIRST_LOOK, LAST_LOOK = 2.0, 60.0
"""Seconds between looks at the threads of a process that has no peers yet: at first and in the end,
doubling."""

THREADS = 512
"""The most threads of a process to look at; a training process has 300."""


@dataclass(slots=True)
class Looked:
    """What is known of one process; ``peers`` is None if its threads cannot be read."""

    peers: bool | None
    pause: float
    again: float


class Peers:
    """Looks at the processes on one GPU, each until it has peers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._looked: dict[int, Looked] = {}

    def known(self, processes: Sequence[Process] | None, now: float) -> bool | None:
        """Whether any process has peers; None if that is not known."""
        if processes is None:
            return None
        self._looked = {
            process.pid: self._look(process.pid, now)
            for process in processes
            if process.kind != "graphics"
        }
        answers = {looked.peers for looked in self._looked.values()}
        return True if True in answers else None if None in answers else False

    def _look(self, pid: int, now: float) -> Looked:
        before = self._looked.get(pid)
        if before is not None and (before.peers or now < before.again):
            return before
        pause = FIRST_LOOK if before is None else min(LAST_LOOK, 2 * before.pause)
        return Looked(self._has_communicator(pid), pause, now + pause)

    def _has_communicator(self, pid: int) -> bool | None:
        names = thread_names(self.node, pid)
        return None if names is None else any("nccl" in name.lower() for name in names)


def thread_names(node: Node, pid: int) -> set[str] | None:
    """The names of a process's threads; None if they cannot be read."""
    try:
        threads = node.list_directory(f"/proc/{pid}/task")[:THREADS]
    except OSError:
        return None
    found = set()
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            found.add(node.read_text(f"/proc/{pid}/task/{thread}/comm").strip())
    return found
