"""A checkout with a tag for a release, and a registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import twice


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as it would be pushed, with a tag for a release."""
    return twice.cloned(tmp_path_factory.mktemp("release") / "clone")


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry of images and charts on this machine."""
    with twice.registry(tmp_path_factory.mktemp("registry") / "log") as address:
        yield address
