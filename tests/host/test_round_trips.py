"""Round-trip times of TCP connections, from the kernel."""

from __future__ import annotations

import socket
import struct

import pytest

from gpunode.node import round_trips
from tests.fuzz import seeds


def test_a_connection_to_another_machine_counts() -> None:
    assert round_trips.parse_round_trips(seeds.ROUND_TRIPS) == [187e-6]


@pytest.mark.parametrize(
    ("far", "near"), [("127.0.0.2", "10.0.0.1"), ("10.0.0.1", "10.0.0.1")], ids=["loopback", "own"]
)
def test_a_connection_within_the_node_does_not(far: str, near: str) -> None:
    hosts = [socket.inet_aton(one).ljust(16, b"\0") for one in (near, far)]
    ends = b"".join(hosts)
    said = seeds.ROUND_TRIPS[:24] + ends + seeds.ROUND_TRIPS[24 + len(ends) :]
    assert round_trips.parse_round_trips(said) == []


def test_an_error_is_told() -> None:
    refused = struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -13)
    with pytest.raises(ValueError, match="Permission denied"):
        round_trips.parse_round_trips(refused)


def test_the_kernel_tells_of_an_open_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_trips, "_is_loopback", lambda *_: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        near = ("127.0.0.7", 0)
        with socket.create_connection(("127.0.0.1", port), source_address=near) as one:
            other, _ = server.accept()
            with other:
                one.sendall(b"there")
                other.recv(5)
                other.sendall(b"and back")
                one.recv(8)
                found = round_trips.round_trips()
    assert found
    assert all(0 < seconds < 60 for seconds in found)
