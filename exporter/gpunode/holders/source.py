"""The interface of a source that reads of a GPU what its processes do, or whose they are.

Such a source is declared as ``HOLDERS_SOURCE`` in a module of ``gpu/``, ``jobs/`` or ``nccl/``. It
is a ``GpuSource`` but for the census that it is given in place of the node, ``Census.node``.
"""

from __future__ import annotations

from typing import Protocol

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu
from gpunode.holders.census import Census
from gpunode.metric import Metric
from gpunode.source import Divided, Source


class HoldersSource(Protocol):
    """A class whose instances each read one GPU or MIG instance, and ask who holds it."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> str:
        """What it takes to have data from it, for a user who has none."""
        ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def divided(self) -> Divided: ...
    def __call__(self, census: Census, gpu: Gpu, settings: Settings) -> Source: ...
