"""Where the socket of the client is, nothing else is touched."""

from __future__ import annotations

import socket
import stat
import tempfile
from pathlib import Path

import pytest

from gpunode.helper import sockets


def test_a_link_to_another_socket_of_ours_opens_that_to_nobody() -> None:
    """Whoever may write to the folder puts a link in its place right after it is bound."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        other, path = Path(folder) / "other.sock", Path(folder) / "client.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
            bound.bind(str(other))
            other.chmod(0o600)
            path.symlink_to(other)
            with pytest.raises(OSError, match="something else took its place"):
                sockets._open_to_all(path)
            assert stat.S_IMODE(other.stat().st_mode) == 0o600
