"""What ``gpunode doctor`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.config.bench import BenchSettings
from gpunode.config.command import CommandSettings
from gpunode.config.daemon import (
    Compat,
    DcgmSettings,
    KubeletSettings,
    NodeSettings,
    SlurmSettings,
)
from gpunode.config.path import PathSettings
from gpunode.config.web import ListenSettings


class DoctorSettings(CommandSettings):
    """The settings of ``gpunode doctor``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()
    node: NodeSettings = NodeSettings()
    web: ListenSettings = ListenSettings()
    dcgm: DcgmSettings = DcgmSettings()
    host: BenchSettings = BenchSettings()
    kubernetes: KubeletSettings = KubeletSettings()
    slurm: SlurmSettings = SlurmSettings()
    compat: Compat = "none"

    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")
