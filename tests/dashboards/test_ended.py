"""What graphs by cause say of a cause that has ended: none, beside the figures of now.

A legend shows the last figure of each series. Without a figure for what has ended, it told of 32
ranks that are well beside 31 that wait, of the 32 of a job.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboards import FOLDER
from tests.dashboards.promtool import promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled

CHANGES, GONE = 8, 20
"""Minutes: the cause is another one, and nothing is seen any more."""

OF_JOB = {"cluster": "c", "owner_namespace": "team", "workload": "train"}


@pytest.mark.parametrize(
    ("uid", "title", "counted", "seen"),
    [
        ("gpunode-job", "Ranks by verdict", "job:gpunode_rank:count", ""),
        (
            "gpunode-fleet",
            "GPUs held up, by cause",
            "namespace:gpunode_held_up:count",
            "cluster:gpunode_gpu_seconds:rate5m",
        ),
    ],
)
def test_of_a_cause_that_has_ended_the_last_figure_is_none(
    uid: str, title: str, counted: str, seen: str, tmp_path: Path
) -> None:
    board = json.loads((FOLDER / f"{uid}.json").read_text())
    (panel,) = (one for one in board["panels"] if one["title"] == title)
    (target,) = panel["targets"]
    query = filled(target["expr"], {**CHOSEN, "$__range": "30m"})
    lasts = GONE - CHANGES
    before, now = f"4x{CHANGES - 1} stale", f"_x{CHANGES} 3x{lasts - 1} stale"
    given = {
        with_labels(counted, {**OF_JOB, "cause": cause}): values
        for cause, values in (("shm", before), ("straggler", now))
    }
    if seen:
        given[with_labels(seen, {"cluster": "c", "state": "starved"})] = f"4x{GONE - 1} stale"
    found = [({"cause": "shm"}, 0.0), ({"cause": "straggler"}, 3.0)]
    told = promtool(tmp_path, given, {(CHANGES + 6, query): found, (GONE + 6, query): []})
    assert not told, told
