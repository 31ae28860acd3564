"""``gpunode top`` in a real terminal, over scenes that are served."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import NamedTuple

import pytest
from rich.console import Console

from gpunode.cli.daemon import DaemonAddress, DaemonError, ask
from gpunode.cli.main import main
from gpunode.cli.top import ViewState, screen
from gpunode.export.web.node import NodeNow, node
from gpunode.incidents import history
from gpunode.unread import Unknown
from tests.conftest import watching
from tests.daemon import TIMEOUT
from tests.export.page import scenes
from tests.export.page.serve import served
from tests.fakes.nvml import FakeDriver
from tests.terminal import Terminal


@contextmanager
def top(
    *options: str, terminal: str = "xterm-256color", size: tuple[int, int] = (40, 160)
) -> Iterator[Terminal]:
    opened = Terminal(sys.executable, "-m", "gpunode", "top", *options, kind=terminal, size=size)
    try:
        yield opened
    finally:
        opened.child.kill()
        opened.child.wait()
        os.close(opened.side)


class Outcome(NamedTuple):
    """How the command ended and what it printed."""

    code: int
    stdout: str
    stderr: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command where there is no terminal."""

    def called(*options: str, width: int = 250) -> Outcome:
        capfd.readouterr()
        monkeypatch.setenv("COLUMNS", str(width))
        code = 0
        try:
            main(["top", *options])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Outcome(code, *capfd.readouterr())

    return called


def order(shown: str) -> list[str]:
    """The GPUs of the last table, from top to bottom."""
    lines = shown.rpartition("GPU now")[2].splitlines()
    return [found[1] for line in lines if (found := re.match(r"\s*(\d+)  ", line))]


@cache
def hanging() -> str:
    """The address of a node on which a job hangs."""
    return served(scenes.hang(before=60, after=60).stage.loop)


def on(lines: int, width: int, chosen: ViewState, count: int = 8) -> str:
    """A screen of so many lines and columns while a job hangs."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    shown = NodeNow.model_validate_json(a_node(count))
    console.print(screen(shown, chosen, "", console, lines))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_it_shows_what_is_wrong_and_sorts_and_filters_until_told_to_quit() -> None:
    with top(f"--url={hanging()}") as terminal:
        shown = terminal.shows("q: quit")
        assert "GPUs 0–4, 6 and 7 hang: they wait for GPU 5" in shown  # noqa: RUF001
        assert "kill -CONT 41205" in shown
        assert "research/llama-70b-worker-0" in shown
        assert order(shown) == [str(n) for n in range(8)]
        terminal.strike("wr")  # keys that come together all count
        assert order(terminal.shows("sorted by watts, reversed"))[0] == "5"
        terminal.strike("r")
        assert order(terminal.shows("sorted by watts."))[-1] == "5"
        terminal.strike("/Waited\r")
        assert order(terminal.shows("only with “Waited”.")) == ["5"]
        terminal.strike("\x1b")
        terminal.shows("sorted by watts.  g")
        terminal.strike("qq")
        assert terminal.child.wait(TIMEOUT) == 0


def test_nothing_is_lost_at_the_edge_of_a_terminal(run: Run) -> None:
    for width in (26, 40, 60, 72, 79, 80, 100):
        said = run(f"--url={hanging()}", width=width).stdout
        lines = said.partition("\nGPU now")[2].splitlines()[1:9]
        assert [line.split()[0] for line in lines] == [str(n) for n in range(8)], width
        assert max(map(len, said.splitlines())) <= width
        assert "q: quit" not in said, "no key is read"
        assert said.count("hanging: waits for GPU 5") == 7 or width < 60, "whom it waits for"
        (gpu,) = [line.rstrip() for line in said.splitlines() if line.startswith("2  ")]
        assert "research" in gpu or "rank 2" in gpu or width < 60


@pytest.mark.parametrize(
    ("seconds", "said"), [(2, "Nothing is known to be wrong"), (60, "All is well")]
)
def test_it_says_that_all_is_well_once_that_is_known(run: Run, seconds: float, said: str) -> None:
    shown = run(f"--url={served(scenes.at_work().play(seconds).stage.loop)}").stdout
    assert shown.splitlines()[1].strip() == said


def test_it_names_what_was_met_and_is_not_understood(run: Run) -> None:
    scene = scenes.at_work()
    scene.host.unread = (Unknown("kernel_line", "a line of unknown form").seen("NVRM: what"),)
    shown = run(f"--url={served(scene.play(60).stage.loop)}").stdout
    assert "Met and not understood: host kernel line; see gpunode doctor." in shown


def test_a_low_terminal_scrolls() -> None:
    address = served(scenes.hang(60, 60, count=16).stage.loop)
    with top(f"--url={address}", size=(16, 140)) as terminal:
        shown = terminal.shows("q: quit")
        assert "1 to 9 of 16 GPUs, " in shown.replace("\r", "")
        assert order(shown) == [str(n) for n in range(9)]
        for _ in range(2):
            terminal.strike("\x1b[6~")  # page down
            shown = terminal.shows("q: quit")
        assert order(shown)[-1] == "15"
    assert order(on(20, 140, ViewState(), count=16)) == [str(n) for n in range(13)]
    assert "\nsorted by GPU" in on(30, 140, ViewState(), count=16)


def test_enter_opens_the_evidence_of_the_chosen_gpu() -> None:
    with top(f"--url={hanging()}", size=(24, 80)) as terminal:
        terminal.shows("q: quit")
        for key in ("j", "\x1b[B"):
            terminal.strike(key)
            terminal.shows("q: quit")
        terminal.strike("\r")
        shown = terminal.shows("Enter: all GPUs")
        assert "GPU 2 is hanging: waits for GPU 5 (for " in shown
        assert "because seconds for which nothing moved" in shown
        assert "research/llama-70b-worker-0, rank 2" in shown
        assert "41202" in shown
        assert "40 °C" in shown
        terminal.strike("\x1b")
        terminal.shows("Enter: evidence")
        terminal.strike("q")
        assert terminal.child.wait(TIMEOUT) == 0


@pytest.mark.parametrize(("lines", "cut"), [(9, True), (12, True), (16, False)])
def test_an_opened_gpu_fits_with_the_keys_below_it(lines: int, cut: bool) -> None:
    """Of what has no room, the most telling is kept."""
    shown = on(lines, 60, ViewState(opened=True))
    assert len(shown.splitlines()) <= lines
    assert "Enter: all GPUs  up, down: another  q: quit" in shown
    assert "GPU 0 is hanging: waits for GPU 5" in shown
    assert "kill -CONT 41205" in shown
    assert "its process is" in shown or lines < 12
    assert (" left out.  " in shown) == cut
    assert ("GPU-0" in shown) != cut
    assert "limit 1" not in shown, "that a GPU is waited for is no figure"


def test_json_is_the_node_as_the_api_gives_it(run: Run) -> None:
    said = run("--json", f"--url={hanging()}")
    assert len(NodeNow.model_validate_json(said.stdout).gpus) == 8


def test_60_columns_keep_the_owner_and_say_since_when(run: Run) -> None:
    address = served(scenes.hang(60, 120).stage.loop)
    narrow, wide = (run(f"--url={address}", width=width).stdout for width in (60, 120))
    assert "owner" in narrow
    assert "step s" not in narrow, "no GPU has a step"
    assert "waited for: its process" in narrow, "the cause comes before the bar"
    assert re.search("GPU now +for owner", narrow)
    (gpu,) = [line for line in wide.splitlines() if line.startswith("2  ")]
    assert "2 min" in gpu


def test_what_began_before_the_first_point_has_lasted_longer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "POINTS", 13)  # two minutes
    scene = scenes.Scene(scenes.actor(0, scenes.STARVED, 290.0))
    told = run(f"--url={served(scene.play(180).stage.loop)}", width=120).stdout
    assert ">2 min" in told


def test_a_dumb_terminal_gets_the_table_once() -> None:
    with top(f"--url={hanging()}", terminal="dumb") as terminal:
        assert "kill -CONT 41205" in terminal.shows("owner")
        assert terminal.child.wait(TIMEOUT) == 0


def test_it_says_since_when_the_daemon_is_gone(fake: FakeDriver) -> None:
    fake.write("gpus 2\n")
    with (
        watching(fake) as running,
        top(f"--url=http://127.0.0.1:{running.port}", "--interval=1") as terminal,
    ):
        terminal.shows("q: quit")
        running.process.terminate()
        terminal.shows("No answer since ")
        terminal.strike("q")
        assert terminal.child.wait(TIMEOUT) == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(sent: signal.Signals) -> None:
    with top(f"--url={hanging()}") as terminal:
        terminal.shows("q: quit")
        assert not termios.tcgetattr(terminal.side)[3] & termios.ECHO
        terminal.child.send_signal(sent)
        terminal.child.wait(TIMEOUT)
        assert termios.tcgetattr(terminal.side)[3] & termios.ECHO


def test_an_answer_that_drips_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpunode.cli.daemon.ANSWER_TIMEOUT", 0.3)

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        with pytest.raises(DaemonError, match="no whole answer within"):
            ask(DaemonAddress(f"http://127.0.0.1:{listener.getsockname()[1]}"))


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["another protocol", "headers", "chunks"],
)
def test_what_does_not_speak_http_is_told(greeting: bytes) -> None:
    def greet(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        with pytest.raises(DaemonError, match="what answers is no gpunode"):
            ask(DaemonAddress(f"http://127.0.0.1:{listener.getsockname()[1]}"))


@contextmanager
def answering(content: bytes, ends: bool = True) -> Iterator[str]:
    """The address of a server that answers each request so, or goes on for ever."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    asked.append(connection.recv(65536))
                    connection.sendall(content)
                    while not ends:
                        connection.sendall(content)

    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # which ends the thread's wait; to close it does not


def node_answer(changes: dict[str, object], gpu: dict[str, object]) -> bytes:
    """What a daemon answers, with changes of the node and of its first GPU."""
    changed = json.loads(a_node())
    changed |= changes
    changed["gpus"][0] |= gpu
    return json.dumps(changed).encode()


def answer_of(body: bytes, status: str = "200 OK", *headers: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"HTTP/1.1 " + status.encode(), length, *headers, b"", body])


@cache
def a_node(count: int = 8) -> str:
    """What a daemon says of a node."""
    return node(scenes.hang(before=60, after=60, count=count).stage.loop).model_dump_json()


OSC52 = "\x1b]52;c;cm0gLXJmIC8K\x07"
Changes = tuple[dict[str, object], dict[str, object]]
"""What is otherwise of a node and of its first GPU."""

EVIL: dict[str, Changes] = {
    "the node": ({"node": OSC52}, {}),
    "a tape": ({"playing": {"title": OSC52, "look": OSC52, "place": "", "seconds": 1}}, {}),
    "what comes first": ({"calm": OSC52}, {}),
    "what a GPU does": ({}, {"does": f"{OSC52}hangs"}),
    "a label": ({}, {"label": f"{OSC52}0"}),
    "an owner": ({}, {"owners": [OSC52]}),
    "a state": ({}, {"states": {OSC52: 1.0}}),
    "a remedy": ({}, {"remedy": OSC52}),
    "a reason": ({}, {"less_accurate": OSC52}),
    "a C1 control": ({"node": "\x9b2J\u202e"}, {}),
}


@pytest.mark.parametrize("what", EVIL)
def test_no_text_of_a_server_controls_the_terminal(what: str) -> None:
    with answering(answer_of(node_answer(*EVIL[what]))) as url:
        found = ask(DaemonAddress(url))
    console = Console(width=200, file=io.StringIO(), force_terminal=True, color_system=None)
    for opened in (False, True):
        console.print(screen(found, ViewState(opened=opened), "", console))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search(r"\x1b(?!\[[0-9;]*m)|[\x07\x9b\u202e]", said), said


NEWER: dict[str, Changes] = {
    "an urgency": ({}, {"urgency": "yesterday"}),
    "a state": ({}, {"states": {"dreaming": 0.7, "compute": 0.3}}),
    "a field": ({"weather": {"rain": [1, 2]}}, {"mood": "good"}),
    "a share above one": ({}, {"states": {"compute": 1e6}}),
}


@pytest.mark.parametrize("what", NEWER)
def test_a_newer_daemon_is_shown(what: str) -> None:
    with answering(answer_of(node_answer(*NEWER[what]))) as url:
        found = ask(DaemonAddress(url))
    console = Console(width=140, file=io.StringIO())
    console.print(screen(found, ViewState(), "", console))
    assert "llama" in console.file.getvalue()  # type: ignore[attr-defined]


NO_NODE: dict[str, bytes | Changes] = {
    "NaN": ({"time": math.nan}, {}),
    "1e300": ({}, {"power_watts": 1e300}),
    "a number of 400 digits": ({"time": 10**400}, {}),
    "infinity": ({}, {"states": {"compute": math.inf}}),
    "no JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no text": b"\xff\xfe",
    "nothing": b"",
}


@pytest.mark.parametrize("what", NO_NODE)
def test_what_no_daemon_says_is_refused_in_a_line(what: str) -> None:
    said = NO_NODE[what]
    body = said if isinstance(said, bytes) else node_answer(*said)
    with (
        answering(answer_of(body)) as url,
        pytest.raises(DaemonError, match="no gpunode of this version"),
    ):
        ask(DaemonAddress(url))


@pytest.mark.parametrize(
    ("start", "why", "seconds"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", "no gpunode of this version", TIMEOUT),
        (b"HTTP/1.1 200 OK\r\n\r\n", "more than 1 MiB", TIMEOUT),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "no whole answer", 0.5),
    ],
    ids=["in its headers", "in its body", "before it"],
)
def test_an_answer_without_end_ends(
    start: bytes, why: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpunode.cli.daemon.MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr("gpunode.cli.daemon.ANSWER_TIMEOUT", seconds)
    with answering(start, ends=False) as url, pytest.raises(DaemonError, match=why):
        ask(DaemonAddress(url))


@pytest.mark.parametrize("status", ["302 Found", "308 Permanent"])
def test_no_redirect_carries_a_password_to_another(status: str) -> None:
    with answering(answer_of(node_answer({}, {}))) as other:
        elsewhere = f"Location: {other}/api/v1/node\x1b".encode()
        with answering(answer_of(b"", status, elsewhere)) as url:
            address = DaemonAddress(url, ("alice", "correct horse"))
            with pytest.raises(DaemonError, match="redirects to http") as caught:
                ask(address)
    assert "\x1b" not in str(caught.value)
    assert "correct horse" not in repr(address)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        ("403 Forbidden", b'{"detail": "turn on\\u001b passwords"}', "^turn on\ufffd passwords$"),
        ("404 Not Found", b'{"detail": "Not Found"}', r"no gpunode of this version \(404\)"),
        ("404 Not Found", b'{"detail": ["a", "list"]}', r"no gpunode of this version \(404\)"),
        ("500 Oops", b"<html>", r"no gpunode of this version \(500\)"),
        ("700 Unknown", b'{"detail": ""}', r"no gpunode of this version \(700\)"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_daemon(status: str, body: bytes, why: str) -> None:
    with answering(answer_of(body, status)) as url, pytest.raises(DaemonError, match=why):
        ask(DaemonAddress(url))


def test_names_of_tenants_cannot_control_the_terminal(run: Run) -> None:
    scene = scenes.hostile(30)
    evil = "\x1b]0;owned\x07[bold]x[/]\x1b[2J"
    scene.named[0].owner = (evil, evil, "", "", "")
    scene.play(30)
    said = run("--url", served(scene.stage.loop))
    assert said.code == 0
    assert "\x1b" not in said.stdout
    assert "[bold]x[/]" in said.stdout


WITHOUT = {
    "http://127.0.0.1:1": "Connection refused",
    "http://nowhere.invalid:1": "no daemon answers",
    "file:///etc/passwd": "is not http://HOST:PORT",
    "http://": "is not http://HOST:PORT",
    "http://me:secret@127.0.0.1:1": "url: has a password",
    "ftp://me:secret@127.0.0.1:1": "url: has a password",
}


def test_without_a_daemon_it_says_what_to_do(run: Run) -> None:
    for url, why in WITHOUT.items():
        said = run("--url", url)
        assert (said.code, said.stdout) == (2, "")
        (line,) = said.stderr.splitlines()
        assert why in line
        assert "secret" not in line


def test_what_is_no_daemon_is_told(run: Run) -> None:
    with answering(answer_of(b"<html>", "404 File not found")) as url:
        said = run("--url", url)
    assert said.code == 2
    (line,) = said.stderr.splitlines()
    assert "what answers is no gpunode" in line
