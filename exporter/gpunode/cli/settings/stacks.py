"""What ``gpunode stacks`` reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpunode.cli.settings.admission import AdmissionSettings
from gpunode.config.kinds import CLI_ONLY, Address
from gpunode.config.path import PathSettings


class StacksCommandSettings(AdmissionSettings):
    """The settings of ``gpunode stacks``; what it does is said in ``commands``."""

    path: PathSettings = PathSettings()

    url: Annotated[Address, CLI_ONLY] = Field(
        "",
        description="address of a daemon that is to look at its node, to who gives a password or a "
        "certificate; empty to look at this node",
    )
    gpu: Annotated[str, CLI_ONLY] = Field(
        "", pattern=r"^\d{0,4}$", description="index of the GPU to look at; empty for all"
    )
    pid: Annotated[int | None, CLI_ONLY] = Field(
        None, ge=1, le=1 << 31, description="process to look at, instead of those on GPUs"
    )
    native: Annotated[bool, CLI_ONLY] = Field(
        False,
        description="show functions of C and C++ as well, for which py-spy stops each process for "
        "up to a second; of a program without Python, gdb shows them and stops it for some seconds",
    )
    json_output: bool = Field(False, alias="json", description="print JSON instead of text")
