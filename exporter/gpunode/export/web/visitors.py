"""Who is connected to the server, and whose connection makes way where there are too many.

A connection counts for its origin, as the kernel tells it, because one client can have many
addresses: 2^24 of the loopback network, and 2^64 of a network of IPv6.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

from gpunode.helper import sock_diag
from gpunode.helper.tcp import Address, server_of

RECENT = 600.0
"""Seconds for which it counts that somebody has read a page: ten of the longest usual intervals
between two scrapes."""

RESERVED = 2
"""Connections of each reader that never make way: two Prometheus servers may share an address."""

READERS = 16
"""The most readers with a reserve, which is half of all connections."""

READERS_OF_ORIGIN = 4
"""The most readers of one origin among them."""


class Reader(NamedTuple):
    """An address of an origin."""

    origin: str
    address: str


class Visit:
    """One connection, from this end (``here``) and from the other."""

    def __init__(self, peer: tuple[str, int] | None, here: tuple[str, int] | None) -> None:
        self._ends = peer, here

    @cached_property
    def reader(self) -> Reader:
        """Whose connection it is; both names are empty where the client has gone again."""
        peer, here = self._ends
        if peer is None or here is None:
            return Reader("", "")
        return Reader(origin_of(peer, here), peer[0])


class ServerConnection(Protocol):
    """A connection of the server."""

    @property
    def visit(self) -> Visit: ...
    @property
    def begun(self) -> float: ...


C = TypeVar("C", bound=ServerConnection)


class Visitors:
    """Remembers who has lately read a page: a flood of others does not take their place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: dict[Reader, float] = {}

    def has_read(self, reader: Reader) -> None:
        """Note that a reader was given a page.

        Who is new takes nobody's place, so that a crowd cannot make the others be forgotten.
        """
        now = self._clock()
        if reader not in self._read:
            self._read = {one: at for one, at in self._read.items() if now - at < RECENT}
            of_origin = sum(one.origin == reader.origin for one in self._read)
            if len(self._read) >= READERS or of_origin >= READERS_OF_ORIGIN:
                return
        self._read[reader] = now

    def makes_way(self, connections: Iterable[C]) -> C:
        """The oldest connection of the origin that has most, but for the reserve of readers."""
        now = self._clock()
        reserved: Counter[Reader] = Counter()
        others: list[C] = []
        for one in sorted(connections, key=lambda one: one.begun):
            reader = one.visit.reader
            known = now - self._read.get(reader, now - RECENT) < RECENT
            if known and reserved[reader] < RESERVED:
                reserved[reader] += 1
            else:
                others.append(one)
        of = Counter(one.visit.reader.origin for one in others)
        return min(others, key=lambda one: (-of[one.visit.reader.origin], one.begun))


def origin_of(peer: tuple[str, int], here: tuple[str, int]) -> str:
    """Who has opened a connection: a user of this machine, an address, or a network.

    The kernel knows the user of each end of a connection within this machine. Where it does not
    tell, all of the loopback network is one.
    """
    try:
        address = plain_address(peer[0])
        server = plain_address(here[0])
    except ValueError:
        return peer[0]
    if address.is_loopback or address == server:
        user = user_of(_end(address, peer[1]), _end(server, here[1]))
        return "this machine" if user is None else f"user {user}"
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; that of a client of IPv4 is one of IPv4. Raises ``ValueError``."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _end(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> Address:
    return Address.parse(f"{address}:{port}")


def user_of(near: Address, far: Address) -> int | None:
    """The user whose socket is the near end of a connection in our network namespace.

    None if the kernel does not tell, as of a socket that its process has closed.
    """
    try:
        with sock_diag.connect() as kernel:
            found = server_of(kernel, near, far)
    except OSError:
        return None
    return found.user if found is not None and found.inode else None
