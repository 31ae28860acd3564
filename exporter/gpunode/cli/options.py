"""Options that a command lacks: which others have them, or which is meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from gpunode.cli.commands import COMMANDS
from gpunode.cli.loader import settings_of
from gpunode.cli.meant import hint
from gpunode.config.command import CommandSettings
from gpunode.config.fields import leaves, option
from gpunode.mistake import UsageError
from gpunode.text import escaped

MAX_OPTION = 80
"""Characters of an option in a message."""


def options(name: str) -> list[str]:
    """The options of a command."""
    return [option(path, field) for path, field in leaves(settings_of(name).model_fields)]


def refuse_unknown(name: str, given: Iterable[str]) -> None:
    """Raise ``UsageError`` for an option that the command lacks: who has it, or which is meant."""
    own = options(name)
    for argument in given:
        if argument == "--":
            return
        wanted = argument.partition("=")[0].replace("--no-", "--")
        if not wanted.startswith("--") or wanted in (*own, "--help"):
            continue
        form = _format(wanted, settings_of(name))
        having = [command for command in COMMANDS if wanted in options(command)]
        if having:
            raise UsageError(
                f"{wanted}: `gpunode {name}` has no such option; "
                f"{f'{form}; ' if form else ''}these commands have it: {', '.join(having)}"
            )
        typed = escaped(argument.partition("=")[0], MAX_OPTION)
        said = form or hint(wanted, own).strip() or f"`gpunode {name} --help` lists its own"
        raise UsageError(f"{typed}: `gpunode {name}` has no such option; {said}")


def _format(wanted: str, kind: type[CommandSettings]) -> str:
    """How to ask for a format that somebody takes for an option; empty if it is none."""
    fields = kind.model_fields
    form = wanted.removeprefix("--")
    if not {"format", "output"} <= fields.keys() or form not in get_args(
        fields["format"].annotation
    ):
        return ""
    return f"say --format={form} --output=FILE"
