"""The real programs of monitoring, and what Alertmanager notifies."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.daemon import free_port
from tests.needs import find

Note = Callable[[str, dict[str, Any]], None]
"""What takes a notification: the receiver, and what Alertmanager says."""


Command = list[str]


def need(*names: str) -> str:
    """A program by one of its names; ends the run where it is not here."""
    found = find(*names)
    if found is None:
        raise SystemExit(f"{names[0]} is not here: make monitoring")
    return found


@contextmanager
def program(command: Command, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for as long as the block lasts."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as child:
        try:
            yield child
        finally:
            child.terminate()


def ask(port: int, path: str) -> Any:
    """What a server on this machine answers, in JSON."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return json.loads(answer.read())


@contextmanager
def webhook(note: Note) -> Iterator[int]:
    """What every receiver notifies, one notification after the other; its port."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                note(self.path.strip("/"), body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as port:
        yield port


@contextmanager
def exporter(text: Callable[[str], bytes | None]) -> Iterator[int]:
    """Metrics for Prometheus by the path asked for, or a failure if there are none; its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = text(self.path)
            self.send_response(500 if body is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as port:
        yield port


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """What a handler answers, while the block lasts; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def alertmanager(folder: Path, routes: dict[str, Any], note: Note) -> Iterator[str]:
    """An Alertmanager with these routes, every receiver of which is a webhook; its address."""
    port = free_port()
    with webhook(note) as hook:
        hooks = [
            {**one, "webhook_configs": [{"url": f"http://127.0.0.1:{hook}/{one['name']}"}]}
            for one in routes["receivers"]
        ]
        (folder / "alertmanager.yml").write_text(json.dumps({**routes, "receivers": hooks}))
        command = [
            need("alertmanager", "prometheus-alertmanager"),
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/am",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
        with program(command, folder / "alertmanager.log"):
            yield f"127.0.0.1:{port}"
