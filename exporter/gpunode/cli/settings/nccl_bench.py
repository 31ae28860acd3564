"""What ``gpunode nccl-bench`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpunode.config.bench import BenchSettings, Collective
from gpunode.config.command import CommandSettings
from gpunode.config.path import PathSettings


class NcclBenchSettings(CommandSettings):
    """The settings of ``gpunode nccl-bench``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()
    host: BenchSettings = BenchSettings()

    collective: Collective = Field("all_reduce", description="collective to measure")
    gpus: int = Field(0, ge=0, le=1024, description="number of GPUs to use on a node, or 0 for all")
    hosts: str = Field(
        "",
        max_length=65_536,
        description="hosts to measure the bandwidth between, such as node-[01-04],node-07, with "
        "srun or mpirun; empty to measure this node",
    )
    launcher: Literal["srun", "mpirun"] | None = Field(
        None, description="what starts the ranks on hosts; without it, srun if it is installed"
    )
    python: str = Field("python3", description="Python that has torch on each of the hosts")
    result: str = Field(
        "", description="file with what ranks started by hand have printed, to judge; - for stdin"
    )
    picture: str = Field("", description="file for a picture (SVG) of what each pair exchanges")
    largest: str = Field(
        "8G",
        pattern=r"^([1-9]\d{0,3}G|[1-9]\d{1,3}M|[89]M)$",
        description="largest message to send, 8M or more",
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")
