"""Serves the application until the process is told to stop, whatever its clients do."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpunode.config.web import socket_here
from gpunode.export.web.access import Access
from gpunode.export.web.entrance import Entrance
from gpunode.export.web.guard import Guard, TrustedApplication
from gpunode.export.web.private import is_trusted
from gpunode.export.web.visitors import Visit, Visitors

log = logging.getLogger(__name__)

TICK = 0.5
"""The longest time, in seconds, until the server notices that it must stop."""

GRACE = 0.5
"""Seconds that running scrapes have to finish at shutdown."""

REQUEST_TIMEOUT = 10
"""Seconds that a client has to send its request and read the answer: what Prometheus waits for a
scrape by default (``scrape_timeout``)."""

CONNECTIONS = 64
"""The most connections at a time. A process may open 1,024 files by default, and the sources need
nearly all of them on a busy node."""

BACKLOG = 128
"""Connections that the kernel keeps waiting, and the most that asyncio accepts at once."""


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket. Raises ``OSError`` if the address is in use or not local."""
    if not address[0] and socket.has_dualstack_ipv6():
        # A pod may have an address of one kind only.
        return socket.create_server(
            address, family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=BACKLOG)


def listen_here(port: int) -> list[socket.socket]:
    """The socket for root on this node; none where another has its name."""
    here = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        here.bind(socket_here(port))
    except OSError as error:
        here.close()
        why = error.strerror
        log.warning("no socket for `gpunode incidents`: %s: @gpunode-%d", why, port)
        return []
    return [here]


class Connection(H11Protocol):
    """A connection for one request, which ends in time.

    Where there are too many, one of the origin that has most makes way, so that idle or slow
    clients cannot keep a scraper out. Both count from before TLS begins, and TLS is as configured
    then.
    """

    def __init__(
        self,
        *,
        access: Callable[[], Access],
        visitors: Visitors,
        entrance: Entrance,
        trusted: TrustedApplication,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self.trusted = trusted
        self.access = access
        self.visitors = visitors
        self.entrance = entrance
        self.early = b""
        self.encrypting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.deadline = self.loop.call_later(REQUEST_TIMEOUT, self.abort)
        connections = cast(set[Connection], self.connections)
        connections.add(self)
        here = transport.get_extra_info("socket")
        if here.family == socket.AF_UNIX:
            self.visit = Visit(None, None)
            if is_trusted(here):
                self.app = self.trusted
                super().connection_made(transport)
            else:
                self.abort()
            return
        self.visit = Visit(*(transport.get_extra_info(end) for end in ("peername", "sockname")))
        if len(connections) > CONNECTIONS:
            self.visitors.makes_way(connections).abort()
            self.entrance.refused += 1
        access = self.access()
        if access.tls is None:
            super().connection_made(transport)
        else:
            transport.pause_reading()  # the first bytes are for TLS
            self.encrypting = self.loop.create_task(self._encrypt(access, access.tls))

    async def _encrypt(self, access: Access, tls: ssl.SSLContext) -> None:
        try:
            encrypted = await self.loop.start_tls(
                self.transport, self, tls, server_side=True, ssl_handshake_timeout=REQUEST_TIMEOUT
            )
        except OSError as error:  # its client's matter, like a request that is malformed
            # Its traceback leads to what asyncio keeps of it, 256 KiB, which leads back to it: only
            # the next garbage collection would free that.
            log.debug("TLS: %s", error.with_traceback(None))
            encrypted = None
        if encrypted is None or not access.welcomes(encrypted.get_extra_info("peercert")):
            self.abort()
        else:
            super().connection_made(encrypted)
            if self.early:
                self.data_received(self.early)

    @property
    def begun(self) -> float:
        """When it began, on the clock of the event loop."""
        return self.deadline.when()

    def data_received(self, data: bytes) -> None:
        if self.flow is None:  # it came with the last bytes of the handshake
            self.early += data
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        super().connection_lost(exc)

    def abort(self) -> None:
        """End now, with what is not sent yet."""
        self.deadline.cancel()
        self.connections.discard(self)
        if self.encrypting is not None:
            # On a transport that is closed, TLS would wait for its timeout. What was cancelled has
            # its buffers in its traceback, and goes with it at once where nothing refers to it.
            self.encrypting.cancel()
            self.encrypting = None
        if self.cycle is not None:
            self.cycle.disconnected = True  # its answer goes nowhere
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None:
            super().send_400_response(msg)
        else:  # the body is malformed: an answer may have begun
            self.abort()


class WebServer(uvicorn.Server):
    """uvicorn with two wake-ups a second, not ten: they are most of an idle daemon's cost."""

    async def main_loop(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_complain)
        ticks = 0
        while not await self.on_tick(ticks):
            await asyncio.sleep(TICK)
            ticks += round(10 * TICK)  # on_tick counts tenths of a second

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(GRACE, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _complain(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a fault of the event loop in one line, without asyncio's traceback."""
    log.error("%s: %r", context["message"], context.get("exception"))


def serve(app: FastAPI, listener: socket.socket, entrance: Entrance) -> None:
    """Serve until SIGTERM or SIGINT in the main thread, forever in any other."""
    everyone, visitors, file = Access(), Visitors(), entrance.file

    def access() -> Access:
        return file.access if file else everyone

    if file:
        threading.Thread(target=file.follow, name="web_config", daemon=True).start()
    config = uvicorn.Config(
        Guard(app, access, visitors),
        http=cast(
            type[asyncio.Protocol],
            partial(
                Connection,
                access=access,
                visitors=visitors,
                entrance=entrance,
                trusted=TrustedApplication(app),
            ),
        ),
        ws="none",
        loop="asyncio",
        workers=1,
        log_config=None,
        log_level="error",  # a request that is malformed is its client's matter
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        headers=[("connection", "close")],
        backlog=BACKLOG,
    )
    port = listener.getsockname()[1]
    WebServer(config).run(sockets=[listener, *listen_here(port)])
