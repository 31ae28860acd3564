"""What ``gpunode rules`` reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import CLI_ONLY, OptionalPath
from gpunode.config.prometheus import PrometheusSettings


class RulesSettings(CommandSettings):
    """The settings of ``gpunode rules``; what it does is said in ``commands``."""

    prometheus: PrometheusSettings = PrometheusSettings()

    explain: Annotated[CliPositionalArg[list[str]], CLI_ONLY] = Field(
        [],
        description="explain ALERT LABEL=VALUE…: ask Prometheus which clause of an alert holds, "
        "which silences it, and for the rules and series behind it",
    )
    into: Annotated[OptionalPath, CLI_ONLY] = Field(
        None,
        description="folder to write rules/ and alertmanager.yaml to; a rules/thresholds.yaml that "
        "is there is kept",
    )
    at: Annotated[str, CLI_ONLY] = Field(
        "now", description="date or time in UTC at which to explain, or now"
    )
    rules: Annotated[OptionalPath, CLI_ONLY] = Field(
        None, description="folder with the rules to explain, in place of those of this version"
    )
