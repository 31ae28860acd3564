"""``gpunode replay``: plays a tape."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from gpunode.cli import streams
from gpunode.cli.boxed import boxed
from gpunode.cli.console import PipedConsole
from gpunode.cli.meant import hint
from gpunode.cli.server import server
from gpunode.cli.settings.replay import ReplaySettings
from gpunode.cli.table import rows, table
from gpunode.export.exposition import Exposition
from gpunode.loop import Loop
from gpunode.loop.playing import NowPlaying
from gpunode.mistake import UsageError
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS, STORIES, named, names
from gpunode.sources import watch


def replay(settings: ReplaySettings) -> None:
    """Play one tape and print the result."""
    tape = next(iter(named(settings.file, INCIDENTS, STORIES)), settings.file)
    if not tape.exists():
        known = names(INCIDENTS)
        raise UsageError(
            f"{settings.file}: {hint(str(settings.file), known)}neither a tape nor one of "
            f"{', '.join(known)}"
        )
    node = TapeNode(tape)
    played, box = boxed(node, settings.incident, settings.stacks)
    loop = watch(played, settings, *box, NowPlaying(node))
    if settings.speed:
        _, _, serving = server(settings.web, lambda: loop)
        threading.Thread(target=serving, daemon=True).start()
    for _ in play(loop, node, settings.speed, settings.times):
        pass
    with streams.printing():
        if settings.print == "metrics":
            print(Exposition(loop.samples).encode("")[0].decode(), end="")
        else:
            PipedConsole().print(table(rows(loop, node.name), node.comment))


def play(loop: Loop, node: TapeNode, speed: float, times: int) -> Iterator[None]:
    """Play a tape at a speed (0: no pauses); yields ten times a second and at the end."""
    begin = shown = time.monotonic()
    for moment in loop.replay(node.clock, node.end * times):
        while speed and (wait := begin + moment / speed - time.monotonic()) > 0:
            time.sleep(min(wait, 0.1))
        if time.monotonic() - shown > 0.1:
            shown = time.monotonic()
            yield
    yield
