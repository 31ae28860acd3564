"""What ``gpunode calibrate`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.daemon import CalibrationSettings, DcgmSettings
from gpunode.config.path import PathSettings


class CalibrateSettings(CommandSettings):
    """The settings of ``gpunode calibrate``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()
    gpu: CalibrationSettings = CalibrationSettings()
    dcgm: DcgmSettings = DcgmSettings()

    index: int = Field(0, ge=0, le=1024, description="number of the GPU to use")
    json_output: bool = Field(False, alias="json", description="print JSON instead of a table")
