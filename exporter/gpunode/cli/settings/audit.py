"""What ``gpunode audit`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.path import PathSettings


class AuditSettings(CommandSettings):
    """List what on this node is not set up for training; exit with 1 if anything is not."""

    path: PathSettings = PathSettings()

    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")
