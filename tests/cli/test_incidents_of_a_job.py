"""``gpunode incident --job NAME``: the incidents of a job on all its nodes, as one page."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpunode.cli.job_incidents import address
from gpunode.cli.loader import load
from gpunode.cli.main import main
from gpunode.cli.settings.incidents import IncidentCommandSettings
from gpunode.incidents.incident import Brief, Happening, Incident, as_json
from gpunode.report.claims import JobIncident
from tests.cli.conftest import FIRST, NEXT, Stage

pytestmark = pytest.mark.integration

PASSWORD = "of-sofia"


def stored_incident(name: str) -> Incident:
    """What a node has kept."""
    brief = Brief(
        name, "stall", "n", 1e9, None, False, "GPU 0 hangs", "data.py:7 <b>", ("0",), (), 0
    )
    moment = Happening(1e9 - 3, "kernel", "nfs: server files not responding")
    late = Happening(1e9 + 400, "process", "long after")
    return Incident(brief, "1", "Restart the file server.", moments=(moment, late))


@contextmanager
def nodes(asked: list[tuple[str, str | None]]) -> Iterator[str]:
    """A server in place of all nodes: it knows the incidents of the first one alone."""

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, instance, *_, name = self.path.split("/")
            asked.append((instance, self.headers["authorization"]))
            self.send_response(200 if instance == FIRST else 404)
            self.end_headers()
            if instance == FIRST:
                self.wfile.write(as_json(stored_incident(name)))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{{instance}}"
        server.shutdown()


def test_one_page_says_which_node_began_and_what_it_saw(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    page = tmp_path / "job.html"
    asked: list[tuple[str, str | None]] = []
    with nodes(asked) as node:
        command = ["incident", f"--prometheus.url={stage.url}", "--job=pair", f"--node-url={node}"]
        main([*command, "--username=sofia", f"--password-file={password}"])
        text = " ".join(capsys.readouterr().out.split())
        main([*command, f"--html={page}"])
        main([*command, "--json"])
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert f"2 incidents on 2 nodes within a day. {FIRST} began" in text
    assert "Restart the file server." in text
    assert "nfs: server files not responding" in text
    assert "long after" not in text
    assert f"{NEXT} was not asked, or" in text
    assert {of for of, _ in asked} == {FIRST, NEXT}
    assert all((known or "").startswith("Basic ") for _, known in asked[:2])
    assert "&lt;b&gt;" in page.read_text()
    assert "<b>" not in page.read_text().partition("<body>")[2]
    assert told["finding"].startswith("2 incidents on 2 nodes")


def test_no_node_is_asked_where_that_is_not_wanted(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["incident", f"--prometheus.url={stage.url}", "--job=h200_hang", "--node-url=none"])
    text = " ".join(capsys.readouterr().out.split())
    assert "1 incident on 1 node within a day. h200_hang alone has incidents." in text
    assert "the others wait for GPU 1 of h200_hang: its process is stopped" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--job=healthy"], "healthy: no incident on its GPUs is kept within a day"),
        (["--job=nobody"], "nobody: held no GPU"),
        (["--job=pair", "--node-url=http://me:secret@{instance}"], "node_url: has a password"),
        (["--job=pair", "--tape=x"], "job: tape and folder are of one incident on one node"),
    ],
)
def test_misuse_is_said_in_a_line(stage: Stage, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "gpunode", "incident", f"--prometheus.url={stage.url}"]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ([], "http://10.0.0.1:9816"),
        (["--password-file=x"], "https://10.0.0.1:9816"),
        (["--ca-file=x"], "https://10.0.0.1:9816"),
        (["--password-file=x", "--node-url=http://{instance}"], "http://10.0.0.1:9816"),
    ],
)
def test_a_password_goes_out_in_clear_only_where_a_site_says_so(
    options: list[str], url: str
) -> None:
    settings = load(IncidentCommandSettings, "gpunode incident", options)
    assert address(JobIncident("c", FIRST, "i", "stall", 0, (), ""), settings) == url
