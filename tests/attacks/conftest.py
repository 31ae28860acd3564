"""What holds in each attack, whatever it tries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

MAX_MEMORY = 128 << 20
"""Bytes of a daemon with up to four GPUs."""


@pytest.fixture(autouse=True, scope="module")
def little_memory() -> Iterator[None]:
    """No daemon takes more memory, at any time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.daemon.MAX_MEMORY", MAX_MEMORY)
        yield
