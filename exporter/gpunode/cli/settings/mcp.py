"""What ``gpunode mcp`` reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import CLI_ONLY, Address, Credentials
from gpunode.config.prometheus import PrometheusSettings


class McpSettings(Credentials, CommandSettings):
    """The settings of ``gpunode mcp``; what it does is said in ``commands``."""

    prometheus: PrometheusSettings = PrometheusSettings()

    node: Annotated[Address, CLI_ONLY] = Field(
        "",
        pattern=r"^(https?://[!-~]+)?$",
        description="address of a daemon that may be asked as well",
    )
