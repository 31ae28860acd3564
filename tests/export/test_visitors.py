"""Whose connection makes way, and what a request means, whoever sends it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import bcrypt
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpunode.export.web import guard
from gpunode.export.web.access import Access
from gpunode.export.web.guard import Guard, Passwords, takes_gzip
from gpunode.export.web.visitors import (
    READERS,
    READERS_OF_ORIGIN,
    RECENT,
    RESERVED,
    Reader,
    Visitors,
    origin_of,
)
from tests.daemon import TIMEOUT
from tests.needs import as_root


@dataclass(frozen=True, slots=True)
class Known:
    """A visit of which it is known whose it is."""

    reader: Reader


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection."""

    visit: Any
    begun: float


def connected(begun: float, address: str, origin: str = "") -> Connection:
    return Connection(Known(Reader(origin or address, address)), begun)


SCRAPER = Reader("user 65534", "127.0.0.1")


def test_the_oldest_of_the_origin_that_has_most_makes_way() -> None:
    crowd = [connected(10 + n, f"127.9.9.{n}", "user 1000") for n in range(5)]
    alone = connected(0, "10.0.0.1")
    assert Visitors().makes_way([alone, *crowd[::-1]]) is crowd[0]


def test_who_has_lately_read_a_page_has_a_reserve_also_within_its_origin() -> None:
    now = [0.0]
    visitors = Visitors(lambda: now[0])
    visitors.has_read(SCRAPER)
    scrapes = [connected(n, SCRAPER.address, SCRAPER.origin) for n in range(RESERVED + 1)]
    crowd = [connected(10 + n, f"127.9.9.{n}", SCRAPER.origin) for n in range(60)]
    assert visitors.makes_way([*crowd, *scrapes]) is scrapes[-1]
    assert visitors.makes_way([*crowd, *scrapes[:-1]]) is crowd[0]
    now[0] += RECENT
    assert visitors.makes_way([*crowd, *scrapes]) is scrapes[0]


def test_no_crowd_of_readers_makes_another_be_forgotten() -> None:
    visitors = Visitors(lambda: 0.0)
    visitors.has_read(SCRAPER)
    for n in range(1000):
        visitors.has_read(Reader(f"user {n // 10}", f"127.0.{n >> 8}.{n & 255}"))
    assert len(visitors._read) == READERS
    assert SCRAPER in visitors._read
    of_one = Visitors(lambda: 0.0)
    for n in range(1000):
        of_one.has_read(Reader("user 1", f"127.0.{n >> 8}.{n & 255}"))
    assert len(of_one._read) == READERS_OF_ORIGIN


ORIGINS = {
    "10.1.2.3": ("10.1.2.3", "::ffff:10.1.2.3"),
    "2001:db8::/64": ("2001:db8::1", "2001:db8:0:0:ffff::9"),
    "fe80::/64": ("fe80::1%eth0", "fe80::2"),
    "this machine": ("127.0.0.1", "127.255.3.9", "::1", "::ffff:127.8.8.8"),
    "none": ("none",),
}


def test_an_origin_is_a_user_an_address_or_a_network() -> None:
    for origin, addresses in ORIGINS.items():
        for address in addresses:
            assert origin_of((address, 1), ("10.9.9.9", 9816)) == origin


@contextmanager
def client_of(user: int, server: socket.socket) -> Iterator[tuple[Any, Any]]:
    """The ends of a connection that another user has opened."""
    program = "import os, socket, sys; os.setuid(int(sys.argv[1])); s = socket.socket(); "
    program += "s.bind(('127.77.0.9', 0)); s.connect(('127.0.0.1', int(sys.argv[2]))); input()"
    port = str(server.getsockname()[1])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(user), port], stdin=subprocess.PIPE
    ) as child:
        connection, peer = server.accept()
        with connection:
            yield peer, connection.getsockname()
        child.kill()


@as_root
def test_the_kernel_says_which_user_of_this_machine_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for user in (1234, os.geteuid()):
            with client_of(user, server) as (peer, here):
                assert origin_of(peer, here) == f"user {user}"


def test_who_has_closed_a_connection_is_not_taken_for_root() -> None:
    """The kernel keeps no user of a connection that waits for its end, and says 0."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        connection, peer = server.accept()
        with connection:
            client.close()
            assert origin_of(peer, connection.getsockname()) == "this machine"


HASHED = bcrypt.hashpw(b"right", bcrypt.gensalt(4))


async def first_right(wrong: list[Reader], scraper: Reader) -> int:
    """How many wrong passwords are compared before a right one that comes after them."""
    passwords, compared = Passwords(), []

    async def ask(reader: Reader, password: bytes) -> None:
        compared.append((await passwords.right({"a": HASHED}, "a", password, reader), reader))

    tasks = [asyncio.create_task(ask(one, b"%d" % n)) for n, one in enumerate(wrong)]
    tasks.append(asyncio.create_task(ask(scraper, b"right")))
    await asyncio.gather(*tasks)
    return [right for right, _ in compared].index(True)


def test_a_user_who_guesses_from_many_addresses_waits_behind_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "SHARE", 1.0)  # without rests
    guesses = [Reader("user 1000", f"127.1.0.{n}") for n in range(50)]
    for scraper in (Reader("10.0.0.1", "10.0.0.1"), SCRAPER):
        assert asyncio.run(first_right(guesses, scraper)) <= 1


def test_the_first_guess_of_each_costs_no_rest_until_the_credit_is_spent() -> None:
    async def guess() -> tuple[float, float]:
        passwords = Passwords()
        before = passwords._credit
        for n in range(20):
            await passwords.right({"a": HASHED}, "a", b"x", Reader(f"10.0.0.{n}", f"10.0.0.{n}"))
        return before, passwords._credit

    before, after = asyncio.run(guess())
    assert 0 <= after < before


def test_a_user_who_is_not_there_costs_as_much_as_the_dearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the time that an answer takes would tell the names of users."""
    compared = []

    def note(_: bytes, hashed: bytes) -> tuple[bool, float]:
        compared.append(hashed)
        return True, 0.0

    monkeypatch.setattr(guard, "compare_password", note)
    dearest = bcrypt.hashpw(b"right", bcrypt.gensalt(5))
    users = {"a": HASHED, "b": dearest, "c": HASHED}
    assert asyncio.run(Passwords().right(users, "nobody", b"x", SCRAPER)) is False
    assert compared == [dearest]


ACCEPTED = {
    "gzip": True,
    "deflate, gzip;q=1.0": True,
    "GZIP ; Q=0.5": True,
    "x-gzip": True,
    "": False,
    "identity": False,
    "gzip;q=0": False,
    "gzip;q=0.000": False,
    "gzip;q=0.0.0": False,
    "gzip;q=-1": False,
    "not-gzip": False,
    "br;q=1, gzip; q=0": False,
    "gzip;level=9": False,
}


def test_only_who_takes_gzip_gets_it() -> None:
    assert {header: takes_gzip(header) for header in ACCEPTED} == ACCEPTED


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()

    @app.get("/metrics")
    async def metrics() -> dict[str, str]:
        return {}

    @app.get("/")
    async def root() -> str:
        return "root"

    return TestClient(Guard(app, Access, Visitors()))


def asked(app: Any, target: bytes) -> int:
    """The status of an answer to a request with a target as it stands on the line."""
    status = [0]

    async def ask() -> None:
        async def receive() -> Mapping[str, Any]:
            await asyncio.sleep(TIMEOUT)  # it sends no body, and does not hang up
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            status[0] = message.get("status", status[0])

        path = target.partition(b"?")[0].decode()
        ends = {"client": ("10.0.0.1", 1), "server": ("10.0.0.2", 9816)}
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
        await app(
            {**scope, **ends, "query_string": b"", "headers": [], "root_path": ""}, receive, send
        )

    asyncio.run(ask())
    return status[0]


TARGETS = {
    b"/metrics": 200,
    b"http://node:9816/metrics": 200,
    b"HTTPS://other.example/metrics": 200,
    b"http://node:9816": 200,
    b"http://node:9816/nothing": 404,
    b"ftp://node/metrics": 404,
    b"http:/metrics": 404,
    b"//node/metrics": 404,
}


def test_a_target_may_have_the_address_of_the_server(client: TestClient) -> None:
    assert {target: asked(client.app, target) for target in TARGETS} == TARGETS


def test_no_form_of_a_target_opens_a_page_without_a_password() -> None:
    app = FastAPI()

    @app.get("/{anything:path}")
    async def everything() -> str:
        return "secret"

    locked = Guard(app, lambda: Access(users={"a": HASHED}), Visitors())
    for page in (b"/metrics", b"http://node/metrics", b"http://node/healthz/x"):
        assert asked(locked, page) == 401
    assert asked(locked, b"http://node/healthz") == 200
