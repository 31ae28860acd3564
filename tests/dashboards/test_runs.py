"""A job beside its earlier runs, and the alerts of its life: promtool answers the queries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboards import FOLDER
from dashboards.layout import GROUPS
from dashboards.promql import NO_NAMESPACE
from tests.dashboards.promtool import Found, Labels, promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled

PANELS: Mapping[str, Any] = {
    panel["title"]: panel
    for panel in json.loads((FOLDER / "gpunode-job.json").read_text())["panels"]
}
RUNS = PANELS["Jobs of the same owner"]
ALERTS = PANELS["Alerts of the job and its nodes"]
OF_LLAMA = {"${namespace:pipe}": "team", "$job": "llama", "$user": ""}


def lived(workload: str, first: int, hours: int, gpus: int, **of: str) -> dict[str, str]:
    """What is recorded of a job that has ended after so many hours, half of them useful."""
    labels = {"cluster": "c", "workload": workload, **of}
    return {
        with_labels("job:gpunode_gpu_seconds:rate1h_hourly", {**labels, "state": state}): (
            f"_x{first} {gpus / 2}x{hours - 1} stale"
        )
        for state in ("compute", "starved")
    }


HISTORY = {
    **lived("llama", 1, 3, 8, owner_namespace="team"),
    **lived("bert", 5, 2, 4, owner_namespace="team"),
    **lived("slurm-1", 1, 2, 8, user="kim"),
    **lived("slurm-2", 4, 2, 16, user="kim"),
    **lived("slurm-4", 1, 2, 8, user="lee"),
}


@pytest.mark.parametrize(
    ("selected", "hours"),
    [
        (OF_LLAMA, {"llama": 24.0, "bert": 8.0}),
        (
            {"${namespace:pipe}": NO_NAMESPACE, "$job": "slurm-2", "$user": "kim"},
            {"slurm-1": 16.0, "slurm-2": 32.0},
        ),
        ({"${namespace:pipe}": "none", "$job": "no-such-job", "$user": ""}, {}),
    ],
)
def test_a_job_stands_beside_those_of_its_owner(
    selected: Labels, hours: Mapping[str, float], tmp_path: Path
) -> None:
    held, useful, *_ = (
        filled(target["expr"], {**CHOSEN, **selected}) for target in RUNS["targets"]
    )
    asks: dict[tuple[int, str], Found] = {
        (600, f"max by (workload) ({held})"): [({"workload": n}, v) for n, v in hours.items()],
        (600, f"max by (workload) ({useful})"): [({"workload": n}, 0.5) for n in hours],
    }
    told = promtool(tmp_path, HISTORY, asks, interval="1h")
    assert not told, told


def test_a_job_leads_to_the_time_of_its_life(tmp_path: Path) -> None:
    """To the hour: its first sample is there from 1:00 on, its last until 3:00."""
    held = filled(RUNS["targets"][0]["expr"], {**CHOSEN, **OF_LLAMA, "$user": ""})
    life = {"from": "3600000", "to": "10800000"}
    asks: dict[tuple[int, str], Found] = {
        (600, f'max by (from, to) ({held} and on (workload) X{{workload="llama"}})'): [(life, 24.0)]
    }
    given = {**HISTORY, with_labels("X", {"workload": "llama"}): "1x20"}
    told = promtool(tmp_path, given, asks, interval="1h")
    assert not told, told


LLAMA = {"owner_namespace": "team", "workload": "llama"}
GPU = {"cluster": "c", "instance": "n1", "gpu": "0", "uuid": "GPU-a"}
TRAINS = {
    with_labels("gpu:gpunode_owner:info", {**GPU, **LLAMA}): "1x100",
    with_labels("gpunode_training_step_median_seconds", GPU): "0.5x100",
    with_labels("job:gpunode_step:slowdown", {"cluster": "c", **LLAMA}): "1.25x100",
    **{
        with_labels(
            "job:gpunode_training_seconds:rate5m", {"cluster": "c", **LLAMA, "phase": phase}
        ): f"{share}x60 0x40"
        for phase, share in (("step", 0.75), ("data", 0.25))
    },
    with_labels("job:gpunode_stalled:seconds", {"cluster": "c", **LLAMA}): "_x58 0+60x42",
}
"""A job that steps for an hour and then stands still; what the client said last is still told."""


@pytest.mark.parametrize(("title", "steps"), [("Step", 0.5), ("Slowdown", 1.25), ("Goodput", 0.75)])
def test_a_job_that_stands_still_is_not_said_to_step(
    title: str, steps: float, tmp_path: Path
) -> None:
    (target,) = PANELS[title]["targets"]
    expression = filled(target["expr"], {**CHOSEN, **OF_LLAMA, "$__rate_interval": "5m"})
    (mapping,) = PANELS[title]["fieldConfig"]["defaults"]["mappings"]
    assert mapping["options"]["0"]["text"] == "no step completed in this range"
    for minute, says in ((50, steps), (70, 0.0)):
        told = promtool(tmp_path, TRAINS, {(minute, expression): [({}, says)]})
        assert not told, told
    unseen = {"said": "Needs the training client"}
    assert not promtool(tmp_path, HISTORY, {(50, expression): [(unseen, -1.0)]})


GROUP = GROUPS.partition("|")[0]


def alert(alertname: str, values: str, **of: str) -> dict[str, str]:
    """An alert that fires while it has values, since the first minute."""
    labels = {"alertname": alertname, "group": GROUP, "severity": "page", "cluster": "c", **of}
    return {
        with_labels("ALERTS", {**labels, "alertstate": "firing"}): values,
        with_labels("ALERTS_FOR_STATE", labels): values.replace("1x", "60x"),
    }


FIRED = {
    **alert("JobStalled", "1x100", owner_namespace="team", workload="llama"),
    **alert("JobSlowed", "1x20", owner_namespace="team", workload="llama", severity="ticket"),
    **alert("NodeDown", "1x100", instance="n1"),
    **alert("GpuUnhealthy", "1x100", instance="n2", gpu="3", uuid="GPU-a"),
    **alert("StorageDown", "1x100", part="filesystem", name="scratch"),
    **alert("StorageSlow", "1x100", part="filesystem", name="home"),
    **alert("NodeHot", "1x100", instance="elsewhere"),
    **alert("JobIdle", "1x100", owner_namespace="team", workload="bert"),
    **alert("GpunodeAbsent", "1x100"),
}
ITS = {
    ("JobStalled", "fires", ""): "gpunode-health",
    ("JobSlowed", "has ended", ""): "gpunode-health",
    ("NodeDown", "fires", "n1"): "gpunode-node",
    ("GpuUnhealthy", "fires", "n2 3"): "gpunode-node",
}
"""Of the alerts those of the job and of its nodes, with where they lead."""


def test_alerts_of_a_job_are_its_own_and_those_of_its_nodes(
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
        tmp_path, FIRED, {(60, f"max by (alertname, state, place, to_node) ({expression})"): found}
    )
    assert not told, told


@pytest.mark.parametrize(("runs", "says"), [(True, "None"), (False, "")])
def test_it_says_that_there_are_none_only_of_a_job_that_runs(
    runs: bool, says: str, tmp_path: Path
) -> None:
    of = {"cluster": "c", "owner_namespace": "team", "workload": "llama"}
    given = {with_labels("job:gpunode_gpus:count", of): "8x100"} if runs else {}
    (target,) = ALERTS["targets"]
    expression = filled(target["expr"], {**CHOSEN, **OF_LLAMA, "$hosts": "n1"})
    found: Found = [({"state": says}, 1.0)] if says else []
    told = promtool(tmp_path, given, {(60, f"count by (state) ({expression})"): found})
    assert not told, told


def test_the_job_that_loses_most_is_offered_first(tmp_path: Path) -> None:
    """By the GPUs that it loses, however many work."""
    board = json.loads((FOLDER / "gpunode-job.json").read_text())
    (job,) = (one for one in board["templating"]["list"] if one["name"] == "job")
    asked = filled(job["definition"].removeprefix("query_result(")[:-1])
    assert asked.startswith("sort_desc(")
    given = {
        with_labels(
            "job:gpunode_gpu_states:gpus",
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
    assert promtool(tmp_path, given, {(1, asked): losses}) == ""
