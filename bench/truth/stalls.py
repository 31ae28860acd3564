"""Programs that stall: a rank trains for a few seconds, and then joins no longer."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.truth.parallel import ddp
from bench.truth.rank import Rank, Step, burn, say

HEALTHY_FOR = 4.0
"""Seconds of training before the stall."""


def _stall(rank: Rank, how: Callable[[], object], size: int = 64 << 20) -> Step:
    """Train; then the last rank does ``how`` instead of joining the next collective."""
    train = ddp(rank)
    gradient = torch.zeros(size, device=rank.device)
    over = torch.zeros((), device=rank.device)

    def step() -> None:
        train()
        over.fill_(float(rank.running_for > HEALTHY_FOR and rank.rank == 0))
        dist.broadcast(over, 0)
        if not over.item():
            return
        if rank.rank == rank.ranks - 1:
            say("starved")
            how()
        say("blocked")
        dist.all_reduce(gradient)
        torch.cuda.synchronize()

    return step


def _sleep() -> None:
    time.sleep(3600)


def large(rank: Rank) -> Step:
    return _stall(rank, _sleep)


def scalar(rank: Rank) -> Step:
    return _stall(rank, _sleep, size=1)


def stopped(rank: Rank) -> Step:
    return _stall(rank, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def killed(rank: Rank) -> Step:
    return _stall(rank, lambda: os.kill(os.getpid(), signal.SIGKILL))


def looping(rank: Rank) -> Step:
    return _stall(rank, lambda: burn(3600.0), size=1)


def uninterruptible(rank: Rank) -> Step:
    """State D, as behind a file server that is gone: the parent of a vfork until it execs."""

    def wait() -> None:
        if ctypes.CDLL(None).vfork() == 0:
            _sleep()

    return _stall(rank, wait)
