"""What ``gpunode report`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import OptionalPath
from gpunode.config.prometheus import PrometheusSettings


class ReportSettings(CommandSettings):
    """The settings of ``gpunode report``; what it does is said in ``commands``."""

    prometheus: PrometheusSettings = PrometheusSettings()
    since: str = Field(
        "30d",
        alias="from",
        description="begin: a date, a time in UTC, or so long before the end; last-month for the "
        "last calendar month before the end",
    )
    until: str = Field("now", alias="to", description="end: a date or a time in UTC, or now")
    by: Literal["namespace", "job", "user", "node", "model", "kind"] = Field(
        "namespace", description="what GPU hours are listed by"
    )
    price: float | None = Field(
        None,
        ge=0,
        le=1e9,
        description="price of a GPU hour, in your currency; of a model for which billing-file has "
        "none",
    )
    billing_file: OptionalPath = Field(
        None, description="file of YAML with a currency, prices by model of GPU, and teams"
    )
    sacct_file: OptionalPath = Field(
        None, description="what sacct printed, for accounts of Slurm and the time in its queue"
    )
    format: Literal["html", "json", "csv"] = Field("html", description="format to write")
    output: str = Field(
        "", description="file to write, or - for standard output; empty for gpunode-report.FORMAT"
    )
    baseline: OptionalPath = Field(
        None, description="earlier report in JSON, with whose jobs to compare the same ones now"
    )
    fail_if_worse: str = Field(
        "",
        description="exit with 1 if they are slower than in the baseline by more than this, as 3%",
    )
    out_folder: OptionalPath = Field(
        None,
        description="folder for the report in every format and the bill of each team as a page, as "
        "text and as a mail; instead of format and output",
    )
