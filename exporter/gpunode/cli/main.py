"""Runs the command that the user names, and loads only what that uses."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from gpunode import __version__
from gpunode.cli import streams
from gpunode.cli.commands import COMMANDS, overview
from gpunode.cli.extras import needing
from gpunode.mistake import UsageError

GARBAGE = 10_000
"""Objects more than at the last collection from which there is another. Python's own 700 are there
with each read of a GPU, and every millisecond of the start; nearly all is freed without, as only
tracebacks and connections refer to themselves."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; on misuse, print one line to standard error and exit with 2."""
    streams.open_missing()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given in (["--version"], ["version"]):
            with streams.printing():
                print("\n".join(version()))
        elif given in (["--help"], ["-h"], ["help"]):
            with streams.printing():
                print(overview())
        else:
            name = given.pop(0) if given and not given[0].startswith("-") else "run"
            _run(name, given)
    except UsageError as error:
        streams.complain(f"gpunode: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def version() -> list[str]:
    """The version, and whether only the client for training code is installed."""
    said = [f"gpunode {__version__}"]
    if find_spec("pydantic_settings") is None:
        only = "Only the client for training code is here. For the daemon"
        said.append(f"{only}: pip install 'gpunode[exporter]'")
    return said


def _run(name: str, given: list[str]) -> None:
    """Run a command with its options. Raises ``UsageError``."""
    if name not in COMMANDS:
        from gpunode.cli.meant import hint

        raise UsageError(
            f"{name}: unknown command; {hint(name, COMMANDS)}choose from {', '.join(COMMANDS)}"
        )
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
    with needing(COMMANDS[name].extra, name):
        import logging
        from pkgutil import resolve_name

        from gpunode.cli import loader, options
        from gpunode.cli.log import StandardError

        options.refuse_unknown(name, given)
        with streams.printing():  # the help
            settings = loader.load(loader.settings_of(name), f"gpunode {name}", given)
        logging.basicConfig(level=settings.log.level.upper(), handlers=[StandardError()])
        command = resolve_name(f"gpunode.cli.{COMMANDS[name].does}")
    command(settings)
