"""What a client's silence about its last step excuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.recording.jobs import TELLS_STEPS
from tests.alerts.test_latched import count

GPU = 'cluster="c",gpu="0",instance="n",uuid="U"'
HELD = f'gpu:gpunode_job:member{{{GPU},workload="train"}}'
STILL = 'job:gpunode_workless:seconds{cluster="c",workload="train"}'
STEPS = f"gpunode_training_step_median_seconds{{{GPU}}}"
LAST_STEP = f"gpunode_training_last_step_timestamp_seconds{{{GPU}}}"
TOLD = f"{TELLS_STEPS}{{{GPU}}}"


@pytest.mark.parametrize(
    ("told", "excused"),
    [
        pytest.param({TOLD: "60x20"}, "300", id="no step is due"),
        pytest.param({TOLD: "60x20", LAST_STEP: "60x20"}, "-1", id="a step is due"),
        pytest.param({}, "-1", id="a client that never tells of its last step"),
    ],
)
def test_a_pause_is_one_of_a_client_that_tells_of_its_steps(
    tmp_path: Path, told: dict[str, str], excused: str
) -> None:
    given = {HELD: "1x20", STILL: "300x20", STEPS: "1x20"}
    count(tmp_path, "job:gpunode_pause:excused", {**given, **told}, 10, excused)


def test_a_pause_is_known_while_a_client_reports_its_steps(tmp_path: Path) -> None:
    steps = {LAST_STEP: "60x10 stale", STEPS: "1x60"}
    count(tmp_path, TELLS_STEPS, steps, 5, "60")
    count(tmp_path, TELLS_STEPS, {TOLD: "60x20", STEPS: "1x60"}, 20, "60")
    count(tmp_path, TELLS_STEPS, {TOLD: "60x20"}, 20, "-1")
