"""Servers of several GPUs whose GPUs spin: which of them is named, by their engine's word."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.alerts.scenarios.play import promtool_file
from tests.alerts.scenarios.shorthand import scenarios
from tests.needs import need

STOPS = "a tensor-parallel server of eight GPUs stops in the middle of its answers"
ENDS = "the end of a nightly batch whose engine says that nobody asks"
NAMED = "count by (cluster, workload, instance, gpu, reason) (job:gpunode_late_gpu:reason)"


def test_a_stuck_server_names_the_gpu_it_waits_for_and_one_without_requests_none(
    tmp_path: Path,
) -> None:
    """The page has what this series says: ``cluster_at_once``."""
    known = scenarios()
    labels = f'{{cluster="{STOPS}", workload="llm", instance="n-1", gpu="3", reason="stopped"}}'
    file = promtool_file({name: known[name] for name in (STOPS, ENDS)})
    file["tests"][0]["promql_expr_test"] = [
        {"expr": NAMED, "eval_time": "25m"},
        {"expr": NAMED, "eval_time": "35m", "exp_samples": [{"labels": labels, "value": 1}]},
        {"expr": NAMED, "eval_time": "150m"},
    ]
    path = tmp_path / "test.json"
    path.write_text(json.dumps(file))
    command = [need("promtool"), "test", "rules", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
