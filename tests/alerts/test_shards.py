"""The rules on two shards of Prometheus, and on an engine above that sees both."""

from __future__ import annotations

from typing import get_args

import pytest

from alerts.rule_files import handed_on
from tests.alerts import shards
from tests.alerts.rule_tests import known_labels
from tests.alerts.shards import ABOVE, STATUS, Restart
from tests.needs import need
from tests.prometheus.incidents import Engine

FOR_EACH_GPU = {
    "whose it is": {
        "gpu:gpunode_gpu_owner:workload",
        "gpu:gpunode_job:member",
        "gpunode_gpu_info",
        "gpunode_gpu_owner_info",
        "gpunode_gpu_process_info",
        "gpunode_nccl_communicator_info",
    },
    "asked within seconds whether a job stands still": {
        "gpu:gpunode_training_last_step:told",
        "gpunode_gpu_blocked_streak_seconds",
        "gpunode_job_blocked_processes",
        "gpunode_job_workless_seconds",
        "gpunode_training_last_step_timestamp_seconds",
    },
    "compared with other GPUs": {
        "gpu:gpunode_gpu_blocked:by_job",
        "gpu:gpunode_gpu_memory_rate:ratio_loaded",
        "gpu:gpunode_gpu_sm_clock:ratio_loaded",
        "gpu:gpunode_rank:said",
    },
    "only of servers": {
        "gpu:gpunode_gpu_process:ended_soon_1h",
        "gpu:gpunode_server:index",
        "gpu:gpunode_server_leader:index",
        "gpu:gpunode_server_spinning:seconds",
        "gpu:gpunode_serving:member",
        "gpunode_serving_kv_cache_used_ratio",
        "gpunode_serving_requests_in_flight",
        "gpunode_serving_requests_total",
        "gpunode_serving_starting_seconds",
        "gpunode_serving_tokenless_seconds",
    },
    "only where something is wrong": {
        "gpu:gpunode_gpu_counters:missing",
        "gpu:gpunode_gpu_fault:latched",
        "gpu:gpunode_gpu_fault:level",
        "gpu:gpunode_gpu_fault:worst",
        "gpu:gpunode_gpu_reset:alone",
        "gpu:gpunode_gpu_starved:with_own_cause",
        "gpu:gpunode_gpu_useful:little",
        "gpu:gpunode_gpu_waited_for:number",
        "gpu:gpunode_nvlink_recovery:increase1h",
        "gpu:gpunode_nvlink_xid:age",
        "gpunode_gpu_waited_for",
        "gpunode_gpu_xid_last_timestamp_seconds",
        "gpunode_incident_info",
    },
}
"""What shards hand on of each GPU, and why. Of everything else a node has one series."""


def test_only_what_is_asked_of_each_gpu_is_handed_on_of_each_gpu() -> None:
    """Of 80,000 GPUs, each series more is 80,000: what adds up is a part (alerts/recording)."""
    names = [name for name in handed_on() if name != "up" and not name.startswith("kube_")]
    of_each = {name for name in names if name.startswith("gpu:") or "uuid" in known_labels(name)}
    assert of_each == set[str]().union(*FOR_EACH_GPU.values())


LASTS: dict[Engine, float] = {"prometheus": 50.0, "victoriametrics": 90.0}
"""Seconds until everybody is told: vmalert reads what it has recorded some evaluations later."""


def paged(engine: Engine, *restarts: Restart) -> list[dict[str, str]]:
    need("prometheus")
    need("alertmanager", "prometheus-alertmanager")
    if engine == "victoriametrics":
        need("victoria-metrics")
        need("vmalert")
    lasts = LASTS[engine] + sum(20.0 for _ in restarts)
    return [*shards.run(lasts, engine, restarts).get("pager", [])]


def is_told_once(alerts: list[dict[str, str]]) -> None:
    (job,) = (labels for labels in alerts if labels["alertname"] == "JobStalled")
    assert (job["workload"], job[STATUS]) == ("gpt", "firing")
    (node,) = (labels for labels in alerts if labels["alertname"] != "JobStalled")
    assert (node["alertname"], node["instance"]) == ("GpunodeDown", f"node-{shards.DOWN[1]}")
    assert node[STATUS] == "firing"


@pytest.mark.integration
@pytest.mark.sweep(2)
@pytest.mark.parametrize("engine", get_args(Engine))
def test_a_job_over_both_shards_stands_still_once(engine: Engine) -> None:
    """The node that goes down with it is no page of its own; one that goes down alone is."""
    is_told_once(paged(engine))


@pytest.mark.integration
@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["shard0", "shard1", ABOVE])
def test_a_restart_of_a_shard_or_of_what_is_above_ends_no_page_and_makes_none(name: str) -> None:
    is_told_once(paged("prometheus", Restart(name, at=40.0, away=4.0)))
