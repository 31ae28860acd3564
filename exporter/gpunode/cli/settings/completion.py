"""What ``gpunode completion`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.command import CommandSettings


class CompletionSettings(CommandSettings):
    """The settings of ``gpunode completion``; what it does is said in ``commands``."""

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]] = Field(
        description="shell: bash, zsh or fish"
    )
