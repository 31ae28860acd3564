"""A RAS service that answers as NCCL does, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.source import Source
from tests import machine
from tests.machine import OneGpu, exported

HOSTS = ("10.0.0.1", "192.0.2.2")
"""The addresses that this machine has in the answers, besides its own."""


@dataclass
class RasServer:
    """A service on 127.0.0.1 that answers what ``answer`` says, as NCCL does: then it closes."""

    port: int
    answer: str = ""
    hang: bool = False
    drip: bool = False
    asked: int = 0


@contextlib.contextmanager
def ras_server() -> Iterator[RasServer]:
    """Serve for as long as the block lasts."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RasServer(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    server.asked += 1
                    connection.recv(4096)
                    if server.hang:
                        done.wait(30)
                    while server.drip and not done.wait(0.01):
                        connection.sendall(b" ")
                    connection.sendall(server.answer.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            done.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def rank(number: int, launched: int, pid: int = 100) -> dict[str, object]:
    """A rank that runs well: eight to a host, each in a process of its own."""
    return {
        "rank": number,
        "host": f"10.0.0.{number // 8 + 1}",
        "pid": pid + number,
        "cuda_dev": number % 8,
        "nvml_dev": number % 8,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False},
        "collective_counts": {"Broadcast": 2, "AllReduce": launched},
    }


def status(
    ranks: list[dict[str, object]],
    missing: list[dict[str, object]] | None = None,
    name: str = "0x1",
) -> str:
    """An answer in JSON after what precedes it on the wire."""
    communicator = {
        "hash": name,
        "size": len(ranks) + len(missing or []),
        "ranks": ranks,
        "missing_ranks": missing or [],
    }
    whole = {"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [communicator]}
    return "SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps(whole, indent=2)


class RasNode(OneGpu):
    """This machine, on which this process is on GPU 0 and its RAS is at a port."""

    def __init__(self, port: int, environment: dict[str, str] | None = None) -> None:
        super().__init__(os.getpid())
        address = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
        self.started_with = address if environment is None else environment

    def environment(self, _: int) -> dict[str, str]:
        return self.started_with

    def read_text(self, path: str) -> str:
        text = super().read_text(path)
        if path.endswith("/net/fib_trie"):
            text += "".join(f"  |-- {host}\n    /32 host LOCAL\n" for host in HOSTS)
        return text


def page(source: Source) -> str:
    """What a source exports now, as text."""
    return exported(machine.read_source(source))
