"""How ``gpunode demo`` shows incidents: a table drawn over itself in a terminal, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpunode.cli.table import IN_PLAIN_TEXT, Row, rows, table
from gpunode.loop import Loop
from gpunode.node.tape import TapeNode
from gpunode.text import printable
from gpunode.verdict.findings import in_a_sentence, status

PROGRESS = 1.0
"""Seconds between two lines that say how far an incident has played."""

LONGEST_LINE = 1000
"""Characters of a line."""


class Show(Protocol):
    """Shows incidents, one after the other."""

    def playing(self, tape: TapeNode, loop: Loop) -> None:
        """Show an incident so far; called when it begins, and many times a second."""

    def played(self, tape: TapeNode, loop: Loop) -> None:
        """Show an incident that has played to its end."""

    def ended(self) -> None:
        """Show what remains after the last incident."""


@contextmanager
def showing(caption: str) -> Iterator[Show]:
    """Shows incidents as the standard output can; the caption says where else they are shown."""
    console = Console()
    if sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            yield Drawn(live, caption)
    else:
        print(caption)
        yield Written()


class Drawn:
    """Draws one table of all incidents over itself."""

    def __init__(self, live: Live, caption: str) -> None:
        self.live = live
        self.caption = caption
        self.done: list[Row] = []

    def playing(self, tape: TapeNode, loop: Loop) -> None:
        # The last that fit: what has scrolled off a terminal cannot be drawn anew.
        fitting = max(1, self.live.console.height - 4)
        shown = [*self.done, *rows(loop, tape.name)][-fitting:]
        drawn = table(shown, self.caption) if shown else Text(self.caption)
        self.live.update(drawn, refresh=True)

    def played(self, tape: TapeNode, loop: Loop) -> None:
        self.done += rows(loop, tape.name)

    def ended(self) -> None:
        self.live.update(table(self.done, self.caption))  # all of them, when ``live`` ends
        self.done = []


class Written:
    """Writes lines without control characters: for a pipe, a log and a dumb terminal."""

    def __init__(self) -> None:
        self.console = Console(force_terminal=False, color_system=None)
        self.said = -PROGRESS

    def playing(self, tape: TapeNode, loop: Loop) -> None:  # noqa: ARG002
        if time.monotonic() - self.said < PROGRESS:
            return
        self.said = time.monotonic()
        print(
            f"{printable(tape.name, LONGEST_LINE)}: {tape.clock.now:.0f} of {tape.end:.0f} s played"
        )

    def played(self, tape: TapeNode, loop: Loop) -> None:
        with self.console.capture() as drawn:
            self.console.print(table(rows(loop, tape.name), columns=IN_PLAIN_TEXT))
        for line in drawn.get().splitlines():
            print(f"  {line.rstrip()}")
        print(f"{printable(f'{tape.name}: {in_a_sentence(status(loop))}', LONGEST_LINE)}\n")
        self.said = -PROGRESS

    def ended(self) -> None:
        """Nothing: every incident has been written."""
