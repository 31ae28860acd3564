"""Measurements of collectives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpunode.config.kinds import Section

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"
]
"""The collectives of nccl-tests that ``gpunode nccl-bench`` can measure."""


class BenchSettings(Section):
    """Where measurements of collectives are."""

    nccl_bench_folder: str = Field(
        "/var/lib/gpunode/nccl-bench",
        description="folder on the node where nccl-bench leaves its results for the daemon",
    )
