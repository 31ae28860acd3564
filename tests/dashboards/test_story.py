"""The fleet of the pictures: what cannot be is not shown."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpunode.verdict.causes.host import NO_REQUESTS
from tests.dashboards.past import CAUSES, DAYS, GPUS, recorded
from tests.dashboards.story import GPUS_OF_NODE, JOBS, NODES, SCRAPE, Story, name

LEVELS = ("cluster", "namespace", "job")
HOURS = range(0, DAYS * 24, 7)


LASTS = 120
"""Seconds of each tape: what it shows later has the same series."""


@pytest.fixture(scope="module")
def story() -> Story:
    return Story(LASTS)


def test_each_gpu_is_there_once_and_has_one_owner_and_one_verdict(story: Story) -> None:
    held = sum(len(job.nodes) * len(job.gpus) for job in JOBS)
    seen: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for node in range(1, NODES + 1):
        for family in text_string_to_metric_families(story.at(node, 180.0)):
            for sample in family.samples:
                if "gpu" in sample.labels and (sample.name.endswith("_total") or sample.value):
                    seen[sample.name][name(node), sample.labels["gpu"]] += 1
    every = {(name(n), str(g)) for n in range(1, NODES + 1) for g in range(GPUS_OF_NODE)}
    assert seen["gpunode_gpu_info"] == dict.fromkeys(every, 1)
    assert seen["gpunode_gpu_bottleneck"] == dict.fromkeys(every, 1)
    assert len(seen["gpunode_gpu_owner_info"]) == held
    assert set(seen["gpunode_gpu_owner_info"].values()) == {1}
    assert seen["gpunode_gpu_process_info"] == seen["gpunode_gpu_owner_info"]


def test_no_second_is_counted_twice(story: Story) -> None:
    """Ten minutes on, each tape has come to its end."""
    for node in range(1, NODES + 1):
        seconds: dict[str, float] = defaultdict(float)
        for labels, value in re.findall(
            r"^gpunode_gpu_seconds_total\{(.*)\} (\S+)$", story.at(node, 600.0), re.MULTILINE
        ):
            (gpu,) = re.findall(r'\bgpu="(\d)"', labels)
            seconds[gpu] += float(value)
        assert len(seconds) == GPUS_OF_NODE
        assert max(seconds.values()) <= LASTS + SCRAPE


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_was_lost_is_part_of_what_was_held_and_that_of_what_there_was(jobs: int) -> None:
    assert GPUS == NODES * GPUS_OF_NODE
    for hour in HOURS:
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for metric, labels, gpus in recorded(hour * 3600, hour / (DAYS * 24), jobs):
            what = labels.get("state") or labels.get("cause") or ""
            sums[metric][what] += gpus
        hourly = {level: sums[f"{level}:gpunode_gpu_seconds:rate1h_hourly"] for level in LEVELS}
        assert sum(hourly["cluster"].values()) == pytest.approx(GPUS)
        assert min(hourly["cluster"].values()) >= 0
        for level in ("job", "namespace"):
            for state, gpus in hourly[level].items():
                assert gpus == pytest.approx(hourly["cluster"][state])
        causes = sums["namespace:gpunode_held_up:gpus_hourly"]
        states = {state for of_kind in CAUSES.values() for state in of_kind}
        lost = sum(gpus for state, gpus in hourly["cluster"].items() if state in states)
        assert 0 < sum(causes.values()) <= lost + 1e-6


def test_only_who_serves_waits_for_requests() -> None:
    """A verdict calls the idle GPUs of a job that trains by what it finds, or unexplained."""
    kinds: dict[str, str] = {}
    causes: dict[str, set[str]] = defaultdict(set)
    for _, labels, gpus in recorded(0, 0.0, 1):
        if "kind" in labels and "owner_namespace" in labels:
            kinds[labels["owner_namespace"]] = labels["kind"]
        if "cause" in labels and gpus:
            causes[labels["owner_namespace"]].add(labels["cause"])
    assert {*kinds.values()} == {"training", "serving"}
    for team, kind in kinds.items():
        assert (NO_REQUESTS.name in causes[team]) is (kind == "serving")
