"""The settings that every command reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gpunode.config.fields import PREFIX, own
from gpunode.config.kinds import OptionalPath, Section


class LogSettings(Section):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest severity to log"
    )


class ConfigSettings(Section):
    """The file of settings."""

    file: OptionalPath = Field(None, description="YAML file to read settings from")


class CommandSettings(BaseSettings):
    """The settings that every command reads.

    The class of a command has what that command reads, and nothing else. The environment and the
    file are shared: what another command reads is left out.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_prefix_target="all",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    log: LogSettings = LogSettings()
    config: ConfigSettings = ConfigSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        found = own(settings_cls.model_fields, env_settings())
        return init_settings, InitSettingsSource(settings_cls, found)
