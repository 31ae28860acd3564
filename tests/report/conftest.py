"""What a report reads is kept by a real Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

OF_A_PROMETHEUS = {"url", "server"}
"""The fixtures that start one."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask a Prometheus are part of the integration."""
    for item in items:
        own = Path(__file__).parent in item.path.parents
        if own and OF_A_PROMETHEUS & {*getattr(item, "fixturenames", ())}:
            item.add_marker("integration")
