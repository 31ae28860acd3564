"""Serves the page over a loop that a test plays."""

from __future__ import annotations

import threading

from gpunode.export.web.app import create_app
from gpunode.export.web.entrance import Entrance
from gpunode.export.web.server import listen, serve
from gpunode.loop import Loop


def served(loop: Loop) -> str:
    """The address of a page over a loop; it is served until the tests end."""
    listener = listen(("127.0.0.1", 0))
    app = create_app(lambda: loop)
    threading.Thread(target=serve, args=(app, listener, Entrance(None)), daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/"
