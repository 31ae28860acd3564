"""What ``gpunode record`` reads."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.daemon import DcgmSettings, Settings
from gpunode.config.kinds import DAY, NamedPath
from gpunode.config.path import PathSettings


class RecordSettings(Settings):
    """The settings of ``gpunode record``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()
    dcgm: DcgmSettings = DcgmSettings()

    file: CliPositionalArg[NamedPath] = Field(description="tape to write")
    duration: float = Field(60.0, gt=0, le=DAY, description="seconds to record")
    max_bytes: int = Field(64 << 20, gt=0, description="bytes at which to stop recording")
    comment: str = Field("", description="note on what the tape shows")
