"""Every setting in a class, and what a user calls it in each of the three places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_settings import CliPositionalArg

from gpunode.config.kinds import CLI_ONLY, Section

PREFIX = "GPUNODE_"
"""What the name of every environment variable of ours begins with."""

POSITIONAL = get_args(CliPositionalArg)[1]
"""How pydantic marks an argument that is not an option."""

SettingName = tuple[str, ...]
"""The names of the sections of a setting, and its own."""


def leaves(
    fields: Mapping[str, FieldInfo], within: SettingName = ()
) -> Iterator[tuple[SettingName, FieldInfo]]:
    """Every setting in these fields."""
    for name, field in fields.items():
        path = (*within, field.alias or name)
        section = _section(field)
        if section:
            yield from leaves(section.model_fields, path)
        else:
            yield path, field


def _section(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def option(path: SettingName, field: FieldInfo) -> str:
    """The option of a setting, or the name of an argument that is none."""
    if POSITIONAL in field.metadata:
        return path[-1].upper()
    return f"--{'.'.join(path).replace('_', '-')}"


def variable(path: SettingName) -> str:
    """The environment variable of a setting."""
    return PREFIX + "__".join(path).upper()


def is_shared(field: FieldInfo) -> bool:
    """Whether a setting may be in the environment and in a file, not only on the command line."""
    return not field.is_required() and CLI_ONLY not in field.metadata


def own(fields: Mapping[str, FieldInfo], content: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to these fields; the rest of what is shared is of other commands."""
    found = {}
    for name, field in fields.items():
        key = field.alias or name
        if key in content and is_shared(field):
            section, value = _section(field), content[key]
            if section and value == "":  # all of its keys are commented out
                continue
            if section and isinstance(value, dict):
                value = own(section.model_fields, value)
            found[key] = value
    return found
