"""``gpunode top``: the GPUs of a running daemon, in a terminal, live.

It asks the daemon over HTTP, as the page does, so it needs neither a driver nor a privilege.
"""

from __future__ import annotations

import json
import os
import select
import ssl
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, TypeAdapter
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpunode.cli.table import (
    LONGEST_TEXT,
    OF_A_NODE,
    URGENCIES,
    PipedConsole,
    Row,
    fitting,
    row,
    table,
)
from gpunode.config import AdmissionSettings, UsageError
from gpunode.export.web.node import GpuNow, NodeNow
from gpunode.report.fetch import NoWholeAnswer, fetched
from gpunode.source import Met
from gpunode.text import printable
from gpunode.verdict.advice import URGENCIES as ORDER
from gpunode.verdict.case import Evidence
from gpunode.verdict.findings import Finding

ANSWER_TIMEOUT = 5.0
"""Seconds for an answer, during which no key is read."""

LARGEST_ANSWER = 16 << 20
"""Bytes of an answer that can be of a daemon."""

LONGEST_STRING = 4096
"""Characters of a text in an answer."""

LARGEST_FIGURE = 1e15
"""Of an answer: a petabyte, or a moment in a million years."""

FINDINGS = 3
"""Findings above the table; the page has them all."""

OPENED_FACTS = 2
"""What is told of an opened GPU, whose it is and which process, before evidence is left out."""

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

NOT_OURS = "what answers is no gpunode of this version"


IN_A_PIPE = 160
"""Columns of the table where no terminal says how many there are."""


class NoDaemon(Exception):
    """No daemon answered; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """Where a daemon answers, and what it takes to be let in."""

    url: str
    known: tuple[str, str] | None = field(default=None, repr=False)
    """The name and password of a user."""

    tls: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    @staticmethod
    def of(settings: AdmissionSettings) -> DaemonAddress:
        """What the settings say. Raises ``UsageError`` for a file that cannot be used."""
        url = settings.address
        known = None
        try:
            if settings.password_file:
                known = settings.username, settings.password_file.read_text().rstrip("\n")
            if not url.startswith("https:"):
                return DaemonAddress(url, known)
            for file in filter(None, (settings.ca_file, settings.cert_file, settings.key_file)):
                file.read_bytes()  # the error of ssl does not name the file
            tls = ssl.create_default_context(cafile=settings.ca_file)
            if settings.cert_file:
                tls.load_cert_chain(settings.cert_file, settings.key_file, lambda: "")
        except ssl.SSLError as error:
            files = ", ".join(str(f) for f in (settings.ca_file, settings.cert_file) if f)
            raise UsageError(f"{files}: no certificate, or not of this key") from error
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{settings.password_file}: not UTF-8") from error
        return DaemonAddress(url, known, tls)

    def get(self, path: str, timeout: float) -> bytes:
        """What the daemon answers within so many seconds. Raises ``NoDaemon``."""
        client = httpx2.Client(auth=self.known, verify=self.tls)
        try:
            response, body = fetched(
                client, "GET", f"{self.url}{path}", timeout=timeout, largest=LARGEST_ANSWER
            )
        except NoWholeAnswer as error:
            raise NoDaemon(f"no daemon answers: {error}") from error
        except (httpx2.RemoteProtocolError, httpx2.DecodingError) as error:
            # A server with TLS hangs up on clients without it, or without the certificate it wants.
            why = NOT_OURS
            if "disconnected" in str(error):
                secure = self.url.startswith("https:")
                why = (
                    f"no daemon answers: {error}"
                    if secure
                    else f"{NOT_OURS}, or it has TLS: https://"
                )
            raise NoDaemon(why) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            words = printable(str(error) or type(error).__name__, LONGEST_TEXT)
            if "CERTIFICATE_VERIFY_FAILED" in words:
                words += "; --ca-file names the authority that signed it"
            raise NoDaemon(f"no daemon answers: {words}") from error
        finally:
            client.close()
        if response.is_redirect:
            where = printable(response.headers.get("location", ""), LONGEST_TEXT)
            raise NoDaemon(
                f"it redirects to {where}, which is not followed; give that if it is right"
            )
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            raise NoDaemon("it wants another --username and --password-file")
        if response.status_code != HTTPStatus.OK:
            raise NoDaemon(_refusal(response.status_code, body))
        return body


class _Refusal(BaseModel):
    """How FastAPI says why it does not answer."""

    detail: str


def _refusal(status: int, body: bytes) -> str:
    """Why there is no answer, in the words of the daemon where they say more than the status."""
    try:
        said = _Refusal.model_validate_json(body).detail
    except ValueError:
        said = ""
    if said in {"", *(one.phrase for one in HTTPStatus if one == status)}:
        return f"{NOT_OURS} ({status})"
    return printable(said, LONGEST_TEXT)


K = TypeVar("K")


def understood(answer: bytes, kind: type[K]) -> K:
    """An answer of a daemon, also of a newer one, with nothing in it that a terminal obeys.

    Raises ``NoDaemon``.
    """
    try:
        found = _harmless(json.loads(answer, parse_constant=float))
        return TypeAdapter(kind).validate_python(found)
    except (ValueError, RecursionError) as error:
        raise NoDaemon(NOT_OURS) from error


def _harmless(value: Any) -> Any:
    """A value of JSON with text that prints, and figures that can be. Raises ``ValueError``."""
    if isinstance(value, str):
        return printable(value, LONGEST_STRING)
    if isinstance(value, int | float):
        if not abs(value) < LARGEST_FIGURE:  # not NaN either
            raise ValueError("a figure beyond all that is measured")
        return value
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    if isinstance(value, dict):
        found = {printable(key, LONGEST_STRING): _harmless(one) for key, one in value.items()}
        if found.get("urgency", "note") not in ORDER:  # of a newer daemon
            found["urgency"] = "note"
        return found
    return value


@dataclass(slots=True)
class Chosen:
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


def show(server: DaemonAddress, interval: float, as_json: bool = False) -> None:
    """Show the node until the user quits; once, where nobody could. Raises ``UsageError``."""
    console = PipedConsole()
    try:
        node = ask(server)
    except NoDaemon as error:
        raise UsageError(
            f"{server.url}: {error}; start one with `gpunode run`, or name another with --url"
        ) from error
    if as_json:
        print(node.model_dump_json(indent=2))
        return
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = IN_A_PIPE
    if not (console.is_terminal and sys.stdin.isatty()) or console.is_dumb_terminal:
        console.print(screen(node, Chosen(place=-1), "", console))
        return
    chosen, since = Chosen(), time.time()
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
            except NoDaemon as error:
                at = time.strftime("%H:%M:%S", time.localtime(since))
                trouble = f"No answer since {at} ({error}). This is what was seen then."


def lasting(seconds: float) -> str:
    """A time in a few characters."""
    for most, unit, one in ((90, "s", 1), (5400, "min", 60)):
        if seconds < most:
            return f"{seconds / one:.0f} {unit}"
    return f"{seconds / 3600:.0f} h"


def _lasts(gpu: GpuNow, longer: str) -> str:
    """For how long a GPU does what it does, in a few characters; empty if that is not known."""
    if gpu.lasts_seconds is None:
        return ""
    return f"{longer if gpu.lasts_longer else ''}{lasting(gpu.lasts_seconds)}"


def ask(server: DaemonAddress) -> NodeNow:
    """The node now. Raises ``NoDaemon``."""
    return understood(server.get("/api/v1/node", ANSWER_TIMEOUT), NodeNow)


def screen(
    node: NodeNow,
    chosen: Chosen,
    trouble: str,
    console: Console,
    height: int = 0,
) -> Group:
    """What is wrong, and below it every GPU, or those around the chosen one that have room."""
    name, _ = KEYS[chosen.key]
    gpus = chosen.shown(node.gpus)
    head = Text(printable(node.node or "this node", LONGEST_TEXT), style="bold")
    head.append(time.strftime("  %H:%M:%S", time.localtime(node.time)), style="dim")
    alarm = [Text(trouble, style="bold red")] if trouble else []
    if chosen.opened and gpus:
        return _opened(gpus[chosen.place], Group(head, *alarm, Text()), console, height)
    rows = [
        row(gpu, _lasts(gpu, ">"), bool(height) and at == chosen.place)
        for at, gpu in enumerate(gpus)
    ]
    tape = f"Played from a tape: {node.playing.title}" if node.playing else ""
    played = [Text(tape, style="cyan")] if tape else []
    wrong = [_finding(one) for one in node.findings[:FINDINGS]]
    ways = f"{', reversed' if chosen.backwards else ''}"
    only = f", only with “{printable(chosen.wanted, LONGEST_TEXT)}”" if chosen.wanted else ""
    only = f"{only or ', only with'}▏" if chosen.typing else only
    once = chosen.place < 0  # no key is read
    caption = "" if once else f"sorted by {name}{ways}{only}.  {HELP}"
    calm = [Text(node.calm, style="bold")] if node.calm else []
    met = [Text(_unread(node.unread), style="yellow")] if node.unread else []
    ledgers = [Text(each, style="dim") for each in _less_accurate(node.gpus)]
    above = Group(head, *played, *alarm, *calm, *wrong, *met, *ledgers, Text())
    columns = fitting(OF_A_NODE, console.width, rows)
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


def _opened(gpu: GpuNow, above: Group, console: Console, height: int) -> Group:
    """What is known of a GPU, as far as it has room: above all what to do and how to go on."""
    lasts = _lasts(gpu, "more than ")
    title = f"GPU {gpu.label} is {gpu.does}{f' for {lasts}' if lasts else ''}"
    told = [Text(printable(title, LONGEST_TEXT), style=URGENCIES[gpu.urgency])]
    if gpu.remedy:
        told.append(Text(f"  {printable(gpu.remedy, 2 * LONGEST_TEXT).replace('`', '')}"))
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
    figures = "" if one.value == one.threshold else f": {one.value:.3g}, limit {one.threshold:.3g}"
    return Text(f"  because {printable(one.meaning, LONGEST_TEXT)}{figures}", style="dim")


def _facts(gpu: GpuNow) -> Iterator[Text]:
    """Who holds a GPU, and what was read of it."""
    states = ", ".join(f"{state} {share:.0%}" for state, share in gpu.states.items())
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
            yield Text(f"  {what:15} {printable(value, LONGEST_TEXT)}")


def _unread(unread: Sequence[Met]) -> str:
    """What was met and is not understood, or was left out, in a line."""
    said = []
    for words, bound in (("Met and not understood", False), ("Left out", True)):
        kinds = [f"{met.source} {met.what}" for met in unread if met.bound is bound]
        if kinds:
            said.append(f"{words}: {', '.join(kinds).replace('_', ' ')}")
    return printable(f"{'. '.join(said)}; see gpunode doctor.", LONGEST_TEXT)


def _less_accurate(gpus: Iterable[GpuNow]) -> Iterator[str]:
    """The GPUs whose ledger is less accurate, and why; a line for all that share a reason."""
    by_reason: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.less_accurate:
            by_reason.setdefault(gpu.less_accurate, []).append(gpu.label)
    for reason, labels in by_reason.items():
        said = f"GPU {', '.join(labels)}: {reason.replace('`', '')}."
        yield printable(said, LONGEST_TEXT)


def _finding(one: Finding) -> Text:
    text = Text(printable(one.title, LONGEST_TEXT), style=URGENCIES[one.urgency])
    told = " ".join(filter(None, (one.remedy, one.gain)))
    remedy = printable(told, 2 * LONGEST_TEXT).replace("`", "")
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
