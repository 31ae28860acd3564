"""Settings from options, environment variables (``GPUNODE_WEB__LISTEN_ADDRESS``) and a YAML file.

An option overrides the environment, which overrides the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from gpunode.cli.commands import COMMANDS
from gpunode.client import protocol
from gpunode.config.command import CommandSettings
from gpunode.config.fields import PREFIX, SettingName, is_shared, leaves, option, own, variable
from gpunode.config.prometheus import PASSWORD_VARIABLE, TOKEN_VARIABLE
from gpunode.mistake import UsageError, first_mistake
from gpunode.text import escaped

MAX_KEY = 200
"""Characters of a key in a message."""

SERVICE = re.compile(
    r"""GPUNODE_(\w+_)?(
        SERVICE_HOST=.* | SERVICE_PORT(_\w+)?=\d+ | PORT(_\d+_(TCP|UDP|SCTP))?=\w+://.*
        | PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*
    )""",
    re.VERBOSE,
)
"""Variables that Kubernetes sets in every pod for a service whose name begins with ``gpunode``:
https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables"""

T = TypeVar("T", bound=CommandSettings)


def settings_of(name: str) -> type[CommandSettings]:
    """The class of what a command reads; its help says what the command does."""
    command = COMMANDS[name]
    kind: type[CommandSettings] = resolve_name(f"gpunode.cli.settings.{command.settings}")
    kind.__doc__ = command.says
    return kind


def load(kind: type[T], program: str, arguments: Sequence[str]) -> T:
    """The settings of a command, from all three places. Raises ``UsageError``."""
    _check_environment(kind)
    try:
        settings = kind(_cli_parse_args=list(arguments), _cli_prog_name=program)
        if settings.config.file is None:
            return settings
        from gpunode.config.yaml_file import read_yaml

        content = read_yaml(settings.config.file)
        _check_keys(_shared(*map(settings_of, COMMANDS)), content)
        return _add_file(kind, content)(
            _cli_parse_args=list(arguments),
            _cli_prog_name=program,
        )
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":  # keys of files have defaults
            name = str(first["loc"][0])
            lacking = option((name,), kind.model_fields[name])
            raise UsageError(f"the following arguments are required: {lacking}") from error
        raise UsageError(first_mistake(error)) from error
    except SettingsError as error:
        raise UsageError(str(error).removeprefix("error parsing CLI: ")) from error
    except RecursionError as error:
        raise UsageError("an option is nested too deeply") from error


def _shared(*kinds: type[CommandSettings]) -> set[SettingName]:
    """The settings of commands that may be in the environment and in a file."""
    return {path for kind in kinds for path, field in leaves(kind.model_fields) if is_shared(field)}


def _check_environment(kind: type[CommandSettings]) -> None:
    """Raise ``UsageError`` for a variable that no command has: it would be ignored in silence."""
    known = {protocol.SOCKET_VARIABLE, TOKEN_VARIABLE, PASSWORD_VARIABLE}
    known |= set(map(variable, _shared(kind)))
    for name, value in os.environ.items():
        written = name.upper()
        service = SERVICE.fullmatch(f"{name}={value}")
        if not written.startswith(PREFIX) or written in known or service:
            continue
        known |= set(map(variable, _shared(*map(settings_of, COMMANDS))))
        if written not in known:
            (nearest,) = get_close_matches(written, sorted(known), n=1, cutoff=0)
            raise UsageError(f"{name}: unknown environment variable; the nearest is {nearest}")


def _check_keys(shared: Collection[SettingName], content: Mapping[Any, Any], *within: str) -> None:
    """Raise ``UsageError`` for a key that no command has."""
    for name, value in content.items():
        path = (*within, str(name))
        if any(known[: len(path)] == path for known in shared):
            if path not in shared and isinstance(value, dict):
                _check_keys(shared, value, *path)
            continue
        unknown = escaped(".".join(path), MAX_KEY)
        known = sorted(
            {".".join(one[:depth]) for one in shared for depth in range(1, len(one) + 1)}
        )
        (nearest,) = get_close_matches(unknown, known, n=1, cutoff=0)
        if nearest == unknown:
            nested = f"{unknown.replace('.', ': {')}: ...{'}' * unknown.count('.')}"
            raise UsageError(f"{unknown}: write each key within the one before: {nested}")
        raise UsageError(f"{unknown}: unknown setting; the nearest is {nearest}")


def _add_file(kind: type[T], content: Mapping[str, Any]) -> type[T]:
    """A subclass that also reads the content of a file."""

    class WithFile(kind):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            before = kind.settings_customise_sources(settings_cls, **sources)
            found = own(settings_cls.model_fields, content)
            return *before, InitSettingsSource(settings_cls, found)

    return WithFile
