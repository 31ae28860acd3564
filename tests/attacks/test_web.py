"""Hostile clients of the web server, signals, and settings that nobody should have written."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpunode.cli.loader import load
from gpunode.cli.settings.run import RunSettings
from gpunode.config.daemon import Settings
from gpunode.config.fields import leaves
from gpunode.config.yaml_file import MAX_SETTINGS
from gpunode.export.exposition import Exposition
from gpunode.export.web.server import BACKLOG, CONNECTIONS, REQUEST_TIMEOUT
from gpunode.metric import Metric, Sample
from gpunode.mistake import UsageError
from gpunode.node.tape import TapeError, TapeNode
from tests.conftest import scrape, until, values, watching
from tests.daemon import Daemon, daemon, free_port
from tests.fakes.nvml import FakeDriver
from tests.needs import as_root

HALF = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"
"""A request whose headers do not end."""

GET = HALF + b"\r\n"
MIB = 1 << 20


@pytest.fixture(scope="module")
def victim() -> Iterator[Daemon]:
    """A daemon that every attack here meets in the state in which the one before left it."""
    with daemon("--host.interval=1", "--dcgm.address=") as running:
        running.get("/metrics")
        yield running


def status_of(running: Daemon) -> str:
    """What the kernel says of a daemon."""
    return Path(f"/proc/{running.process.pid}/status").read_text()


def connect(running: Daemon, room: int | None = None) -> socket.socket:
    """A client of a daemon, with so many bytes of room for what it has not read."""
    client = socket.socket()
    if room is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.settimeout(5)
    client.connect(("127.0.0.1", running.port))
    return client


def send(client: socket.socket, content: bytes) -> None:
    """Send as much as is taken: the daemon may hang up before the end."""
    with suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(content)


def answer(client: socket.socket) -> bytes:
    """All that the daemon says until it hangs up."""
    said = b""
    try:
        while part := client.recv(MIB):
            said += part
    except ConnectionResetError:  # it did not read the request to its end
        pass
    return said


def send_request(running: Daemon, request: bytes) -> bytes:
    """What the daemon answers to a request, to the end of the connection."""
    with connect(running) as client:
        send(client, request)
        return answer(client)


def status(said: bytes) -> int | None:
    """The status of an answer, if there is one."""
    words = said.split(maxsplit=2)
    return int(words[1]) if len(words) > 1 else None


def get(path: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [b"GET " + path + b" HTTP/" + version, b"Host: a", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def post(method: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = [method + b" /metrics HTTP/1.1", b"Host: a", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"400\r\n" + b"x" * 1024 + b"\r\n"

REQUESTS: dict[str, tuple[bytes, set[int | None]]] = {
    "header of 1 MB": (get(b"/metrics", b"X: " + b"x" * MIB), {400, None}),
    "100,000 headers": (get(b"/metrics", *[b"X: y"] * 100_000), {400, None}),
    "query of 1 MB": (get(b"/metrics?" + b"x" * MIB), {400, 414, None}),
    "path of 1 MB": (get(b"/" + b"x" * MIB), {400, 414, None}),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n", {400, None}),
    "HTTP/1.0": (b"GET /metrics HTTP/1.0\r\n\r\n", {200}),
    "HTTP/0.9": (b"GET /metrics\r\n\r\n", {400}),
    "HTTP/9.9": (get(b"/metrics", version=b"9.9"), {200, 400, 505}),
    "HTTP/2 without upgrade": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 404, 405}),
    "HTTP/2 upgrade": (
        get(b"/metrics", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
        {200},
    ),
    "websocket upgrade": (
        get(b"/metrics", b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: eA=="),
        {200},
    ),
    "no host": (b"GET /metrics HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (get(b"/metrics", b"Host: b"), {400}),
    "host that is none": (get(b"/metrics/").replace(b"Host: a", b"Host: [::"), {404}),
    "dots": (get(b"/../../../../etc/passwd"), {404}),
    "encoded dots": (get(b"/metrics/%2e%2e/%2e%2e/etc/passwd"), {404}),
    "encoded zero": (get(b"/metrics%00"), {404}),
    "no UTF-8": (get(b"/%ff%fe%c0%af"), {404}),
    "bytes beyond ASCII": (get(b"/\xff\xfe"), {400, 404}),
    "whole address": (get(b"http://169.254.169.254/metrics"), {200}),
    "star": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", {404, 405}),
    "tunnel": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: a\r\n\r\n", {404, 405}),
    "trace": (b"TRACE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", {405}),
    "method of 60,000 letters": (b"G" * 60_000 + b" / HTTP/1.1\r\nHost: a\r\n\r\n", {400, 405}),
    "head": (b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", {200}),
    "ranges": (get(b"/metrics", b"Range: bytes=" + b",".join([b"0-"] * 2000)), {200}),
    "body of 64 MB": (post(b"POST", b"x" * 64 * MIB, b"Content-Length: 67108864"), {405, None}),
    "body that never comes": (post(b"PUT", b"", b"Content-Length: 99999999999"), {405}),
    "body that is asked for": (
        post(b"POST", b"", b"Content-Length: 9", b"Expect: 100-continue"),
        {405},
    ),
    "chunks without end": (post(b"POST", CHUNKS * 9, CHUNKED), {405}),
    "chunks that are none": (post(b"POST", b"ZZZ\r\n\r\n", CHUNKED), {None, 400, 405}),
    "body of a GET": (get(b"/metrics", CHUNKED) + CHUNKS * 9 + b"ZZ", {None, 200, 400}),
    "lengths that differ": (post(b"POST", b"", b"Content-Length: 1", b"Content-Length: 2"), {400}),
    "length and chunks": (post(b"POST", b"0\r\n\r\n", b"Content-Length: 5", CHUNKED), {400, 405}),
    "negative length": (post(b"POST", b"", b"Content-Length: -1"), {400}),
    "folded header": (get(b"/metrics", b"X: y\r\n z"), {200, 400}),
    "zero byte in a header": (get(b"/metrics", b"X: \0"), {400}),
    "20 scrapes at once": (GET * 20, {200}),
    "a scrape and garbage": (GET + b"\0\r\n\r\n" * 99, {200, None}),
}


def test_no_request_troubles_the_daemon(victim: Daemon, capfd: pytest.CaptureFixture[str]) -> None:
    for name in REQUESTS:
        request, expected = REQUESTS[name]
        before = victim.process.memory_info().rss
        for _ in range(5):
            said = send_request(victim, request)
            assert status(said) in expected, said[:200]
            assert b"root:" not in said, name
        assert victim.process.memory_info().rss - before < 4 * MIB, name
        assert capfd.readouterr().err == "", name
        assert victim.get("/healthz") == b"ok\n", name


ACCEPTS = {
    "": "text/plain; version=0.0.4",
    "*/*": "text/plain; version=0.0.4",
    "application/openmetrics-text": "application/openmetrics-text; version=1.0.0",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.4": (
        "application/openmetrics-text; version=1.0.0"
    ),
    "application/openmetrics-text;version=0.0.1,text/plain": "text/plain; version=0.0.4",
    "application/openmetrics-text;version=99.0.0": "text/plain; version=0.0.4",
    "application/openmetrics-text;version=x": "text/plain; version=0.0.4",
    "application/openmetrics-text;version=": "text/plain; version=0.0.4",
    "text/plain;version=1.0.0;escaping=nonsense": "text/plain; version=0.0.4",
    "text/plain;version=\xff": "text/plain; version=0.0.4",
    ",;=,;;==q": "text/plain; version=0.0.4",
    "," * 9000: "text/plain; version=0.0.4",
}


def test_any_accept_header_gets_one_of_two_formats(victim: Daemon) -> None:
    for accept in ACCEPTS:
        said = send_request(victim, get(b"/metrics", b"Accept: " + accept.encode("latin-1")))
        assert status(said) == 200, accept
        assert f"content-type: {ACCEPTS[accept]}; charset=utf-8\r\n".encode() in said, accept


def test_formats_that_nobody_serves_take_no_memory(victim: Daemon) -> None:
    before = victim.process.memory_info().rss
    for number in range(200):
        for media_type in ("application/openmetrics-text", "text/plain"):
            victim.get("/metrics", accept=f"{media_type};version=1.{number}.0;escaping={number}")
    assert victim.process.memory_info().rss - before < 8 * MIB


@given(st.text(st.characters(), max_size=20))
def test_any_label_can_be_exported(label: str) -> None:
    """A file name may hold any bytes; os.listdir tells those that are not UTF-8 as surrogates."""
    metric = Metric("gpunode_test", "gauge", "Test.", ("name",))
    for name in (label, label + "\udcff"):
        content, _ = Exposition(lambda: [Sample(metric, (name,), 1.0)]).encode("")  # noqa: B023
        assert content.decode().endswith(" 1.0\n")


SLOW = {
    "says nothing": b"",
    "sends half a request": HALF,
    "sends no body": post(b"POST", b"", b"Content-Length: 9", b"Expect: 100-continue"),
    "reads nothing": GET,
    "pipelines and reads nothing": GET * 100,
    "sends chunks without end": post(b"POST", CHUNKS * 999, CHUNKED),
}


def slow_clients(running: Daemon, clients: ExitStack) -> None:
    """Have a client of each kind do nothing more than ``SLOW`` says, until the stack unwinds."""
    for content in SLOW.values():
        client = clients.enter_context(connect(running, room=2048))
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.send(content)


def test_no_client_keeps_a_connection(victim: Daemon) -> None:
    files = victim.process.num_fds()
    with ExitStack() as clients:
        begin = time.monotonic()
        slow_clients(victim, clients)
        dripping = clients.enter_context(connect(victim))
        send(dripping, HALF)
        until(lambda: victim.process.num_fds() > files)
        while victim.process.num_fds() > files:
            assert time.monotonic() - begin < REQUEST_TIMEOUT + 8
            send(dripping, b"X: y\r\n")
            time.sleep(0.2)
        assert victim.get("/healthz") == b"ok\n"


def test_a_thousand_half_requests_keep_nobody_out(
    victim: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    try:
        with ExitStack() as clients:
            files = victim.process.num_fds()
            for number in range(1200):
                client = clients.enter_context(connect(victim))
                send(client, HALF)
                if number % 100 == 99:
                    assert b"gpunode_source_up" in victim.get("/metrics")
            until(lambda: victim.process.num_fds() <= files + CONNECTIONS)
            assert victim.get("/healthz") == b"ok\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    assert capfd.readouterr().err == ""


def test_a_crowd_from_one_address_makes_way_before_a_slow_client_of_another(
    victim: Daemon,
) -> None:
    with ExitStack() as clients:
        slow = clients.enter_context(connect(victim))
        slow.sendall(HALF)
        for _ in range(2 * CONNECTIONS):
            address = ("127.0.0.1", victim.port)
            clients.enter_context(socket.create_connection(address, 5, ("127.0.0.2", 0)))
        slow.sendall(b"\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"


def test_it_ends_when_told_to_whatever_clients_and_drivers_do(fake: FakeDriver) -> None:
    fake.write("gpus 2\n")
    with ExitStack() as open_now:
        running = open_now.enter_context(watching(fake))
        fake.write("gpus 2\ngpu 1 hang nvmlDeviceGetTemperature 600\n")
        sources = {"source": "gpu_activity", "gpu": "1"}
        until(lambda: values(scrape(running), "gpunode_source_up", **sources) == [0])
        slow_clients(running, open_now)
        begin = time.monotonic()
        running.process.terminate()
        gone, _ = psutil.wait_procs([running.process], timeout=10)
        assert gone
        assert time.monotonic() - begin < 2


def test_a_lack_of_descriptors_is_told_ever_more_seldom(
    victim: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE)
    with ExitStack() as clients:
        room = victim.process.num_fds() + 5
        resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE, (room, limits[1]))
        for _ in range(40):
            send(clients.enter_context(connect(victim)), HALF)
        until(lambda: victim.process.num_fds() == room)
        time.sleep(2.5)  # asyncio tries again every second
    resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: victim.get("/healthz") == b"ok\n")
    said = capfd.readouterr().err
    assert said.count("Traceback") == 0, said
    # While descriptors lack, asyncio reports each of BACKLOG attempts to accept, every second:
    # https://github.com/python/cpython/issues/151615
    assert 1 <= said.count("accept") <= math.log2(100 * BACKLOG), said


def run(*options: str, **environment: str) -> tuple[int, str, str]:
    """How a command ended, and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "gpunode", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_a_request_to_reload_does_not_end_it(fake: FakeDriver) -> None:
    port = free_port()
    address = f"--web.listen-address=127.0.0.1:{port}"
    command = [sys.executable, "-m", "gpunode", "run", address, "--client.socket="]
    environment = {**os.environ, **fake.environment()}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as child:
        try:
            running = Daemon(psutil.Process(child.pid), port)
            running.wait_for("/readyz", child)
            before = running.process.create_time()
            for _ in range(3):
                child.send_signal(signal.SIGHUP)
                assert running.get("/healthz") == b"ok\n"
            assert running.process.create_time() == before
        finally:
            child.terminate()
        _, said = child.communicate(timeout=10)
    assert child.returncode == 0
    assert 1 <= said.count(b"SIGHUP") <= 3
    assert b"restart" in said


INTERVALS = [
    ".".join(path)
    for path, field in leaves(Settings.model_fields)
    if path[-1].endswith("interval") and field.annotation is float
]


ABSURD = ["inf", "nan", "0", "-1", "1e308", "1e-308", "9" * 6000]


def refused(option: str) -> str:
    """What an option is refused with; empty if it is taken."""
    try:
        load(RunSettings, "gpunode run", [option])
    except UsageError as told:
        return str(told)
    return ""


def test_no_interval_stops_a_source() -> None:
    for setting, value in itertools.product(INTERVALS, ABSURD):
        told = refused(f"--{setting.replace('_', '-')}={value}")
        assert told.startswith(f"{setting}: "), (setting, value[:80])


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("GPUNODE_GPU_INTERVAL", "GPUNODE_GPU__INTERVAL"),
        ("GPUNODE_GPUU__INTERVAL", "GPUNODE_GPU__INTERVAL"),
        ("gpunode_gpu_interval", "GPUNODE_GPU__INTERVAL"),
        ("GPUNODE_WEB_LISTEN_ADDRESS", "GPUNODE_WEB__LISTEN_ADDRESS"),
        ("GPUNODE_DURATIONS", "GPUNODE_DURATION"),
        ("GPUNODE_", "GPUNODE_"),
        ("GPUNODE_WEB_PORT", "GPUNODE_"),
        ("GPUNODE_GPU", "GPUNODE_"),
        ("GPUNODE_PORT", "GPUNODE_"),
        ("GPUNODE_" + "X" * 60_000, "GPUNODE_"),
    ],
)
def test_a_misspelt_variable_is_told(
    monkeypatch: pytest.MonkeyPatch, variable: str, nearest: str
) -> None:
    monkeypatch.setenv(variable, "[" * 9999)
    with pytest.raises(UsageError, match=f"nearest is {nearest}") as told:
        load(RunSettings, "gpunode run", [])
    assert str(told.value).startswith(f"{variable}: ")


@pytest.mark.parametrize("service", ["GPUNODE", "GPUNODE_EXPORTER"])
def test_the_variables_of_a_service_are_not_settings(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    for name, value in {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "9816",
        "SERVICE_PORT_METRICS": "9816",
        "PORT": "tcp://10.0.0.11:9816",
        "PORT_9816_TCP": "tcp://10.0.0.11:9816",
        "PORT_9816_TCP_PROTO": "tcp",
        "PORT_9816_TCP_PORT": "9816",
        "PORT_9816_TCP_ADDR": "10.0.0.11",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", "/run/gpunode/client.sock")
    assert load(RunSettings, "gpunode run", []) == RunSettings()


def test_an_absurd_option_is_told() -> None:
    for option in (
        "--gpu=" + "[" * 60_000,
        "--gpu=" + '{"interval":' * 9_000,
        "--config=" + "[" * 60_000,
        "--web.listen-address=²:²",
        "--web.listen-address=\udcff:1",
        "--web.listen-address=a:" + "9" * 6000,
        "--path.rootfs=\udcff",
        "--path.rootfs=/" + "x" * 9000,
        "--config.file=/" + "x" * 9000,
        "--config.file=/dev/zero",
    ):
        assert len(refused(option).splitlines()) == 1, option[:80]


PIECES = (
    *("gpu", "host", "interval", ": ", "\n  ", "\n", "- ", "[", "{", "]", "}", "&a ", "*a", "? "),
    *("!!int ", "!!timestamp ", "!!python/object/apply:os.abort ", "<<: ", "'", '"', "\\ud800"),
    *("%YAML 9.9", "---", "...", "|", ">", "#", "2024-99-99", "9" * 5000, ".inf", "\x00", "\t"),
    "\\Uffffffff",
)
"""Of these, a malformed settings file is made."""


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "settings.yaml"


@settings(max_examples=50)
@given(text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=60))
@example("[" * 10_000)
@example("{gpu: " * 5_000)
@example("host: {interval: " + "9" * 6_000 + "}")
@example("host: {interval: 2024-99-99}")
@example("host: {interval: !!int ''}")
@example("web: {listen_address: 'a\\0b:1'}")
@example('path: {rootfs: "\\ud800"}')
@example("%YAML 9." + "9" * 5_000)
@example('"\\Uffffffff": 1')
@example("x" * (MAX_SETTINGS + 1))
def test_a_settings_file_is_read_or_told_in_one_line(settings_file: Path, text: str) -> None:
    settings_file.write_text(text, encoding="utf-8", errors="surrogatepass")
    said = ""
    try:
        load(RunSettings, "gpunode run", [f"--config.file={settings_file}"])
    except UsageError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


HEADER = b'{"gpunode_tape":1,"time":1}\n'
ANSWER = b'{"t":%b,"of":"/","call":"read_text","answer":%b}\n'

TAPES = {
    "nested header": b"[" * 100_000,
    "nested answer": HEADER + ANSWER % (b"0", b"[" * 100_000),
    "number of 6,000 digits": HEADER + ANSWER % (b"9" * 6_000, b'""'),
    "time of 4,000 digits": HEADER + ANSWER % (b"9" * 4_000, b'""'),
    "time that never comes": HEADER + ANSWER % (b"1e300", b'""'),
    "beginning that never was": b'{"gpunode_tape":1,"time":NaN}\n',
    "error of 4,000 digits": HEADER
    + b'{"t":0,"of":"/","call":"read_text","errno":%b}\n' % (b"9" * 4_000),
    "line of 300 MB": HEADER + bytes(300 * MIB),
}


@pytest.mark.parametrize("name", TAPES)
def test_a_hostile_tape_is_told_by_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(gzip.compress(TAPES[name], 1))
    before = psutil.Process().memory_full_info().uss
    with pytest.raises(TapeError, match=f"{path}: line [12]: ") as told:
        TapeNode(path)
    assert "\n" not in str(told.value)
    assert psutil.Process().memory_full_info().uss - before < 100 * MIB


FLOOD = """
import os, random, socket, sys, time
port, user = map(int, sys.argv[1:])
if user: os.setuid(user)
held = []
print("begins", flush=True)
while True:
    time.sleep(0.001)
    client = socket.socket()
    client.setblocking(False)
    try:
        parts = random.randrange(256), random.randrange(256), random.randrange(1, 255)
        client.bind(("127." + ".".join(map(str, parts)), 0))
        client.connect_ex(("127.0.0.1", port))
        client.send(b"GET /metrics HTTP/1.1\\r\\n")
    except OSError:
        pass
    held.append(client)
    for old in held[:-500]:
        old.close()
    del held[:-500]
"""


@pytest.mark.parametrize("user", [0, pytest.param(1234, marks=as_root)])
def test_a_flood_from_random_addresses_of_this_machine_keeps_no_scraper_out(
    victim: Daemon, user: int
) -> None:
    """Also where the scraper and the crowd are one user."""
    victim.get("/metrics")
    command = [sys.executable, "-c", FLOOD, str(victim.port), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdout is not None
        crowd.stdout.readline()
        try:
            refused = 'gpunode_refused_total{source="web",what="connections"}'
            begin = counted(victim, refused)
            for _ in range(20):
                assert b"gpunode_source_up" in victim.get("/metrics")
            until(lambda: counted(victim, refused) > begin)
        finally:
            crowd.kill()


def counted(running: Daemon, series: str) -> float:
    lines = running.get("/metrics").decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(series)), 0.0)


def ledger(running: Daemon) -> float:
    """The seconds of all GPUs in all states."""
    return sum(values(scrape(running), "gpunode_gpu_seconds_total"))
