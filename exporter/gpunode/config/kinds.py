"""What settings are made of: sections, and the kinds of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


OptionalPath = Annotated[Path | None, BeforeValidator(lambda given: given or None)]
"""A file or folder; empty for none."""


class Credentials(BaseModel):
    """What it takes to be let in by a server."""

    username: str = Field("", description="user name, if the server asks for one")
    password_file: OptionalPath = Field(None, description="file with the user's password")
    ca_file: OptionalPath = Field(
        None, description="PEM file of the authorities that may sign the server's certificate"
    )
    cert_file: OptionalPath = Field(None, description="PEM file of the certificate to show it")
    key_file: OptionalPath = Field(None, description="PEM file of that certificate's key")


DAY = 86_400
"""The longest interval in seconds: nobody means to read anything less often than once a day."""

Seconds = Annotated[float, Field(ge=1, le=DAY)]
"""An interval that is no shorter than what is read changes."""


def _named(given: object) -> object:
    if given == "":
        raise ValueError("is empty")
    return given


NamedPath = Annotated[Path, BeforeValidator(_named)]
"""A file or folder that must be named: an empty name would be that of the folder one is in."""


def _without_password(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "has a password, which other users see in the list of processes; there are settings "
            "for a user name and for a file with the password"
        )
    return url


Address = Annotated[str, AfterValidator(_without_password)]
"""The address of a server, which may be shown."""

CLI_ONLY = "on the command line alone"
"""Marks a setting that no file and no variable has, such as one with the name of a section."""
