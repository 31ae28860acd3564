"""``gpunode record``: keeps on a tape what this node answers."""

from __future__ import annotations

import logging
import signal
import time

from gpunode.cli.settings.record import RecordSettings
from gpunode.cli.watch import end, start, watched_node
from gpunode.mistake import UsageError
from gpunode.node.tape import RecordingNode, TapeWriter
from gpunode.sources import watch

log = logging.getLogger(__name__)


HEARD = 1.0
"""Seconds within which a signal is heard that comes just before a wait and so does not end it."""


def record(settings: RecordSettings) -> None:
    """Record what this node answers to a tape."""
    node = watched_node(settings.path, settings.dcgm)
    try:
        tape = TapeWriter(settings.file, node, settings.max_bytes, settings.comment)
    except OSError as error:
        raise UsageError(f"{settings.file}: {error.strerror}") from error
    recorded = RecordingNode(node, tape)
    loop = watch(recorded, settings)
    signal.signal(signal.SIGTERM, end)
    try:
        start(loop)
        until = time.monotonic() + settings.duration
        while (left := until - time.monotonic()) > 0 and not tape.filled.wait(min(left, HEARD)):
            pass
    finally:
        loop.stop()
        try:
            tape.close()
            size = settings.file.stat().st_size
        except OSError as error:
            raise UsageError(f"{settings.file}: {error.strerror}") from error
    log.info("recorded %s, %d bytes", settings.file, size)
