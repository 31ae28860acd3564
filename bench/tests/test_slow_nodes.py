"""The formula of the simulated fleets is that of the rules, and it tells what is slow."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alerts.recording.behind import BLOCKED, LOWER, LOWER_OF_NODE, OF_GPUS, RATIO, WITHIN
from alerts.rule_files import recorded, substituted
from bench import slow_nodes
from bench.slow_nodes import DAY, GPUS, Places, Trouble, behind, hours, quantile, score
from gpunode.rules.render import dump
from tests.alerts.test_alerts import run

HOURS = 6 * DAY
NODES = 8
SLOW = Trouble(name="slow", one_in=NODES, by=0.25)


def _placed(gpu: int) -> str:
    return f'cluster="c",gpu="{gpu % GPUS}",instance="n{gpu // GPUS}",uuid="U{gpu}"'


def test_the_rules_come_to_what_the_simulation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small fleet, hour by hour, through promtool and through numpy."""
    monkeypatch.setattr(slow_nodes, "SIZES", {1: 0.5, 2: 0.3, 4: 0.2})
    chance = np.random.default_rng(1)
    series: dict[str, list[str]] = defaultdict(lambda: ["_"] * HOURS)
    places = Places()
    for at, hour in enumerate(hours(SLOW, np.array([3]), chance, NODES, HOURS // DAY)):
        node = np.flatnonzero(hour.job >= 0)
        _, job = np.unique(hour.job[node], return_inverse=True)
        gpu = (node[:, None] * GPUS + np.arange(GPUS)).ravel()
        of_job = np.repeat(hour.job[node], GPUS)
        place = (hour.place[node][:, None] * GPUS + np.arange(GPUS)).ravel()
        blocked = hour.blocked[node].ravel()
        value = behind(np.repeat(job, GPUS), blocked)
        places.add(at, gpu, place, of_job, value)
        for one, share, number in zip(gpu.tolist(), blocked, of_job, strict=True):
            series[f'{BLOCKED}{{{_placed(one)},workload="j{number}"}}'][at] = f"{share:.12g}"
            series[f'job:gpunode_job:collective{{cluster="c",workload="j{number}"}}'][at] = "2"
            busy = f'gpu:gpunode_gpu_seconds:rate1h{{{_placed(one)},state="compute"}}'
            series[busy][at] = "0.8"
    checks: list[dict[str, Any]] = []
    for days in WITHIN:
        found = score(*places.means(HOURS - 1, days))
        assert len(found.unit) > NODES * GPUS / 2
        of_nodes = quantile(found.unit // GPUS, found.lower, 0.5)
        labels = [f'{_placed(gpu)},within="{days}d"' for gpu in found.unit]
        checks += [
            _check(f"{RATIO}{{{label}}}", value)
            for label, value in zip(labels, found.ratio, strict=True)
        ]
        checks += [
            _check(f"{LOWER}{{{label}}}", value)
            for label, value in zip(labels, found.lower, strict=True)
        ]
        checks += [
            _check(f'{LOWER_OF_NODE}{{cluster="c",instance="n{node}",within="{days}d"}}', value)
            for node, value in enumerate(of_nodes)
            if not np.isnan(value)
        ]
        count = {"labels": "{}", "value": len(found.unit)}
        asked = f'count({RATIO}{{within="{days}d"}})'
        checks.append({"expr": asked, "eval_time": f"{HOURS - 1}h", "exp_samples": [count]})
    rules = [recorded(record) for record in OF_GPUS if record.name != BLOCKED]
    file = json.loads(substituted(json.dumps({"groups": [{"name": "behind", "rules": rules}]})))
    (tmp_path / "rules.yaml").write_text(dump(file))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1h",
        "tests": [
            {
                "interval": "1h",
                "input_series": [
                    {"series": name, "values": " ".join(values)} for name, values in series.items()
                ],
                "promql_expr_test": checks,
            }
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps(test))
    ran = run("promtool", "test", "rules", "test.json", cwd=tmp_path)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[:4000]


def _check(series: str, value: float) -> dict[str, Any]:
    return {
        "expr": f"count(abs({series} - {value:.15g}) < 1e-9)",
        "eval_time": f"{HOURS - 1}h",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
