"""What ``gpunode replay`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.daemon import IncidentSettings, Settings
from gpunode.config.kinds import NamedPath
from gpunode.config.web import PlayingWebSettings


class ReplaySettings(Settings):
    """The settings of ``gpunode replay``; what it does is said in ``commands``."""

    web: PlayingWebSettings = PlayingWebSettings()
    incident: IncidentSettings = IncidentSettings()

    file: CliPositionalArg[NamedPath] = Field(
        description="tape to play, or the name of a recorded incident, such as h200_hang"
    )
    speed: float = Field(
        1.0, ge=0, description="multiple of real time, or 0 for as fast as possible"
    )
    times: int = Field(1, ge=1, le=1_000_000, description="number of times to play the tape")
    print: Literal["table", "metrics"] = Field("table", description="what to print at the end")
