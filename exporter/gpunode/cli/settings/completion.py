"""What ``gpunode completion`` reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from gpunode.config.command import CommandSettings


class CompletionSettings(CommandSettings):
    """Print what makes a shell complete commands, options and values: README.md says where to."""

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]] = Field(
        description="shell: bash, zsh or fish"
    )
