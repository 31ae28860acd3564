"""``gpunode top``: the GPUs of a running daemon, in a terminal, live.

It asks the daemon over HTTP, as the page does, so it needs neither a driver nor a privilege.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpunode.cli import streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.daemon import DaemonAddress, DaemonError, ask
from gpunode.cli.settings.top import TopSettings
from gpunode.cli.table import (
    MAX_TEXT,
    NODE_COLUMNS,
    URGENCIES,
    Row,
    does,
    fitting,
    row,
    table,
)
from gpunode.export.web.node import GpuNow, NodeNow
from gpunode.mistake import UsageError
from gpunode.source import Met
from gpunode.text import lasting, printable
from gpunode.verdict.case import Evidence
from gpunode.verdict.findings import Finding
from gpunode.verdict.guidance import URGENCIES as ORDER

FINDINGS = 3
"""Findings above the table; the page has them all."""

OPENED_FACTS = 2
"""The lines about a GPU, its owner and process that are shown before evidence is cut."""

KEYS: dict[str, tuple[str, Callable[[Row], tuple[float, str]]]] = {
    "g": ("GPU", lambda _: (0.0, "")),
    "u": ("urgency", lambda one: (ORDER.index(one.urgency), "")),
    "w": ("watts", lambda one: (-(one.watts or 0.0), "")),
    "m": ("memory", lambda one: (-(one.memory or 0.0), "")),
    "o": ("owner", lambda one: (0.0, one.owner)),
}
"""What each key sorts by; rows that are equal keep the order of the GPUs."""

HELP = (
    "  ".join(f"{key}: by {name}" for key, (name, _) in KEYS.items())
    + "  r: reverse  /: only with  Enter: evidence  q: quit"
)

ESCAPE, ENTER, RUBOUT, ENDS = "\x1b", "\r\n", "\x7f\b", "\x03\x04"
MOVES = {
    f"{ESCAPE}[A": -1,
    f"{ESCAPE}[B": 1,
    f"{ESCAPE}[5~": -8,
    f"{ESCAPE}[6~": 8,
    "k": -1,
    "j": 1,
}
"""What each key moves the choice by: arrows, page up and down, and as in ``less``."""

DEGREES = "degrees Celsius"
"""Begins the meaning of a temperature."""

PIPE_WIDTH = 160
"""Columns of the table where no terminal says how many there are."""


@dataclass(slots=True)
class ViewState:
    """What the user has asked to see."""

    key: str = "g"
    backwards: bool = False
    place: int = 0
    """Of the GPU that is chosen, in the order in which they are shown."""

    opened: bool = False
    """Whether it shows what is known of that GPU instead of all."""

    wanted: str = ""
    """What the words of a GPU must have to be shown."""

    typing: bool = False

    def strike(self, struck: str) -> bool:
        """Take what was struck; whether it tells to quit."""
        if struck in MOVES and not self.typing:
            self.place = max(0, self.place + MOVES[struck])
            return False
        if struck == ESCAPE:
            if not (self.typing or self.opened or self.wanted):
                return True
            self.typing = self.opened = False
            self.wanted = ""
            return False
        if struck.startswith(ESCAPE):
            return False
        return any(self._letter(one) for one in struck)

    def _letter(self, one: str) -> bool:
        if one in ENDS:
            return True
        if self.typing:
            if one in ENTER:
                self.typing = False
            elif one in RUBOUT:
                self.wanted = self.wanted[:-1]
            elif one.isprintable():
                self.wanted, self.place = self.wanted + one, 0
        elif one == "q":
            return True
        elif one == "/":
            self.typing, self.wanted = True, ""
        elif one in ENTER:
            self.opened = not self.opened
        elif one in KEYS:
            self.key = one
        elif one == "r":
            self.backwards = not self.backwards
        elif one in MOVES:
            self.place = max(0, self.place + MOVES[one])
        return False

    def shown(self, gpus: Iterable[GpuNow]) -> list[GpuNow]:
        """The GPUs that are wanted, in their order."""
        words = self.wanted.lower()
        _, order = KEYS[self.key]
        found = [
            gpu
            for gpu in gpus
            if words in " ".join((gpu.label, gpu.does, gpu.serves, *gpu.owners)).lower()
        ]
        found.sort(key=lambda gpu: order(row(gpu)), reverse=self.backwards)
        self.place = min(self.place, max(0, len(found) - 1))
        return found


def top(settings: TopSettings) -> None:
    """Show the GPUs of a running daemon until the user quits."""
    server = DaemonAddress.of(settings)
    signal.signal(signal.SIGTERM, _quit)  # so that the terminal is left as it was
    signal.signal(signal.SIGHUP, _quit)
    with streams.printing():
        show(server, settings.interval, settings.json_output)


def _quit(*_: Any) -> NoReturn:
    sys.exit(0)


def show(server: DaemonAddress, interval: float, as_json: bool = False) -> None:
    """Show the node until the user quits; once, where nobody could. Raises ``UsageError``."""
    console = PipedConsole()
    try:
        node = ask(server)
    except DaemonError as error:
        raise UsageError(
            f"{server.url}: {error}; start one with `gpunode run`, or name another with --url"
        ) from error
    if as_json:
        print(node.model_dump_json(indent=2))
        return
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    if not (console.is_terminal and sys.stdin.isatty()) or console.is_dumb_terminal:
        console.print(screen(node, ViewState(place=-1), "", console))
        return
    chosen, since = ViewState(), time.time()
    with keys() as pressed, Live(console=console, auto_refresh=False, screen=True) as live:
        trouble = ""
        while True:
            shown = screen(node, chosen, trouble, console, console.height)
            live.update(shown, refresh=True)
            struck = pressed(interval)
            if struck:
                if chosen.strike(struck):
                    return
                continue
            try:
                node, trouble, since = ask(server), "", time.time()
            except DaemonError as error:
                at = time.strftime("%H:%M:%S", time.localtime(since))
                trouble = f"No answer since {at} ({error}). This is what was seen then."


def _duration(gpu: GpuNow, longer: str) -> str:
    """For how long a GPU does what it does, in a few characters; empty if that is not known."""
    if gpu.lasts_seconds is None:
        return ""
    return f"{longer if gpu.lasts_longer else ''}{lasting(gpu.lasts_seconds)}"


def screen(
    node: NodeNow,
    chosen: ViewState,
    trouble: str,
    console: Console,
    height: int = 0,
) -> Group:
    """What is wrong, and below it every GPU, or those around the chosen one that have room."""
    name, _ = KEYS[chosen.key]
    gpus = chosen.shown(node.gpus)
    head = Text(printable(node.node or "this node", MAX_TEXT), style="bold")
    head.append(time.strftime("  %H:%M:%S", time.localtime(node.time)), style="dim")
    alarm = [Text(trouble, style="bold red")] if trouble else []
    if chosen.opened and gpus:
        return _gpu_detail(gpus[chosen.place], Group(head, *alarm, Text()), console, height)
    rows = [
        row(gpu, _duration(gpu, ">"), bool(height) and at == chosen.place)
        for at, gpu in enumerate(gpus)
    ]
    tape = f"Played from a tape: {node.playing.title}" if node.playing else ""
    played = [Text(tape, style="cyan")] if tape else []
    wrong = [_finding(one) for one in node.findings[:FINDINGS]]
    ways = f"{', reversed' if chosen.backwards else ''}"
    only = f", only with “{printable(chosen.wanted, MAX_TEXT)}”" if chosen.wanted else ""
    only = f"{only or ', only with'}▏" if chosen.typing else only
    once = chosen.place < 0  # no key is read
    caption = "" if once else f"sorted by {name}{ways}{only}.  {HELP}"
    calm = [Text(node.calm, style="bold")] if node.calm else []
    met = [Text(_unread_note(node.unread), style="yellow")] if node.unread else []
    ledgers = [Text(each, style="dim") for each in _accuracy_notes(node.gpus)]
    above = Group(head, *played, *alarm, *calm, *wrong, *met, *ledgers, Text())
    columns = fitting(NODE_COLUMNS, console.width, rows)
    if height:
        lines = console.render_lines(Group(above, table(rows, caption, columns)))
        if len(lines) > height:
            # The longest caption that can come, so that the count of lines holds.
            cut = f"{len(rows)} to {len(rows)} of {len(rows)} GPUs, {caption}"
            lines = console.render_lines(Group(above, table(rows, cut, columns)))
            room = max(1, height - len(lines) + len(rows))
            first = min(max(0, chosen.place - room // 2), len(rows) - room)
            caption = f"{first + 1} to {first + room} of {len(rows)} GPUs, {caption}"
            rows = rows[first : first + room]
    return Group(above, table(rows, caption, columns))


def _gpu_detail(gpu: GpuNow, above: Group, console: Console, height: int) -> Group:
    """What is known of a GPU, as far as it has room: above all what to do and how to go on."""
    lasts = _duration(gpu, "more than ")
    title = f"GPU {gpu.label} is {does(gpu)}{f' (for {lasts})' if lasts else ''}"
    told = [Text(printable(title, MAX_TEXT), style=URGENCIES[gpu.urgency])]
    if gpu.remedy:
        told.append(Text(f"  {printable(gpu.remedy, 2 * MAX_TEXT).replace('`', '')}"))
    evidence, facts = list(map(_evidence, gpu.evidence)), list(_facts(gpu))
    cut = 0
    while True:
        left_out = f"{cut} left out.  " if cut else ""
        keys = Text(f"{left_out}Enter: all GPUs  up, down: another  q: quit", style="dim")
        shown = Group(above, *told, *evidence, *facts, keys)
        lines = console.render_lines(shown) if height else []
        if len(lines) <= height or not (evidence or facts):
            return shown
        (facts if len(facts) > OPENED_FACTS else evidence or facts).pop()
        cut += 1


def _evidence(one: Evidence) -> Text:
    """A figure behind a verdict; without it where only that it is so counts."""
    if one.meaning.startswith(DEGREES):
        heat = one.meaning.replace(DEGREES, f"{one.value:.0f} °C")
        return Text(f"  because {printable(heat, MAX_TEXT)}", style="dim")
    form = ".0%" if one.meaning.startswith("share") else ".3g"
    value, limit = (f"{each:{form}}".replace("%", " %") for each in (one.value, one.threshold))
    below = f" (limit {limit})" if one.threshold else ""
    figures = "" if one.value == one.threshold else f": {value}{below}"
    return Text(f"  because {printable(one.meaning, MAX_TEXT)}{figures}", style="dim")


def _facts(gpu: GpuNow) -> Iterator[Text]:
    """Who holds a GPU, and what was read of it."""
    states = ", ".join(
        f"{state} {share:.0%}" for state, share in gpu.states.items() if share > 0.005
    )
    heat = f"{gpu.temperature_celsius:.0f} °C" if gpu.temperature_celsius is not None else ""
    watts = f"{gpu.power_watts:.0f} W" if gpu.power_watts is not None else ""
    ranks = f"rank {', '.join(gpu.ranks)}" if gpu.ranks else ""
    for what, value in (
        ("owner", ", ".join(filter(None, (*gpu.owners, ranks)))),
        ("serves", gpu.serves),
        ("processes", ", ".join(gpu.pids)),
        ("heat and power", ", ".join(filter(None, (heat, watts)))),
        ("now", states),
        ("model", gpu.name),
        ("uuid", gpu.uuid),
    ):
        if value:
            yield Text(f"  {what:15} {printable(value, MAX_TEXT)}")


def _unread_note(unread: Sequence[Met]) -> str:
    """What was met and is not understood, or was left out, in a line."""
    said = []
    for words, bound in (("Met and not understood", False), ("Left out", True)):
        kinds = [f"{met.source} {met.what}" for met in unread if met.bound is bound]
        if kinds:
            said.append(f"{words}: {', '.join(kinds).replace('_', ' ')}")
    return printable(f"{'. '.join(said)}; see gpunode doctor.", MAX_TEXT)


def _accuracy_notes(gpus: Iterable[GpuNow]) -> Iterator[str]:
    """The GPUs whose ledger is less accurate, and why; a line for all that share a reason."""
    by_reason: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.less_accurate:
            by_reason.setdefault(gpu.less_accurate, []).append(gpu.label)
    for reason, labels in by_reason.items():
        said = f"GPU {', '.join(labels)}: {reason.replace('`', '')}."
        yield printable(said, MAX_TEXT)


def _finding(one: Finding) -> Text:
    text = Text(printable(one.title, MAX_TEXT), style=URGENCIES[one.urgency])
    told = " ".join(filter(None, (one.remedy, one.gain)))
    remedy = printable(told, 2 * MAX_TEXT).replace("`", "")
    text.append(f"\n  {remedy}", style="default not bold")
    return text


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Read keys as they are struck: a function that waits for one for so many seconds."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 8).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
