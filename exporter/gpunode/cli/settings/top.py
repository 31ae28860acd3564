"""What ``gpunode top`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.cli.settings.admission import DaemonSettings
from gpunode.config.kinds import Seconds


class TopSettings(DaemonSettings):
    """The settings of ``gpunode top``; what it does is said in ``commands``."""

    interval: Seconds = Field(2.0, description="seconds between two looks")
    json_output: bool = Field(False, alias="json", description="print JSON once instead")
