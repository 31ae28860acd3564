"""A real Prometheus that is stopped and started while a fault stands."""

from __future__ import annotations

import pytest

from tests.alerts import restart
from tests.needs import need


@pytest.mark.integration
def test_a_restart_neither_resolves_a_page_nor_sends_it_again() -> None:
    need("prometheus")
    need("alertmanager", "prometheus-alertmanager")
    assert restart.run() == [("opened", "GpuUnhealthy"), ("closed", "GpuUnhealthy")]
