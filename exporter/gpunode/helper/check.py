"""Whether a helper is well, as Kubernetes asks: ``gpunode helper --check``."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

CONNECT_TIMEOUT = 3.0
"""Seconds within which a helper that is well takes a connection."""


def is_well(path: Path) -> bool:
    """Whether a helper takes a connection: it answers its user, and hangs up on anybody else."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.settimeout(CONNECT_TIMEOUT)
        try:
            one.connect(str(path))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                one.send(b"cost")
                one.recv(1)
        except OSError:
            return False
        return True
