"""How ``gpunode demo`` shows incidents: a table drawn over itself in a terminal, else lines."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpunode.cli import streams
from gpunode.cli.meant import hint
from gpunode.cli.server import server
from gpunode.cli.settings.demo import DemoSettings
from gpunode.cli.stories import Cast, Scene, order_tapes, utilisation
from gpunode.cli.table import (
    GPU,
    NODE_COLUMNS,
    NOW,
    STEP,
    TIME_SHARES,
    WATTS,
    Row,
    fitting,
    row,
    rows,
    table,
)
from gpunode.export.web.node import node
from gpunode.mistake import UsageError
from gpunode.recorded import INCIDENTS, STORIES, named
from gpunode.text import printable
from gpunode.verdict.findings import status, summary_sentence

MAX_LINE = 1000
"""Characters of a line."""

PROGRESS_INTERVAL = 1200
"""Seconds before an incident that are filled in between two lines that say so."""

SETTLED = 5.0
"""Seconds of a tape for which the same must be said before it is a caption. What explains a loss is
read every few seconds, so what is said first may not last."""

INDENT = "  "
PLAIN_COLUMNS = (GPU, NOW, TIME_SHARES, WATTS, STEP)
"""The columns of a table without colours."""


def play(settings: DemoSettings) -> None:
    """Play incidents, one after the other, then start over."""
    logging.getLogger("gpunode").setLevel(logging.ERROR)  # a line would go through the table
    tapes = named(settings.incident, STORIES, INCIDENTS)[:1]
    tapes = tapes or order_tapes(settings.incident.glob("*.jsonl.gz"))
    if not tapes:
        known = ", ".join(path.name.partition(".")[0] for path in order_tapes(STORIES.glob("*.gz")))
        close = hint(str(settings.incident), known.split(", "))
        raise UsageError(
            f"{settings.incident}: {close}neither a folder of tapes (*.jsonl.gz) nor one of {known}"
        )
    web, _, serving = server(settings.web, lambda: cast.loop)
    speed = "" if settings.speed == 1.0 else f", at {settings.speed:g} times real speed"
    with streams.printing(), showing(f"{web.here} shows the same as a page{speed}") as show:
        cast = Cast(settings, tapes)  # which keeps a core busy from here on
        threading.Thread(target=serving, daemon=True).start()
        while True:
            for scene in cast.scenes(show.preparing):
                show.playing(scene)
                for _ in scene.play(settings.speed):
                    show.playing(scene)
                show.played(scene)
            if settings.once:
                return


class Show(Protocol):
    """Shows incidents, one after the other."""

    def preparing(self, scene: Scene) -> None:
        """Say that the time before an incident is being filled in."""

    def playing(self, scene: Scene) -> None:
        """Show an incident so far; called when it begins, and many times a second."""

    def played(self, scene: Scene) -> None:
        """Show an incident that has played to its end."""


@contextmanager
def showing(caption: str) -> Iterator[Show]:
    """Shows incidents as the standard output can; the caption says where else they are shown."""
    console = Console()
    if sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield LiveShow(live, caption)
            live.update(Text(), refresh=True)  # what the caption says is over
    else:
        print(caption, flush=True)
        yield LineShow()


class Captions:
    """What is said of a scene: a line whenever it changes to something that lasts."""

    def __init__(self) -> None:
        self.scene: Scene | None = None
        self.last = self.coming = self.line = ""
        self.since = 0.0
        """Since when (of the tape) that which is coming is said."""

    def begun(self, scene: Scene) -> Iterator[str]:
        """What happens in a scene and what to look at, if that has not been said yet."""
        if scene is not self.scene:
            self.scene = scene
            self.last = self.coming = ""
            yield scene.title
            if scene.tape.look:
                yield f"  Look at this: {scene.tape.look}"

    def new(self, scene: Scene, ended: bool = False) -> Iterator[str]:
        """What has not been said yet; at the end also what has not lasted."""
        yield from self.begun(scene)
        clock, said = scene.tape.clock, scene.says()
        if said and said != self.coming:
            self.coming, self.since = said, clock.now
            at = time.strftime("%H:%M:%S", time.localtime(clock.time()))
            smi = utilisation(scene.loop)
            self.line = f"  {at}  nvidia-smi says {smi}; gpunode says: {said}"
        lasts = ended or not self.last or clock.now - self.since >= SETTLED
        if self.coming != self.last and lasts:
            self.last = self.coming
            yield self.line


class LiveShow:
    """Writes what is said, and below it draws the GPUs of the incident over themselves."""

    def __init__(self, live: Live, caption: str) -> None:
        self.live = live
        self.caption = caption
        self.captions = Captions()

    def preparing(self, scene: Scene) -> None:
        self._say(self.captions.begun(scene))
        minutes = f"{scene.tape.clock.now / 60:.0f} of {scene.tape.lead / 60:.0f} min"
        said = f"Filling in the time before it: {minutes}"
        self.live.update(Group(Text(said), Text(self.caption, style="dim")), refresh=True)

    def _say(self, lines: Iterable[str]) -> None:
        for line in lines:
            style = "bold" if not line.startswith(" ") else ""
            self.live.console.print(Text(printable(line, MAX_LINE), style=style))

    def playing(self, scene: Scene) -> None:
        self._say(self.captions.new(scene))
        self.live.update(Group(Text(), self._table(scene, self.caption)), refresh=True)

    def played(self, scene: Scene) -> None:
        self._say(self.captions.new(scene, ended=True))
        self.live.console.print(Text(), self._table(scene), Text())
        self.live.update(Text(self.caption, style="dim"), refresh=True)

    def _table(self, scene: Scene, caption: str = "") -> Table:
        console, rows = self.live.console, _rows(scene)
        fits = max(1, console.height - 4)
        return table(rows[:fits], caption, fitting(NODE_COLUMNS, console.width, rows))


class LineShow:
    """Writes lines without control characters: for a pipe, a log and a dumb terminal."""

    def __init__(self) -> None:
        self.console = Console(force_terminal=False, color_system=None)
        self.captions = Captions()
        self.told: tuple[Scene, int] | None = None

    def preparing(self, scene: Scene) -> None:
        for line in self.captions.begun(scene):
            print(printable(line, MAX_LINE))
        filled = int(scene.tape.clock.now // PROGRESS_INTERVAL)
        if (scene, filled) != self.told:
            self.told = scene, filled
            whole = f"{scene.tape.lead / 60:.0f} minutes"
            so_far = f": {filled * PROGRESS_INTERVAL / 60:.0f} so far" if filled else ""
            print(f"  (filling in the {whole} before it{so_far})", flush=True)

    def playing(self, scene: Scene, ended: bool = False) -> None:
        for line in self.captions.new(scene, ended):
            print(printable(line, MAX_LINE))

    def played(self, scene: Scene) -> None:
        self.playing(scene, ended=True)
        with self.console.capture() as drawn:
            rows, width = _rows(scene), self.console.width - len(INDENT)
            columns = fitting(PLAIN_COLUMNS, width, rows)
            self.console.print(table(rows, columns=columns), width=width)
        for line in drawn.get().splitlines():
            print(f"{INDENT}{line.rstrip()}")
        said = summary_sentence(status(scene.loop))
        print(f"{printable(f'{scene.tape.name}: {said}', MAX_LINE)}\n")


def _rows(scene: Scene) -> list[Row]:
    """Every GPU now; for a tape without a lead, with the states of all its time."""
    now = [row(gpu) for gpu in node(scene.loop).gpus]
    if scene.tape.lead:
        return now
    whole = {one.gpu: one for one in rows(scene.loop, scene.tape.name)}
    return [
        replace(one, shares=whole[one.gpu].shares, watts=whole[one.gpu].watts)
        if one.gpu in whole
        else one
        for one in now
    ]
