"""A job beside its earlier runs, and the alerts of its life: promtool answers the queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from alerts.promql import NO_NAMESPACE
from alerts.recording.runs import APART, BEGAN
from alerts.rule_files import EXPRESSIONS
from alerts.thresholds.table import THRESHOLDS
from dashboards import FOLDER
from tests.alerts.rule_tests import with_labels
from tests.alerts.test_alerts import run
from tests.dashboards.queries import CHOSEN, filled
from tests.dashboards.tables import shown

PANELS: Mapping[str, Any] = {
    panel["title"]: panel
    for panel in json.loads((FOLDER / "gpunode-job.json").read_text())["panels"]
}
RUNS = PANELS["Its runs, and those like it"]
ALERTS = PANELS["Alerts of the job and its nodes"]
Labels = Mapping[str, str]
Found = Sequence[tuple[Labels, float]]

EARLIER, LATER = "600", "7200"
"""Seconds at which runs of one name began."""


def promtool(
    folder: Path,
    given: Mapping[str, str],
    minute: int,
    asks: Mapping[str, Found],
    interval: str = "1m",
) -> str:
    """What promtool says against expressions having come to these results."""
    test = {
        "interval": interval,
        "input_series": [{"series": one, "values": values} for one, values in given.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": with_labels("", of), "value": v} for of, v in found],
            }
            for expression, found in asks.items()
        ],
    }
    (folder / "test.json").write_text(json.dumps({"tests": [test]}))
    ran = run("promtool", "test", "rules", "test.json", cwd=folder)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def lived(workload: str, began: str, minutes: int, **of: str) -> dict[str, str]:
    """The series of a run of so many GPUs that has ended after so many minutes."""
    gpus = of.pop("gpus", "8")
    labels = {"cluster": "c", "workload": workload, "began": began, **of}
    at = int(began) // 60
    before = f"_x{at} " if at else ""
    return {
        with_labels("run:gpunode_run:began", labels): f"{before}{began}x{minutes}",
        with_labels("run:gpunode_run:seen", labels): f"{before}{began}+60x{minutes}",
        with_labels("run:gpunode_job:gpus", labels): f"{before}{gpus}x{minutes}",
        with_labels("run:gpunode_gpu_useful:ratio", labels): f"{before}0.5x{minutes}",
    }


HISTORY = {
    **lived("llama", EARLIER, 30, owner_namespace="team"),
    **lived("llama", LATER, 60, owner_namespace="team"),
    **lived("bert", EARLIER, 30, owner_namespace="team"),
    **lived("slurm-1", EARLIER, 20, user="kim"),
    **lived("slurm-2", LATER, 60, user="kim"),
    **lived("slurm-3", EARLIER, 20, user="kim", gpus="16"),
    **lived("slurm-4", EARLIER, 20, user="lee"),
}
"""Two runs of a name in Kubernetes and another job; of Slurm, two that are alike, one of another
size, and one of somebody else."""

OF_LLAMA = {"${namespace:pipe}": "team", "$job": "llama", "$user": ""}
OF_SLURM = {"${namespace:pipe}": NO_NAMESPACE, "$job": "slurm-2", "$user": "kim"}


@pytest.mark.parametrize(
    ("selected", "runs"),
    [
        (OF_LLAMA, [("llama", EARLIER, 1800.0), ("llama", LATER, 3600.0)]),
        (OF_SLURM, [("slurm-1", EARLIER, 1200.0), ("slurm-2", LATER, 3600.0)]),
        ({**OF_SLURM, "$job": "slurm-3"}, [("slurm-3", EARLIER, 1200.0)]),
        ({**OF_LLAMA, "$job": "no-such-job"}, []),
    ],
)
def test_a_job_stands_beside_its_runs_and_those_of_the_same_script(
    selected: Mapping[str, str], runs: list[tuple[str, str, float]], tmp_path: Path
) -> None:
    began, lasted, gpus, useful, step, _ = (
        filled(target["expr"], {**CHOSEN, **selected}) for target in RUNS["targets"]
    )

    def by(expression: str, values: Sequence[float]) -> tuple[str, Found]:
        found = [
            ({"workload": name, "began": at}, value)
            for (name, at, _), value in zip(runs, values, strict=True)
        ]
        return f"max by (workload, began) ({expression})", found

    life = [
        ({"from": f"{at}000", "to": f"{int(at) + int(s)}000"}, 1000.0 * float(at))
        for _, at, s in runs
    ]
    size = 16.0 if selected["$job"] == "slurm-3" else 8.0
    asks = dict(
        [
            by(lasted, [seconds for _, _, seconds in runs]),
            by(gpus, [size] * len(runs)),
            by(useful, [0.5] * len(runs)),
            (f"max by (from, to) ({began})", life),
            (f"count ({step})", []),
        ]
    )
    told = promtool(tmp_path, HISTORY, 300, asks)
    assert not told, told


@pytest.mark.integration
def test_a_run_leads_to_the_time_of_its_life() -> None:
    labels = {"workload": "slurm-1", "user": "kim", "began": EARLIER, "from": "600000"}
    found = {**labels, "to": "1800000", "in_cluster": "All", "in_namespace": NO_NAMESPACE}
    (row,) = shown(RUNS, [[(found, 600_000.0)], *[[(found, 8.0)]] * 5])
    chosen = row.selects("Job")
    assert (chosen["from"], chosen["to"]) == ("600000", "1800000")
    assert (chosen["job"], chosen["namespace"]) == ("slurm-1", NO_NAMESPACE)
    assert {*row.cells} == {"Job", "Began", "Lasted", "GPUs", "Useful", "Step", "MFU"}


HELD = with_labels("job:gpunode_job:gpus", {"cluster": "c", "workload": "llama"})
MEMORY = with_labels(BEGAN, {"cluster": "c", "workload": "llama"})


@pytest.mark.parametrize(("gone", "began"), [(5, 60.0), (11, 60.0), (30, 60.0 * 42)])
def test_a_name_that_comes_back_late_is_another_run(
    gone: int, began: float, tmp_path: Path
) -> None:
    assert APART == "15m"
    given = {MEMORY: "60x9", HELD: f"8x9 stale _x{gone} 8x20"}
    asks: Mapping[str, Found] = {f"sum ({EXPRESSIONS[BEGAN]})": [({}, began)]}
    told = promtool(tmp_path, given, 12 + gone, asks)
    assert not told, told


TRAINS = {
    with_labels(name, {"cluster": "c", "owner_namespace": "team", "workload": "llama", **of}): value
    for name, of, value in (
        ("job:gpunode_training_step:median", {}, "0.5x100"),
        ("job:gpunode_training_step:slowdown", {}, "1.25x100"),
        ("job:gpunode_training_seconds:rate5m", {"phase": "step"}, "0.7x60 0x40"),
        ("job:gpunode_training_seconds:rate5m", {"phase": "data"}, "0.3x60 0x40"),
        ("job:gpunode_stalled:seconds", {}, "_x58 0+60x42"),
    )
}
"""A job that steps for an hour and then stands still; what the client said last is still told."""


@pytest.mark.parametrize(("title", "steps"), [("Step", 0.5), ("Slowdown", 1.25), ("Goodput", 0.7)])
def test_a_job_that_stands_still_is_not_said_to_step(
    title: str, steps: float, tmp_path: Path
) -> None:
    (target,) = PANELS[title]["targets"]
    expression = filled(target["expr"], {**CHOSEN, **OF_LLAMA})
    (mapping,) = PANELS[title]["fieldConfig"]["defaults"]["mappings"]
    assert mapping["options"]["0"]["text"] == "None ends"
    for minute, says in ((50, steps), (70, 0.0)):
        told = promtool(tmp_path, TRAINS, minute, {expression: [({}, says)]})
        assert not told, told
    unseen = {"said": "Needs the training client"}
    assert not promtool(tmp_path, HISTORY, 50, {expression: [(unseen, -1.0)]})


GROUP = THRESHOLDS[0].group


def alert(name: str, values: str, **of: str) -> dict[str, str]:
    """An alert that fires while it has values, since the first minute."""
    labels = {"alertname": name, "group": GROUP, "severity": "page", "cluster": "c", **of}
    return {
        with_labels("ALERTS", {**labels, "alertstate": "firing"}): values,
        with_labels("ALERTS_FOR_STATE", labels): values.replace("1x", "60x"),
    }


FIRED = {
    **alert("JobStalled", "1x100", owner_namespace="team", workload="llama"),
    **alert("JobSlowed", "1x20", owner_namespace="team", workload="llama", severity="ticket"),
    **alert("NodeDown", "1x100", instance="n1"),
    **alert("GpuUnhealthy", "1x100", instance="n2", gpu="3", uuid="GPU-a"),
    **alert("StorageDown", "1x100", filesystem="scratch"),
    **alert("StorageSlow", "1x100", filesystem="home"),
    **alert("NodeHot", "1x100", instance="elsewhere"),
    **alert("JobIdle", "1x100", owner_namespace="team", workload="bert"),
    **alert("GpunodeAbsent", "1x100"),
    with_labels(
        "job:gpunode_event:gpus",
        {"cluster": "c", "owner_namespace": "team", "workload": "llama", "filesystem": "scratch"},
    ): "8x100",
}
ITS = {
    ("JobStalled", "fires", ""): "gpunode-health",
    ("JobSlowed", "has ended", ""): "gpunode-health",
    ("NodeDown", "fires", "n1"): "gpunode-node",
    ("GpuUnhealthy", "fires", "n2 3"): "gpunode-node",
    ("StorageDown", "fires", "scratch"): "gpunode-health",
}
"""Of the alerts those of the job, of its nodes, and of what holds it up, with where they lead."""


def test_alerts_of_a_job_are_its_own_and_those_of_its_nodes_and_of_what_holds_it_up(
    tmp_path: Path,
) -> None:
    selected = {**CHOSEN, **OF_LLAMA, "$hosts": "(n1|n2)", "$__range": "1h"}
    (target,) = ALERTS["targets"]
    found = [
        (
            {"alertname": name, "state": state, **({"place": at} if at else {}), "to_node": to},
            60_000.0,
        )
        for (name, state, at), to in ITS.items()
    ]
    expression = filled(target["expr"], selected)
    told = promtool(
        tmp_path, FIRED, 60, {f"max by (alertname, state, place, to_node) ({expression})": found}
    )
    assert not told, told


@pytest.mark.parametrize(("runs", "says"), [(True, "None"), (False, "")])
def test_it_says_that_there_are_none_only_of_a_job_that_runs(
    runs: bool, says: str, tmp_path: Path
) -> None:
    rank = {"cluster": "c", "owner_namespace": "team", "workload": "llama", "cause": "none"}
    given = {with_labels("job:gpunode_rank:count", rank): "8x100"} if runs else {}
    (target,) = ALERTS["targets"]
    expression = filled(target["expr"], {**CHOSEN, **OF_LLAMA, "$hosts": "n1"})
    found: Found = [({"state": says}, 1.0)] if says else []
    told = promtool(tmp_path, given, 60, {f"count by (state) ({expression})": found})
    assert not told, told


def test_the_job_that_loses_most_is_offered_first(tmp_path: Path) -> None:
    """By the GPUs that it loses, however many work."""
    board = json.loads((FOLDER / "gpunode-job.json").read_text())
    (job,) = (one for one in board["templating"]["list"] if one["name"] == "job")
    asked = filled(job["definition"].removeprefix("query_result(")[:-1])
    assert asked.startswith("sort_desc(")
    given = {
        with_labels(
            "job:gpunode_gpu_seconds:rate5m",
            {"cluster": "c", "owner_namespace": "team", "workload": workload, "state": state},
        ): f"{gpus}x2"
        for workload, state, gpus in (
            ("large", "compute", 8),
            ("large", "starved", 1),
            ("small", "compute", 1),
            ("small", "blocked", 3),
        )
    }
    losses: Found = [({"workload": "large"}, 1.0), ({"workload": "small"}, 3.0)]
    assert promtool(tmp_path, given, 1, {asked: losses}) == ""
