"""What ``gpunode demo`` reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.daemon import GpuSettings, Settings
from gpunode.config.kinds import CLI_ONLY, NamedPath, Seconds
from gpunode.config.web import PlayingWebSettings
from gpunode.recorded import STORIES


class DemoGpuSettings(GpuSettings):
    """GPU settings for incidents that end before a read every 30 s comes twice."""

    health_interval: Seconds = Field(
        10.0, description="seconds between reads of error counters and modes"
    )


class DemoSettings(Settings):
    """The settings of ``gpunode demo``; what it does is said in ``commands``."""

    web: PlayingWebSettings = PlayingWebSettings()
    gpu: DemoGpuSettings = DemoGpuSettings()

    incident: Annotated[CliPositionalArg[NamedPath], CLI_ONLY] = Field(
        STORIES,
        description="incident to play: storage, hang, p2p, throttled or shm, by default all five; "
        "or a folder of tapes",
    )
    speed: float = Field(1.0, gt=0, description="multiple of real time")
    once: bool = Field(False, description="exit after the last tape instead of starting over")
