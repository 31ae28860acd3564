"""What ``gpunode mcp`` reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import ASKED, Address, OptionalPath
from gpunode.config.prometheus import PrometheusSettings


class McpSettings(CommandSettings):
    """The settings of ``gpunode mcp``; what it does is said in ``commands``."""

    prometheus: PrometheusSettings = PrometheusSettings()

    node: Annotated[Address, ASKED] = Field(
        "",
        pattern=r"^(https?://[!-~]+)?$",
        description="address of a daemon that may be asked as well",
    )
    username: str = Field("", description="user name, if that daemon asks for one")
    password_file: OptionalPath = Field(None, description="file with the user's password")
    ca_file: OptionalPath = Field(
        None, description="PEM file of the authorities that may sign its certificate"
    )
