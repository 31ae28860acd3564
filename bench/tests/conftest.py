"""The fake driver of the tests, for benches that are tried without a GPU."""

from __future__ import annotations

from tests.conftest import fake, fake_library

__all__ = ["fake", "fake_library"]
