"""What ``gpunode rules`` reads."""

from __future__ import annotations

from pydantic import Field

from gpunode.config.command import CommandSettings
from gpunode.config.kinds import NamedPath, OptionalPath


class RulesSettings(CommandSettings):
    """Write the rules for Prometheus, with what a site changes about them."""

    into: NamedPath = Field(description="folder to write rules/ and alertmanager.yaml to")
    changes: OptionalPath = Field(
        None, description="file of YAML with changes of thresholds, severities and settings"
    )
