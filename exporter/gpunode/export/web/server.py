"""Serves the application until the process is told to stop."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

TICK = 0.5
"""The longest time, in seconds, until the server notices that it must stop."""

GRACE = 1
"""Seconds that a running scrape has to finish at shutdown."""


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket. Raises ``OSError`` if the address is in use or not local."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=128)


class Server(uvicorn.Server):
    """uvicorn with two wake-ups a second, not ten: they are most of an idle daemon's cost."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            await asyncio.sleep(TICK)
            ticks += round(10 * TICK)  # on_tick counts tenths of a second


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT in the main thread, forever in any other."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    Server(config).run(sockets=[listener])
