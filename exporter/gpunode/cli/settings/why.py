"""What ``gpunode why`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.command import CommandSettings
from gpunode.config.prometheus import PrometheusSettings


class WhySettings(CommandSettings):
    """The settings of ``gpunode why``; what it does is said in ``commands``."""

    prometheus: PrometheusSettings = PrometheusSettings()
    job: CliPositionalArg[str] = Field(
        description="job: namespace/pod, a workload, the number of a Slurm job, or user@node"
    )
    since: str = Field(
        "7d", alias="from", description="begin: a date, a time in UTC, or so long before the end"
    )
    until: str = Field("now", alias="to", description="end: a date or a time in UTC, or now")
    cluster: str | None = Field(
        None, description="label cluster of the job, where several clusters have one of its name"
    )
    price: float | None = Field(
        None, ge=0, le=1e9, description="price of a GPU hour, in your currency"
    )
    ended: bool = Field(
        False,
        description="say that the job has ended, as an Epilog knows; what is recorded shows it "
        "only after three minutes",
    )
    format: Literal["text", "html", "json"] = Field("text", description="format to write")
    output: str = Field("-", description="file to write, or - for standard output")
