"""A person asks a real daemon where a real process on a GPU stands."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import bcrypt
import psutil
import pytest
import trustme

from gpunode.cli.main import main
from tests.conftest import OFTEN as EVERYTHING
from tests.conftest import until, watching
from tests.daemon import TIMEOUT, Daemon, daemon, free_port
from tests.fakes.nvml import FakeDriver
from tests.helper.helper import helpers
from tests.needs import as_root, need

PASSWORD = "s3cret"
HANGS = """
import threading, time
lock = threading.Lock()
def take(token):
    lock.acquire()
    lock.acquire()
threading.Thread(target=time.sleep, args=(1000,), name="shard-reader", daemon=True).start()
take("correct-horse-battery-staple")
"""
OFTEN = ("--gpu.owners-interval=1", "--gpu.processes-interval=1", "--dcgm.address=")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[int]:
    """A process that hangs at line 6 of train.py, for a lock."""
    file = tmp_path / "train.py"
    file.write_text(HANGS)
    with subprocess.Popen([sys.executable, str(file)]) as child:
        folder = Path(f"/proc/{child.pid}")

        def hangs() -> bool:
            waits = "futex" in (folder / "wchan").read_text()
            return waits and len(list(folder.glob("task/*"))) == 2

        until(lambda: hangs() or child.poll() is not None)
        yield child.pid
        child.kill()


@pytest.fixture
def passwords(tmp_path: Path) -> str:
    """The option for passwords, of which Ann has one."""
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (tmp_path / "password").write_text(PASSWORD)
    path = tmp_path / "web.yaml"
    path.write_text(f"basic_auth_users:\n  ann: {hashed}\n")
    return f"--web.config.file={path}"


def ask(running: Daemon, path: str, password: str = PASSWORD) -> tuple[int, Any, dict[str, str]]:
    """The status of an answer, what it says, and its headers."""
    request = urllib.request.Request(f"http://127.0.0.1:{running.port}{path}")
    known = base64.b64encode(f"ann:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {known}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            status, headers, body = answer.status, dict(answer.headers), answer.read().decode()
    except HTTPError as error:
        with error:
            status, headers, body = error.code, dict(error.headers), error.read().decode()
    is_json = headers.get("content-type") == "application/json"
    return status, json.loads(body) if is_json else body, headers


@contextmanager
def holding(fake: FakeDriver, job: int, *options: str, known: bool = True) -> Iterator[Daemon]:
    """A daemon, once it has seen that a process holds two GPUs."""
    held = (f"gpu {gpu} process {job} 1000000000 compute\n" for gpu in (0, 1))
    fake.write("".join(("gpus 2\n", *held)))
    with watching(fake, *OFTEN, *options) as running:

        def seen() -> bool:
            said = ask(running, "/metrics")[1] if known else running.get("/metrics").decode()
            return said.count(f'pid="{job}"') >= 2

        until(seen)
        yield running


@pytest.mark.integration
def test_who_gives_a_password_is_told_by_the_command_where_a_process_stands(
    fake: FakeDriver, job: int, passwords: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with holding(fake, job, passwords, "--stacks.code") as running:
        url = f"--url=http://127.0.0.1:{running.port}"
        given = ("stacks", "--gpu=0", url, "--username=ann")
        main([*given, f"--password-file={tmp_path / 'password'}"])
        said = capfd.readouterr().out
        assert said.startswith(f"GPU 0, process {job} (train, ")
        assert "/train.py:6 take, waiting in the kernel for another thread or a lock (`" in said
        assert re.search(r"\n    take  /\S+/train\.py:6\n", said)
        assert "shard-reader" in said
        assert "battery" not in said
        with pytest.raises(SystemExit):
            main([*given, f"--password-file={tmp_path / 'train.py'}"])
        assert "--password-file" in capfd.readouterr().err
        with pytest.raises(SystemExit):
            main([*given, f"--password-file={tmp_path / 'password'}"])
        assert "GPU 0 was looked at less than 10 s ago: ask again in " in capfd.readouterr().err


UNKNOWN = {
    "?gpu=7": (404, "of GPU 7 it is not known"),
    "?gpu=../0": (422, "pattern"),
    "": (422, "gpu"),
}


def test_without_the_setting_for_code_no_name_of_the_program_s_own_is_told(
    fake: FakeDriver, job: int, passwords: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who asks again too soon is told when to ask, and counts."""
    with holding(fake, job, passwords) as running:
        assert ask(running, "/api/v1/stacks?gpu=0", "wrong")[0] == 401
        for path, (status, says) in UNKNOWN.items():
            found, said, _ = ask(running, f"/api/v1/stacks{path}")
            assert found == status, path
            assert says in json.dumps(said)
        status, told, headers = ask(running, "/api/v1/stacks?gpu=0")
        assert (status, headers["cache-control"]) == (200, "no-store")
        assert told["processes"][0]["reason"] == "lock"
        status, said, headers = ask(running, "/api/v1/stacks?gpu=0")
        assert status == 429
        assert 1 <= int(headers["retry-after"]) <= 10
        assert said["detail"].endswith(f"ask again in {headers['retry-after']} s")
        counts = 'gpunode_refused_total{source="asked",what="asked_stacks"} 1'
        until(lambda: counts in ask(running, "/metrics")[1])
        main(
            [
                *("stacks", "--gpu=1", f"--url=http://127.0.0.1:{running.port}"),
                *("--username=ann", f"--password-file={tmp_path / 'password'}", "--json"),
            ]
        )
    printed = capfd.readouterr().out
    (shown,) = json.loads(printed)
    assert shown["reason"] == "lock"
    assert shown["sentence"].startswith("main thread, waiting in the kernel for another thread")
    assert shown["stacks"]["threads"][0]["state"] == "S"
    for own in ("take", "train.py", "shard-reader"):
        assert own not in printed + json.dumps(told)


@pytest.mark.integration
def test_nothing_is_looked_at_where_that_is_off(fake: FakeDriver, job: int, passwords: str) -> None:
    with holding(fake, job, passwords, "--no-stacks.look") as running:
        status, said, _ = ask(running, "/api/v1/stacks?gpu=0")
    assert status == 403
    assert "stacks.look is off" in said["detail"]


def test_nobody_is_told_where_nobody_says_who_he_is(fake: FakeDriver, job: int) -> None:
    """Not even on the node itself."""
    with holding(fake, job, "--stacks.code", known=False) as running:
        status, said, _ = ask(running, "/api/v1/stacks?gpu=0")
        assert ask(running, "/api/v1/incidents")[0] == 403
    assert status == 403
    assert "turn on passwords or client certificates (--web.config.file)" in said["detail"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("RequireAndVerifyClientCert", "train.py:6 take"),
        ("VerifyClientCertIfGiven", "turn on passwords or client certificates"),
    ],
)
def test_a_certificate_counts_if_nobody_comes_in_without(
    kind: str,
    says: str,
    fake: FakeDriver,
    job: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    for name, identity in (("server", "127.0.0.1"), ("client", "ann.example")):
        issued = authority.issue_cert(identity)
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.crt"))
    config = tmp_path / "web.yaml"
    config.write_text(
        "tls_server_config: {cert_file: server.crt, key_file: server.key, "
        f"client_ca_file: ca.crt, client_auth_type: {kind}}}\n"
    )
    fake.write(f"gpu 0 process {job} 1000000000 compute\n")
    options = (*EVERYTHING, *OFTEN, f"--web.config.file={config}", "--stacks.code")
    environment = {**os.environ, **fake.environment()}
    with daemon(*options, environment=environment, ready="") as running:

        def said() -> str:
            with contextlib.suppress(SystemExit):
                main(
                    [
                        *("stacks", "--gpu=0", f"--url=https://127.0.0.1:{running.port}"),
                        *(f"--{name}={tmp_path / file}" for name, file in PAPERS.items()),
                    ]
                )
            return "".join(capfd.readouterr())

        until(lambda: says in said())


PAPERS = {"ca-file": "ca.crt", "cert-file": "client.crt", "key-file": "client.key"}


@contextmanager
def by_hand(
    fake: FakeDriver, passwords: str, *command: str, options: tuple[str, ...] = ()
) -> Iterator[tuple[Daemon, subprocess.Popen[bytes]]]:
    """A daemon that a command starts."""
    port = free_port()
    given = [f"--web.listen-address=127.0.0.1:{port}", "--client.socket=", passwords, *OFTEN]
    given += ["--discovery.interval=0.3", *options]
    environment = {**os.environ, **fake.environment()}
    with subprocess.Popen([*command, "run", *given], env=environment) as child:
        try:
            yield Daemon(psutil.Process(child.pid), port), child
        finally:
            child.kill()


def status_of(running: Daemon) -> int:
    """The status of the answer to who asks, 0 if there is none."""
    try:
        return ask(running, "/api/v1/stacks?gpu=0")[0]
    except OSError:
        return 0


@as_root
@pytest.mark.integration
def test_a_daemon_without_rights_has_its_helper_look(
    fake: FakeDriver, job: int, passwords: str
) -> None:
    """Whose list of calls has none that stops a process: tests/helper tries them all."""
    fake.write(f"gpu 0 process {job} 1000000000 compute\n")
    without = (need("setpriv"), "--bounding-set=-all", "--inh-caps=-all")
    command = (*without, sys.executable, "-m", "gpunode")
    with helpers(works=("files", "stacks")) as sockets:
        options = (f"--path.helpers={sockets}", "--stacks.code")
        with by_hand(fake, passwords, *command, options=options) as (running, _):

            def answer() -> Any:
                try:
                    status, said, _ = ask(running, "/api/v1/stacks?gpu=0")
                except OSError:
                    return None
                return said if status == 200 and said["processes"] else None

            (found,) = until(answer)["processes"]
    assert "train.py:6 take, waiting" in found["sentence"]
    assert found["stacks"]["threads"][0]["waits_in"].startswith("futex")


HANGS_WHILE_IT_LOOKS = """
import sys, time
from gpunode.cli.main import main
from gpunode.verdict import asking
asking.stacks_of_started = lambda *_: time.sleep(1000)
main(sys.argv[1:])
"""


@pytest.mark.integration
def test_a_look_that_hangs_keeps_neither_pages_nor_the_end_of_the_daemon(
    fake: FakeDriver, job: int, passwords: str, tmp_path: Path
) -> None:
    fake.write(f"gpu 0 process {job} 1000000000 compute\n")
    slow = tmp_path / "slow.py"
    slow.write_text(HANGS_WHILE_IT_LOOKS)
    with by_hand(fake, passwords, sys.executable, str(slow)) as (running, child):
        until(lambda: status_of(running) not in (0, 404))  # and is hung up on, or waits
        assert status_of(running) == 429
        assert ask(running, "/metrics")[0] == 200
        child.terminate()
        child.wait(TIMEOUT / 10)


class Lies(BaseHTTPRequestHandler):
    """A server in place of a daemon, whose answer a terminal would obey."""

    def do_GET(self) -> None:
        frame = {"function": "\x1b]0;x\x07f", "file": "a\nb.py", "line": 1}
        thread = {"thread": 7, "name": "\x1b[2J", "frames": [frame]}
        stacks = {"pid": 7, "threads": [thread], "all_threads": 1}
        texts = ("program", "sentence", "reason", "why_not", "rank", "owner")
        lies = ("\x1b[31mp", "s\x9b", "", "\x1b", "\x07", "o\u202e")
        process = {"gpu": "0", "pid": 7, "stacks": stacks, **dict(zip(texts, lies, strict=True))}
        body = json.dumps({"code": True, "processes": [process]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_nothing_that_a_daemon_says_is_obeyed_by_a_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with HTTPServer(("127.0.0.1", 0), Lies) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"--url=http://127.0.0.1:{server.server_port}"
        main(["stacks", "--gpu=0", url])
        main(["stacks", "--gpu=0", url, "--json"])
        server.shutdown()
    said = capfd.readouterr().out
    assert "process 7" in said
    assert all(c == "\n" or c.isprintable() for c in said)


NOT_ASKED: dict[tuple[str, ...], str] = {
    (): "say which with --gpu",
    ("--pid=1",): "say which with --gpu",
    ("--gpu=0", "--native"): "--native: no daemon tells functions of C",
    ("--gpu=0",): "no daemon answers",
}


def test_what_a_daemon_cannot_be_asked_is_told_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    for options, says in NOT_ASKED.items():
        with pytest.raises(SystemExit) as ended:
            main(["stacks", "--url=http://127.0.0.1:1", *options])
        assert ended.value.code == 2
        assert says in capfd.readouterr().err
