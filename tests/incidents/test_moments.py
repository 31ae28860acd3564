"""What is kept of what happened on the node stays small, whoever comes and goes."""

from __future__ import annotations

import pytest

from gpunode.incidents.incident import Happening
from gpunode.incidents.moments import SharedMoments


@pytest.mark.parametrize("latest_makes_way", [False, True])
def test_tenants_that_come_and_go_leave_nothing_behind(latest_makes_way: bool) -> None:
    shared = SharedMoments(4, latest_makes_way)
    for number in range(400):
        shared.add([(f"tenant {number}", Happening(float(number), "process", "came"))])
        assert len(list(shared)) <= 4
    assert len(shared._of) <= 4
    assert shared.left_out == 396
