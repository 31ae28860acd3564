"""What is said of the ranks of a job, of those that are gone, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from alerts.examples import STARTED, owner
from alerts.recording.ranks import VERDICT, VERDICTS
from tests.alerts.rule_tests import IN_ORDER, with_labels
from tests.alerts.test_alerts import run
from tests.prometheus.incidents import rules_folder

RANKS = ({"instance": "n", "gpu": "0"}, {"instance": "n", "gpu": "1"}, {"instance": "m"})
OWNER, PROCESS = (dict(of.labels) for of in (owner(slurm_job="7", user="kim"), STARTED))
ENDS, DARK, OVER, MINUTES = 10, 20, 30, 40
"""Minutes until the process of rank 1 ends, until node m answers no more, and until the others
have none of the job's GPUs."""


def minutes(value: float, until: int) -> str:
    return f"{value:g}x{until} stale"


def given() -> dict[str, str]:
    """A job of three GPUs, of which one waits for the others."""
    series: dict[str, str] = {}
    for rank, place in enumerate(RANKS):
        gpu = {"cluster": "c", "gpu": "0", "uuid": f"GPU-{rank}", **place}
        seen = DARK if place["instance"] == "m" else MINUTES
        held = min(seen, OVER)
        cause = {"cause": "none" if rank else "straggler"}
        process = {**PROCESS, "owner_pod": "", "slurm_job": "7", "user": "kim", "rank": str(rank)}
        series |= {
            with_labels("gpunode_gpu_info", {**gpu, "parent": ""}): minutes(1, seen),
            with_labels("gpunode_gpu_owner_info", {**OWNER, **gpu}): minutes(1, held),
            with_labels("gpunode_gpu_bottleneck", {**cause, **gpu}): minutes(1, held),
            with_labels("gpunode_gpu_process_info", {**process, **gpu}): minutes(
                1, ENDS if rank == 1 else held
            ),
        }
    return series


def said(rank: int, cause: str, alike: str = "") -> dict[str, object]:
    labels = {"cluster": "c", "gpu": "0", "uuid": f"GPU-{rank}", **RANKS[rank]}
    labels |= {"workload": "slurm-7", "user": "kim", "rank": str(rank)}
    labels |= {"cause": cause, "alike": alike or cause}
    return {"labels": with_labels(VERDICT, labels), "value": VERDICTS.index(cause)}


AT: Mapping[int, list[dict[str, object]]] = {
    ENDS - 2: [said(0, "straggler", "wait"), said(1, "none"), said(2, "none")],
    DARK - 2: [said(0, "straggler", "wait"), said(1, "ended"), said(2, "none")],
    DARK + 3: [said(0, "straggler", "wait"), said(1, "ended"), said(2, "unseen")],
    OVER + 8: [],
}


def test_a_rank_keeps_its_number_when_its_process_or_its_node_is_gone(tmp_path: Path) -> None:
    test = {
        "rule_files": sorted(str(path) for path in rules_folder().iterdir()),
        "evaluation_interval": "30s",
        "group_eval_order": IN_ORDER,
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": of} for one, of in given().items()],
                "promql_expr_test": [
                    {"expr": VERDICT, "eval_time": f"{minute}m", "exp_samples": found}
                    for minute, found in AT.items()
                ],
            }
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps(test))
    ran = run("promtool", "test", "rules", "test.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
