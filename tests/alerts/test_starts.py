"""Which processes of a job have been there for minutes, whatever their exporter did."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.recording.starts import PROCESSES_STAY
from tests.alerts.test_latched import count

GPU = 'cluster="c",gpu="0",instance="n",uuid="U"'
HELD = f'gpu:gpunode_job:member{{{GPU},workload="train"}}'
PROCESS = f'gpunode_gpu_process_info{{{GPU},pid="417"}}'


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        pytest.param("1x30", "1", id="all the time"),
        pytest.param("1x9 stale stale 1x18", "1", id="but for a minute, five minutes ago"),
        pytest.param("_x13 1x16", "-1", id="for three minutes"),
        pytest.param("1x13 stale", "-1", id="no more"),
    ],
)
def test_a_process_stays_though_its_exporter_restarts(
    tmp_path: Path, there: str, stays: str
) -> None:
    count(tmp_path, PROCESSES_STAY, {HELD: "1x30", PROCESS: there}, 16, stays)
