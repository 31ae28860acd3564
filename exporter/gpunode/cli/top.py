"""``gpunode top``: the GPUs of a running daemon, in a terminal, live.

It asks the daemon over HTTP, as the page does, so it needs neither a driver nor a privilege.
"""

from __future__ import annotations

import base64
import http.client
import os
import select
import ssl
import sys
import termios
import time
import tty
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from pydantic import ValidationError
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpunode.cli.table import LONGEST_TEXT, OF_A_NODE, URGENCIES, Row, fitting, row, table
from gpunode.config import DaemonSettings, UsageError
from gpunode.export.web.node import GpuNow, NodeNow
from gpunode.source import Met
from gpunode.text import printable
from gpunode.verdict.advice import URGENCIES as ORDER
from gpunode.verdict.findings import Finding

ANSWER_TIMEOUT = 5.0
"""Seconds for an answer, during which no key is read."""

LARGEST_ANSWER = 16 << 20
"""Bytes of an answer that can be of a daemon."""

FINDINGS = 3
"""Findings above the table; the page has them all."""

KEYS: dict[str, tuple[str, Callable[[Row], tuple[float, str]]]] = {
    "g": ("GPU", lambda _: (0.0, "")),
    "u": ("urgency", lambda one: (ORDER.index(one.urgency), "")),
    "w": ("watts", lambda one: (-(one.watts or 0.0), "")),
    "m": ("memory", lambda one: (-(one.memory or 0.0), "")),
    "o": ("owner", lambda one: (0.0, one.owner)),
}
"""What each key sorts by; rows that are equal keep the order of the GPUs."""

HELP = "  ".join(f"{key}: by {name}" for key, (name, _) in KEYS.items()) + "  r: reverse  q: quit"


NOT_OURS = "what answers is no gpunode of this version"


class NoDaemon(Exception):
    """No daemon answered; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """Where a daemon answers, and what it takes to be let in."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None

    @staticmethod
    def of(settings: DaemonSettings) -> DaemonAddress:
        """What the settings say. Raises ``UsageError`` for a file that cannot be used."""
        url = (settings.url or settings.web.here).rstrip("/")
        headers = {}
        try:
            if settings.password_file:
                password = settings.password_file.read_text().rstrip("\n")
                known = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
                headers["Authorization"] = f"Basic {known}"
            if not url.startswith("https:"):
                return DaemonAddress(url, headers)
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
        return DaemonAddress(url, headers, tls)

    def get(self, path: str, timeout: float) -> bytes:
        """What the daemon answers within so many seconds. Raises ``NoDaemon``."""
        request = urllib.request.Request(f"{self.url}{path}", headers=dict(self.headers))  # noqa: S310 the settings allow http and https only
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.tls) as answer:  # noqa: S310
                return _body(answer, timeout)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.UNAUTHORIZED:
                raise NoDaemon("it wants another --username and --password-file") from error
            raise NoDaemon(f"{NOT_OURS} ({error.code})") from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            words = why.strerror if isinstance(why, OSError) and why.strerror else str(why)
            raise NoDaemon(f"no daemon answers: {printable(words, LONGEST_TEXT)}") from error
        except http.client.HTTPException as error:  # some, as a hang-up, are ``OSError``, too
            raise NoDaemon(NOT_OURS) from error


def show(server: DaemonAddress, interval: float) -> None:
    """Show the node until the user quits; once, where nobody could. Raises ``UsageError``."""
    console = Console()
    try:
        node = ask(server)
    except NoDaemon as error:
        raise UsageError(
            f"{server.url}: {error}; start one with `gpunode run`, or name another with --url"
        ) from error
    if not (console.is_terminal and sys.stdin.isatty()) or console.is_dumb_terminal:
        console.print(screen(node, "g", False, "", console))
        return
    key, backwards, since = "g", False, time.time()
    with keys() as pressed, Live(console=console, auto_refresh=False, screen=True) as live:
        trouble = ""
        while True:
            shown = screen(node, key, backwards, trouble, console, console.height)
            live.update(shown, refresh=True)
            struck = pressed(interval)
            if struck == "\x1b":
                return
            for one in struck if not struck.startswith("\x1b") else "":  # an arrow is no letter
                if one in ("q", "\x03", "\x04"):
                    return
                if one in KEYS:
                    key = one
                elif one == "r":
                    backwards = not backwards
            if struck:
                continue
            try:
                node, trouble, since = ask(server), "", time.time()
            except NoDaemon as error:
                at = time.strftime("%H:%M:%S", time.localtime(since))
                trouble = f"No answer since {at} ({error}). This is what was seen then."


def ask(server: DaemonAddress) -> NodeNow:
    """The node now. Raises ``NoDaemon``."""
    try:
        return NodeNow.model_validate_json(server.get("/api/v1/node", ANSWER_TIMEOUT))
    except ValidationError as error:
        raise NoDaemon(NOT_OURS) from error


def _body(answer: http.client.HTTPResponse, timeout: float) -> bytes:
    """What an answer holds. Raises ``TimeoutError``: the time-out of a socket is for each part."""
    until = time.monotonic() + timeout
    body = bytearray()
    while len(body) < LARGEST_ANSWER and (part := answer.read1()):
        body += part
        if time.monotonic() > until:
            raise TimeoutError(f"no whole answer within {timeout:g} s")
    return bytes(body)


def screen(
    node: NodeNow, key: str, backwards: bool, trouble: str, console: Console, height: int = 0
) -> Group:
    """What is wrong, and below it every GPU, or as many as a height has room for."""
    name, order = KEYS[key]
    rows = sorted((row(gpu) for gpu in node.gpus), key=order, reverse=backwards)
    head = Text(printable(node.node or "this node", LONGEST_TEXT), style="bold")
    head.append(time.strftime("  %H:%M:%S", time.localtime(node.time)), style="dim")
    alarm = [Text(trouble, style="bold red")] if trouble else []
    wrong = [_finding(one) for one in node.findings[:FINDINGS]]
    caption = f"sorted by {name}{', reversed' if backwards else ''}.  {HELP}"
    calm = [Text(node.calm, style="bold")] if node.calm else []
    met = [Text(_unread(node.unread), style="yellow")] if node.unread else []
    ledgers = [Text(each, style="dim") for each in _less_accurate(node.gpus)]
    above = Group(head, *alarm, *calm, *wrong, *met, *ledgers, Text())
    columns = fitting(OF_A_NODE, console.width)
    if height:
        cut = f"The first of {len(rows)} GPUs, {caption}"
        lines = console.render_lines(Group(above, table(rows, caption, columns)))
        if len(lines) > height:
            lines = console.render_lines(Group(above, table(rows, cut, columns)))
            rows, caption = rows[: max(1, height - len(lines) + len(rows))], cut
    return Group(above, table(rows, caption, columns))


def _unread(unread: Sequence[Met]) -> str:
    """What was met and is not understood, in a line."""
    kinds = ", ".join(f"{met.source} {met.what.replace('_', ' ')}" for met in unread)
    return printable(f"Met and not understood: {kinds}; see gpunode doctor.", LONGEST_TEXT)


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
