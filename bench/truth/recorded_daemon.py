"""A daemon that writes each window as it closes, for benchmarks that hold windows against truth."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.truth.recorder import VARIABLE, Windows
from tests.daemon import Daemon, daemon


@contextmanager
def recorded_daemon(*options: str) -> Iterator[tuple[Daemon, Windows]]:
    """A daemon with these options, and the windows that it has closed."""
    with tempfile.TemporaryDirectory(prefix="recorded.") as folder:
        path = Path(folder) / "windows"
        path.touch()
        environment = {**os.environ, VARIABLE: str(path)}
        module = "bench.truth.recorder"
        with daemon(*options, environment=environment, module=module) as watched:
            yield watched, Windows(path)
