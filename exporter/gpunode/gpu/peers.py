"""Whether the processes on a GPU have peers on other GPUs, for which their kernels may wait.

A process has a peer if data moved over NVLink while it held the GPU, if its launcher told it of
others, or if it has a communicator of NCCL: PyTorch names a thread for each, and so does NCCL with
NCCL_SET_THREAD_NAME=1. The names of threads may be read by anyone.
https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
(``pt_nccl_watchdg``), https://github.com/NVIDIA/nccl/blob/master/src/misc/utils.cc
(``ncclSetThreadName``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.driver.driver import Process
from gpunode.node.node import Node

FIRST_LOOK, LAST_LOOK = 2.0, 60.0
"""Seconds between looks at a process that has no peers yet: at first and in the end, doubling."""

THREADS = 2048
"""The most threads of a process to look at, in 0.04 s of CPU; a training process has 300."""

SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Where launchers say how many processes a job has."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What is known of one process; ``peers`` is None if its threads cannot tell."""

    peers: bool | None
    pause: float
    again: float


class Peers:
    """Looks at the processes on one GPU, each until it has peers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._looked: dict[int, Looked] = {}

    def known(self, processes: Sequence[Process] | None, now: float, *, moved: bool) -> bool | None:
        """Whether any process has peers; None if that is not known.

        ``moved`` says whether data went over NVLink since the last time.
        """
        if processes is None:
            return True if moved else None
        pids = [process.pid for process in processes if process.kind != "graphics"]
        self._looked = {pid: self._look(pid, now, moved) for pid in pids}
        answers = {looked.peers for looked in self._looked.values()}
        return True if True in answers else None if None in answers else False

    def _look(self, pid: int, now: float, moved: bool) -> Looked:
        before = self._looked.get(pid)
        if before is not None and (before.peers or (now < before.again and not moved)):
            return before
        pause = FIRST_LOOK if before is None else min(LAST_LOOK, 2 * before.pause)
        # What moved before a process came was not its own.
        peers = True if moved and before is not None else self._has_peers(pid)
        return Looked(peers, pause, now + pause)

    def _has_peers(self, pid: int) -> bool | None:
        ranks = self._ranks(pid)
        if ranks is not None:
            return ranks > 1  # a communicator of one has no peer
        names = thread_names(self.node, pid)
        return None if names is None else any("nccl" in name.lower() for name in names)

    def _ranks(self, pid: int) -> int | None:
        """How many processes the launcher says the job has; None if unknown."""
        try:
            environment = self.node.environment(pid)
        except OSError:
            return None
        sizes = (environment.get(name, "") for name in SIZES)
        return max((int(s) for s in sizes if s.isdecimal() and len(s) < 10), default=None)


def thread_names(node: Node, pid: int) -> set[str] | None:
    """The names of a process's threads; None if they cannot be read or are too many."""
    try:
        threads = node.list_directory(f"/proc/{pid}/task")
    except OSError:
        return None
    if len(threads) > THREADS:
        return None
    found = set()
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            found.add(node.read_text(f"/proc/{pid}/task/{thread}/comm").strip())
    return found
