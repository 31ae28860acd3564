"""Runs the application until the process is told to end."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

GRACE = 1
"""Seconds that a scrape under way is given at the end."""


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket. Raises ``OSError`` where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=128)


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT where this is the main thread, else for ever."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    uvicorn.Server(config).run(sockets=[listener])
