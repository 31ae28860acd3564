"""``gpunode run``: watches this node and serves what it reads."""

from __future__ import annotations

import logging
import signal
from typing import Any

from gpunode import __version__
from gpunode.cli.boxed import boxed
from gpunode.cli.server import server
from gpunode.cli.settings.run import RunSettings
from gpunode.cli.watch import end, start, watched_node
from gpunode.sources import watch
from gpunode.verdict.asking import LooksOnDemand

log = logging.getLogger(__name__)


def run(settings: RunSettings) -> None:
    """Watch this node until a signal stops the daemon."""
    signal.signal(signal.SIGHUP, _stay)
    web, entrance, serving = server(settings.web, lambda: loop)
    node, box = boxed(
        watched_node(settings.path, settings.dcgm), settings.incident, settings.stacks
    )
    loop = watch(node, settings, *box, entrance, LooksOnDemand(node, settings))
    signal.signal(signal.SIGTERM, end)
    start(loop)
    log.info("gpunode %s listens on %s", __version__, web.listen_address)
    serving()
    loop.stop()


def _stay(*_: Any) -> None:
    """Survive what tells other daemons to read their settings again: counters begin at 0 anew."""
    log.warning("SIGHUP: the settings are read at the start only; restart gpunode for new ones")
