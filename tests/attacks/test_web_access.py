"""Guessing passwords, and TLS that never begins, never ends, or begins again and again."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

import bcrypt
import pytest
import trustme

from gpunode.export.web.guard import SHARE
from gpunode.export.web.server import BACKLOG, CONNECTIONS, REQUEST_TIMEOUT
from tests.attacks.conftest import MAX_MEMORY
from tests.conftest import until
from tests.daemon import Daemon, peak_memory
from tests.export.test_web_access import (
    BASIC,
    HASHED,
    MUTUAL,
    SERVER,
    Papers,
    ask,
    basic,
    behind,
    papers,
)
from tests.needs import as_root, need

__all__ = ["papers"]

COSTLY = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(10)).decode()
USERS = f"basic_auth_users:\n  alice: {COSTLY}\n  bob: {COSTLY}\n"


@pytest.fixture
def locked(papers: Papers) -> Iterator[Daemon]:
    """A daemon whose passwords take as long to compare as htpasswd makes them."""
    with behind(papers.write(USERS)) as running:
        until(lambda: ask(running, "/readyz")[0] == 200)
        yield running


def guess(running: Daemon, stack: ExitStack, number: int, source: str = "127.0.0.1") -> None:
    """Send a wrong password, and do not wait for the answer."""
    client = stack.enter_context(
        socket.create_connection(("127.0.0.1", running.port), 5, source_address=(source, 0))
    )
    wrong = basic(f"alice:{number}".encode())
    client.sendall(f"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: {wrong}\r\n\r\n".encode())


def test_guessing_passwords_costs_little_and_keeps_nobody_out(locked: Daemon) -> None:
    assert ask(locked, authorization=BASIC)[0] == 200
    with ExitStack() as stack:
        guess(locked, stack, 0, "127.0.0.2")
        time.sleep(1)  # until it is known who guesses
        begin, cpu = time.monotonic(), locked.cpu_seconds()
        for number in range(50):
            guess(locked, stack, number, "127.0.0.2")
        asked = time.monotonic()
        assert ask(locked, authorization=BASIC)[0] == 200
        assert time.monotonic() - asked < 0.5, "a scraper that is known waits for nothing"
        asked = time.monotonic()
        assert ask(locked, authorization=basic(b"bob:correct horse"))[0] == 200
        assert time.monotonic() - asked < 5, "who guessed least is first"
        time.sleep(2)
        spent = (locked.cpu_seconds() - cpu) / (time.monotonic() - begin)
    assert spent < 3 * SHARE


GUESSING = """
import base64, http.client, subprocess, sys, threading, time
port, addresses = map(int, sys.argv[1:])
print("ready", flush=True)
places = [f"10.77.{1 + n // 250}.{1 + n % 250}" for n in range(addresses + 1)]
while subprocess.run(["ip", "link", "set", "wire1", "up"], stderr=subprocess.DEVNULL).returncode:
    time.sleep(0.1)
given = "".join(f"address add {place}/16 dev wire1\\n" for place in places)
subprocess.run(["ip", "-batch", "-"], input=given, text=True, check=True)
def ask(place, password):
    known = base64.b64encode(f"alice:{password}".encode()).decode()
    one = http.client.HTTPConnection("10.77.0.1", port, timeout=10, source_address=(place, 0))
    try:
        one.request("GET", "/metrics", headers={"Authorization": f"Basic {known}"})
        return one.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        one.close()
def guess(place):
    while True:
        ask(place, time.monotonic())
        time.sleep(0.05)
scraper, *guessing = places
for place in guessing:
    threading.Thread(target=guess, args=(place,), daemon=True).start()
while True:
    print(ask(scraper, "correct horse"), flush=True)
    time.sleep(0.5)
"""
"""A scraper and others who guess, each at an address of its own, at one end of a wire."""

WIRE = """
ip link add wire0 type veth peer name wire1 netns "$1" && ip address add 10.77.0.1/16 dev wire0 &&
ip link set wire0 up && exec "$0" -m gpunode run --web.listen-address=10.77.0.1:9816 \\
    --web.config.file="$2" --client.socket= --dcgm.address=
"""


@as_root
def test_who_has_the_password_is_soon_known_among_many_addresses_that_guess(
    papers: Papers,
) -> None:
    """After a restart, when nobody is known: some scrapes may be missed, and then none."""
    need("ip")
    apart = [need("unshare"), "--net"]
    crowd = [*apart, sys.executable, "-c", GUESSING, "9816", "200"]
    with subprocess.Popen(crowd, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout is not None
        assert clients.stdout.readline() == "ready\n"
        given = [sys.executable, str(clients.pid), str(papers.write(USERS))]
        with subprocess.Popen([*apart, "sh", "-c", WIRE, *given]) as server:
            try:
                for line in clients.stdout:
                    assert server.poll() is None
                    if line == "200\n":
                        break
                later = [clients.stdout.readline() for _ in range(20)]
                assert peak_memory(server.pid) < MAX_MEMORY
            finally:
                server.kill()
                clients.kill()
    assert later == ["200\n"] * 20


def test_the_end_waits_for_no_password(locked: Daemon) -> None:
    with ExitStack() as stack:
        for number in range(CONNECTIONS - 4):
            guess(locked, stack, number)
        begin = time.monotonic()
        locked.process.terminate()
        locked.process.wait(5)
        assert time.monotonic() - begin < 2


def test_clients_that_never_begin_with_tls_keep_nobody_out(papers: Papers) -> None:
    with behind(papers.write(SERVER)) as running, ExitStack() as stack:
        tls = papers.client(None)
        until(lambda: ask(running, "/readyz", tls)[0] == 200)
        before = running.process.num_fds()
        for _ in range(3 * CONNECTIONS):
            silent = socket.create_connection(("127.0.0.1", running.port), 5)
            stack.enter_context(silent)
        assert ask(running, tls=tls)[0] == 200
        assert running.process.num_fds() - before <= CONNECTIONS + 2
        until(lambda: running.process.num_fds() - before <= 2, 20)
        assert ask(running, tls=tls)[0] == 200


def test_a_flood_of_clients_that_never_finish_with_tls_takes_no_memory(papers: Papers) -> None:
    with behind(papers.write(SERVER)) as running, ExitStack() as stack:
        tls = papers.client(None)
        until(lambda: ask(running, "/readyz", tls)[0] == 200)
        before = running.process.memory_info().rss
        for _ in range(50):
            for _ in range(2 * CONNECTIONS):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", running.port))
            assert ask(running, "/readyz", tls)[0] == 200
            stack.pop_all().close()
        # asyncio keeps 256 KiB for each connection with TLS
        assert running.process.memory_info().rss - before < 2 * CONNECTIONS << 18


NO_TLS = {
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(100_000),
    "a record of 64 KiB": b"\x16\x03\x01\xff\xff" + bytes(65535),
    "half a hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    "an alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "nothing": b"",
}


def test_what_is_no_tls_is_hung_up_on(papers: Papers) -> None:
    with behind(papers.write(SERVER)) as running:
        for content in NO_TLS.values():
            with socket.create_connection(("127.0.0.1", running.port), 5) as client:
                try:
                    client.sendall(content)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(65536):
                        pass
                except OSError:
                    pass
        assert ask(running, tls=papers.client(None))[0] == 200


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(papers: Papers) -> None:
    with behind(papers.write(SERVER + USERS.replace(COSTLY, HASHED))) as running:
        until(lambda: ask(running, "/readyz", papers.client(None))[0] == 200)
        before = running.process.num_fds()
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", running.port), 5) as client:
                client.settimeout(0)
                context = papers.client(None)
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                hello = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
                with pytest.raises(ssl.SSLWantReadError):
                    hello.do_handshake()
                client.sendall(outgoing.read())
        until(lambda: running.process.num_fds() <= before + 1)
        assert ask(running, tls=papers.client(None), authorization=BASIC)[0] == 200


CROWD = """
import random, socket, ssl, sys, time
port, how, certificate = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
if how == "TLS 1.2":
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
if certificate:
    tls.load_cert_chain(*certificate)
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
begins = tls.wrap_bio(incoming, outgoing)
try:
    begins.do_handshake()
except ssl.SSLWantReadError:
    hello = outgoing.read()
held = []
print("begins", flush=True)
while True:
    time.sleep(0.005)
    parts = random.randrange(256), random.randrange(256), random.randrange(1, 255)
    source = ("127." + ".".join(map(str, parts)), 0)
    try:
        client = socket.create_connection(("127.0.0.1", port), 5, source_address=source)
        if how == "half":
            client.setblocking(False)
            client.send(hello)
            held = [*held[-200:], client]
            continue
        with tls.wrap_socket(client) as encrypted:
            encrypted.sendall(b"GET /metrics HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
            if encrypted.recv(1):
                print("a page", flush=True)
    except OSError:
        pass
"""


def test_no_crowd_that_shakes_hands_keeps_a_certificate_out_or_gets_in(papers: Papers) -> None:
    stranger = Papers(papers.folder / "stranger", trustme.CA())
    stranger.folder.mkdir()
    stranger.issue("client", "prometheus.monitoring")
    shown = [str(stranger.folder / f"client.{end}") for end in ("crt", "key")]
    with behind(papers.write(MUTUAL)) as running, ExitStack() as stack:
        tls = papers.client()
        until(lambda: ask(running, "/metrics", tls)[0] == 200)
        before = running.process.num_fds()
        crowds = []
        for how in (["half"], ["TLS 1.2"], ["TLS 1.3", *shown]):
            command = [sys.executable, "-c", CROWD, str(running.port), *how]
            crowd = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(crowd.kill)
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == b"begins\n"
            crowds.append(crowd)
        for _ in range(12):
            asked = time.monotonic()
            assert ask(running, tls=tls)[0] == 200
            assert time.monotonic() - asked < REQUEST_TIMEOUT
            assert running.process.num_fds() - before <= CONNECTIONS + BACKLOG
            time.sleep(0.1)
        for crowd in crowds:
            crowd.kill()
            assert not crowd.communicate()[0], "a page without a certificate that is trusted"


def test_a_session_outlives_no_certificate(papers: Papers) -> None:
    with behind(papers.write(MUTUAL)) as running:
        until(lambda: ask(running, "/readyz", papers.client())[0] == 200)
        expires = datetime.now(timezone.utc) + timedelta(seconds=3)
        papers.issue("short", "prometheus.monitoring", not_after=expires)
        begun = []
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            tls = papers.client("short")
            tls.maximum_version = version
            session = healthy(running, tls)
            assert session is not None
            assert not session.has_ticket
            assert healthy(running, tls, session)
            begun.append((tls, session))
        time.sleep(max(0.0, expires.timestamp() + 1.1 - time.time()))
        assert [healthy(running, *one) for one in begun] == [None, None]


def healthy(
    running: Daemon, tls: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """The session within which it said that it is well; none if it did not say so."""
    address = ("127.0.0.1", running.port)
    try:
        with (
            socket.create_connection(address, 5) as client,
            tls.wrap_socket(client, server_hostname="127.0.0.1", session=session) as encrypted,
        ):
            encrypted.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            said = encrypted.recv(4096)
            return encrypted.session if said.startswith(b"HTTP/1.1 200") else None
    except OSError:
        return None


def test_no_client_has_keys_negotiated_anew(papers: Papers) -> None:
    with behind(papers.write(SERVER)) as running:
        until(lambda: ask(running, "/readyz", papers.client(None))[0] == 200)
        command = [need("openssl"), "s_client", "-tls1_2", "-connect", f"127.0.0.1:{running.port}"]
        client = subprocess.run(command, input=b"R\n", capture_output=True, check=False, timeout=60)
        assert b"RENEGOTIATING" in client.stdout + client.stderr
        assert b"no renegotiation" in client.stderr
