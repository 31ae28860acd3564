"""Which nodes FleetFault speaks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.rule_files import NODES
from tests.alerts.test_link import describes

pytestmark = pytest.mark.integration


def test_it_names_the_nodes_that_it_counts(tmp_path: Path) -> None:
    """Not those that are drained, be they more than it has room for."""
    nodes = {f"n-{number}": number <= 5 for number in range(1, 8)}
    faulty = {f'node:gpunode_fault:level{{instance="{node}",fault="gpu"}}': 2 for node in nodes}
    drained = {
        f'node:gpunode_drained:max{{instance="{node}"}}': 1 for node, off in nodes.items() if off
    }
    describes(tmp_path, NODES, {"fault": "gpu"}, {**faulty, **drained}, " Among them: n-6, n-7.")
