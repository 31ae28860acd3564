"""Processes on a GPU that answer as an engine with whatever they like, on real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

import gpunode.helper.tcp
import gpunode.node.sockets
from gpunode.config.daemon import Settings
from gpunode.helper.tcp import MAX_ANSWER_BYTES, PATHS
from gpunode.holders.census import Census
from gpunode.jobs.owners import ProcessRoles, RolesDetail
from gpunode.serving.page import MAX_LINE, parse
from gpunode.serving.requests import ServingEngines
from tests.daemon import free_port
from tests.machine import OneGpu, exported, read_source
from tests.serving.test_engines import series

HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"
Answer = Callable[[socket.socket, threading.Event], None]

HONEST = """
import http.server, sys
PAGE = b'vllm:num_requests_running{model_name="honest"} 2\\n'
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
"""


CROWD = """
import socket, sys
kept = [socket.create_server(("127.7.7.7", 0)) for _ in range(int(sys.argv[1]))]
kept += [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[1]))]
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def crowd(sockets: int) -> Iterator[None]:
    """A process with so many sockets that wait for connections, and as many Unix sockets."""
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, str(sockets)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.stdin.close()


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[list[bytes]]:
    """Serve from this process; the requests that came."""
    done, came = threading.Event(), list[bytes]()
    with socket.create_server(("127.0.0.1", free_port())) as listener:

        def serve() -> None:
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    came.append(connection.recv(4096))
                    answer(connection, done)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield came
        finally:
            done.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.fixture
def honest() -> Iterator[int]:
    """A process with an engine that tells the truth; its PID."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", HONEST, str(port)], stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
        yield process.pid
        process.kill()


def endless(connection: socket.socket, done: threading.Event) -> None:
    """A million series."""
    connection.sendall(HEAD)
    for at in range(1_000_000):
        connection.sendall(b'vllm:num_requests_running{model_name="m%d"} 1\n' % at)
        if done.is_set():
            return


def drips(connection: socket.socket, done: threading.Event) -> None:
    connection.sendall(HEAD)
    while not done.wait(0.01):
        connection.sendall(b"v")


def says(text: bytes) -> Answer:
    return lambda connection, _: connection.sendall(text)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (endless, "garbled|silent"),
        (drips, "silent"),
        (says(HEAD + b"<html><head><title># TYPE</title></head></html>"), "no_metrics"),
        (says(b"HTTP/1.0 301 Moved\r\nLocation: http://127.0.0.1:1/\r\n\r\n"), "no_metrics"),
        (says(b"\x00\xff" * 1000), "garbled"),
        (says(b""), "garbled"),
        (says(HEAD + b"# TYPE other_total counter\nother_total 1\n"), "unknown"),
    ],
    ids=["a million series", "never ends", "HTML", "a redirection", "bytes", "nothing", "unknown"],
)
def test_what_a_server_answers_costs_no_other_its_reading(
    answer: Answer, reason: str, honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpunode.helper.tcp, "DEADLINE", 1.0)
    node = OneGpu(os.getpid(), honest)
    source = ServingEngines(Census(node), Settings())
    tracemalloc.start()
    try:
        with answering(answer) as came:
            first = exported(read_source(source))
            node.stepped.now += 10
            second = exported(read_source(source))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for text in (first, second):
        assert (
            series(text, "gpunode_serving_requests_in_flight", model="honest", phase="running") == 2
        )
        assert text.count("gpunode_serving_requests_in_flight{") == 1
    unanswered = [series(second, "gpunode_serving_unanswered", reason=r) for r in reason.split("|")]
    assert sorted(unanswered, key=str)[-1] == 1
    asked = {request.partition(b" HTTP")[0] for request in came}
    assert asked <= {f"GET {path}{end}".encode() for path in PATHS for end in ("", "/")}
    assert most < 4 * MAX_ANSWER_BYTES


def test_sockets_of_a_neighbour_hide_no_engine(honest: int) -> None:
    with crowd(sockets=4_000):
        reading = ServingEngines(Census(OneGpu(honest)), Settings()).read()
    assert (
        series(exported(reading.samples), "gpunode_serving_requests_in_flight", phase="running")
        == 2
    )
    assert not reading.unread


def test_more_sockets_than_are_looked_at_are_told(
    honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of those that are left out may be the engine's, or a communicator's."""
    node = OneGpu(honest)
    census = Census(node)
    engines = ServingEngines(census, Settings())
    roles = ProcessRoles(census, node.gpus()[0], Settings())
    with crowd(sockets=100), monkeypatch.context() as patched:
        patched.setattr(gpunode.node.sockets, "ROWS", 50)
        hidden, hides = engines.read(), roles.read()
        with pytest.raises(OSError, match="more than 50 sockets"):
            node.communicates(honest)
    text = exported(hidden.samples)
    assert "gpunode_serving_requests_in_flight{" not in text
    assert series(text, "gpunode_serving_unanswered", reason="too_many_sockets") == 1
    for reading in (hidden, hides):
        assert [(one.kind.what, one.times) for one in reading.unread] == [("sockets", 1)]
    assert isinstance(hides.detail, RolesDetail)
    assert hides.detail.roles[0].listens is None
    node.stepped.now += 100
    assert (
        series(
            exported(read_source(engines)), "gpunode_serving_requests_in_flight", phase="running"
        )
        == 2
    )
    assert not roles.read().unread


def test_labels_without_end_take_no_square_time() -> None:
    """The regular expression holds Python's lock while it looks: nobody else is answered."""

    def took(labels: str) -> float:
        line = f"vllm:num_requests_running{{{labels}}} 1"
        assert len(line) <= MAX_LINE
        begin = time.thread_time()
        parse([line] * 50)
        return time.thread_time() - begin

    assert took("a" * 4000) < 10 * took('a="b",' * 666)


def test_figures_that_cannot_be_are_left_out() -> None:
    page = (
        b"vllm:num_requests_running -1\nvllm:num_requests_waiting NaN\n"
        b"vllm:kv_cache_usage_perc 7\nvllm:generation_tokens_total 1e400\n"
        b'vllm:num_preemptions_total{model_name="\\"},x="y"} 3\n'
    )
    node = OneGpu(os.getpid())
    source = ServingEngines(Census(node), Settings())
    with answering(says(HEAD + page)):
        text = exported(read_source(source))
    assert "requests{" not in text
    assert "kv_cache" not in text
    assert "tokens_total" not in text
    assert text.count("preemptions_total") == 1
