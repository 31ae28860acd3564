"""Where tables are printed."""

from __future__ import annotations

from rich.console import Console


class PipedConsole(Console):
    """A console that lets its user find out that the pipe is closed: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
