"""Serves a loop at an address, which is bound before the loop starts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from gpunode.config.web import WebSettings
from gpunode.export.web.access import AccessFile
from gpunode.export.web.app import create_app
from gpunode.export.web.entrance import Entrance
from gpunode.export.web.server import listen, serve
from gpunode.loop import Loop
from gpunode.mistake import UsageError


def server(
    asked: WebSettings, loop: Callable[[], Loop]
) -> tuple[WebSettings, Entrance, Callable[[], None]]:
    """Where the loop is served, how that goes, and a function that serves it; the port is bound.

    Where the settings have port 0, it is one that was free.
    """
    path = asked.config.file
    entrance = Entrance(AccessFile(path) if path else None)
    try:
        listener = listen(asked.address)
    except OSError as error:
        of_kernel = (error.errno or 0) > 0  # or of the resolver, below 0
        why = os.strerror(error.errno or 0) if of_kernel else error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why += "; stop what listens there, or give another port with --web.listen-address"
        raise UsageError(f"web.listen_address: {asked.listen_address}: {why}") from error
    host, _, _ = asked.listen_address.rpartition(":")
    bound = f"{host}:{listener.getsockname()[1]}"
    web = asked.model_copy(update={"listen_address": bound})
    return web, entrance, lambda: serve(create_app(loop), listener, entrance)
