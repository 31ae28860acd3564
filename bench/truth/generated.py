"""Runs a random program: ``program`` looks up in the environment what a seed drew (``drawn``)."""

from __future__ import annotations

import os

import torch

from bench.truth import drawn, exchanges, gpu_work, libraries, troubles
from bench.truth.drawn import PROGRAM
from bench.truth.pieces import BUILD, paced, work
from bench.truth.rank import Rank, Step

__all__ = ["exchanges", "gpu_work", "libraries", "troubles"]


def program(rank: Rank) -> Step:
    """The program that the environment names."""
    family, seed = drawn.split_name(os.environ[PROGRAM])
    drawn_now = drawn.parameters(family, seed)
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if family in drawn.KERNELS:
        return paced(work(rank, {"kind": family, **drawn_now}, drawn_now["seconds"]), drawn_now)
    return BUILD[family](rank, drawn_now)
