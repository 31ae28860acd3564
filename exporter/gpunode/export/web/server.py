"""Runs the application until the process is told to end."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

TICK = 0.5
"""Seconds after which the server notices at the latest that it is to end."""

GRACE = 1
"""Seconds that a scrape under way is given at the end."""


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket. Raises ``OSError`` where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=128)


class Server(uvicorn.Server):
    """uvicorn, but it wakes twice a second, not ten times: most of what an idle daemon costs."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            await asyncio.sleep(TICK)
            ticks += round(10 * TICK)  # on_tick counts tenths of a second


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
    Server(config).run(sockets=[listener])
