"""``gpunode completion``: a script with which a shell completes commands, options and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from gpunode.cli import streams
from gpunode.cli.commands import COMMANDS
from gpunode.cli.loader import settings_of
from gpunode.cli.settings.completion import CompletionSettings
from gpunode.config.fields import leaves, option
from gpunode.recorded import STORIES

PROGRAM = "gpunode"


@dataclass(frozen=True, slots=True)
class CommandWords:
    """What a command takes: words in its place, and options with the values that they may have."""

    name: str
    says: str
    words: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    """Empty for values that cannot be listed: files, numbers, addresses."""

    flags: frozenset[str]
    """The options that take no value."""


def complete(settings: CompletionSettings) -> None:
    """Print the script of a shell."""
    with streams.printing():
        print(SHELLS[settings.shell](list(commands())), end="")


def commands() -> Iterator[CommandWords]:
    """What each command takes, from its settings."""
    for name, command in COMMANDS.items():
        words: tuple[str, ...] = ()
        options: dict[str, tuple[str, ...]] = {"--help": ()}
        flags = {"--help"}
        for path, field in leaves(settings_of(name).model_fields):
            found = option(path, field)
            if field.annotation is bool:
                both = {found, f"--no-{found.removeprefix('--')}"}
                options |= dict.fromkeys(sorted(both), ())
                flags |= both
            elif found.startswith("--"):
                options[found] = _choices(field.annotation)
            else:
                words += _choices(field.annotation)
        if name == "demo":
            words += stories()
        yield CommandWords(name, command.says, words, options, frozenset(flags))


def stories() -> tuple[str, ...]:
    """The incidents of the demo."""
    return tuple(sorted(path.name.partition(".")[0] for path in STORIES.glob("*.jsonl.gz")))


def _choices(kind: Any) -> tuple[str, ...]:
    """The values that a setting may have; empty if they cannot be listed."""
    if get_origin(kind) is Literal:
        return tuple(str(value) for value in get_args(kind))
    return tuple(value for one in get_args(kind) if one is not NoneType for value in _choices(one))


def bash(found: list[CommandWords]) -> str:
    """For bash; files are completed where there is no list of values."""
    values, words = [], []
    for one in found:
        for name, choices in one.options.items():
            if name not in one.flags:
                of = f"-W '{' '.join(choices)}'" if choices else "-f"
                values.append(
                    f"""    '{one.name} {name}') COMPREPLY=($(compgen {of} -- "$word")); return;;"""
                )
        of = f"-W '{' '.join(one.words)}'" if one.words else "-f"
        words.append(
            f"    {one.name}) options='{' '.join(one.options)}'\n"
            f"""      COMPREPLY=($(compgen {of} -- "$word"));;"""
        )
    return "\n".join(
        [
            "_gpunode() {",
            "  local options='' command=run",
            '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            "  # In COMP_WORDS, --format=html is three words.",
            '  if [[ $word == "=" ]]; then',
            "    word=''",
            '  elif [[ $before == "=" ]]; then',
            '    before="${COMP_WORDS[COMP_CWORD-2]}"',
            "  fi",
            "  COMPREPLY=()",
            "  if ((COMP_CWORD == 1)) && [[ $word != -* ]]; then",
            f"""    COMPREPLY=($(compgen -W '{" ".join(one.name for one in found)}' -- "$word"))""",
            "    return",
            "  fi",
            '  [[ ${COMP_WORDS[1]} != -* ]] && command="${COMP_WORDS[1]}"',
            '  case "$command $before" in',
            *values,
            "  esac",
            '  case "$command" in',
            *words,
            "  esac",
            """  [[ $word == -* ]] && COMPREPLY=($(compgen -W "$options" -- "$word"))""",
            "  return 0",
            "}",
            "complete -o filenames -F _gpunode gpunode",
            "",
        ]
    )


def zsh(found: list[CommandWords]) -> str:
    """For zsh, by its way to use the completions of bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(found)}"


def fish(found: list[CommandWords]) -> str:
    """For fish."""
    no_command = f"not __fish_seen_subcommand_from {' '.join(one.name for one in found)}"
    lines = []
    for one in found:
        says = one.says.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c {PROGRAM} -n '{no_command}' -f -a {one.name} -d '{says}'")
        within = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {one.name}'"
        if one.words:
            lines.append(f"{within} -f -a '{' '.join(one.words)}'")
        for name, values in one.options.items():
            takes = "" if name in one.flags else f" -x -a '{' '.join(values)}'" if values else " -r"
            lines.append(f"{within} -l {name.removeprefix('--')}{takes}")
    return "\n".join([*lines, ""])


SHELLS: dict[str, Callable[[list[CommandWords]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
