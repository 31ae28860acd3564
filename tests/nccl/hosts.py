"""Hosts on this machine: network namespaces, each with a link of its own to a common bridge."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts by name, each with its address."""

    bridge: str
    addresses: dict[str, str]

    def start(self, host: str, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Run a program on a host, as ssh would."""
        inside = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c"]
        return subprocess.Popen(
            [*inside, f'hostname {host}; exec "$@"', "sh", *command],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def limit(self, host: str, rate: str) -> None:
        """Limit what a host sends, to a rate as tc has it."""
        shape = ["rate", rate, "burst", "4mb", "latency", "50ms"]
        _run("tc", "-n", host, "qdisc", "replace", "dev", "eth0", "root", "tbf", *shape)


@contextmanager
def hosts(number: int, rates: Sequence[str]) -> Iterator[Hosts]:
    """As many hosts as there are rates, none of which sends faster, on a network of this number."""
    bridge, network = f"gpunode{number}", f"10.88.{number % 256}"
    addresses = {f"host-{number}-{place}": f"{network}.{place + 2}" for place in range(len(rates))}
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{network}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        made = Hosts(bridge, addresses)
        for place, (host, address) in enumerate(addresses.items()):
            port = f"{bridge}-{place}"
            _run("ip", "netns", "add", host)
            peer = ["type", "veth", "peer", "name", "eth0", "netns", host]
            _run("ip", "link", "add", port, *peer)
            _run("ip", "link", "set", port, "master", bridge, "up")
            _run("ip", "-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _run("ip", "-n", host, "link", "set", device, "up")
            made.limit(host, rates[place])
        yield made
    finally:
        for host in addresses:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
