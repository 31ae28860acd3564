"""What ``gpunode audit`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.path import PathSettings


class AuditSettings(CommandSettings):
    """The settings of ``gpunode audit``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()

    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")
