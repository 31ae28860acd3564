"""What ``gpunode rules`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import NamedPath, OptionalPath


class RulesSettings(CommandSettings):
    """The settings of ``gpunode rules``; what it does is said in ``commands``."""

    into: NamedPath = Field(description="folder to write rules/ and alertmanager.yaml to")
    changes: OptionalPath = Field(
        None, description="file of YAML with changes of thresholds, severities and settings"
    )
