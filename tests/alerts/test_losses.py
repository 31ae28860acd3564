"""Since when a fleet loses what it loses: played by promtool, on a fleet that always loses some."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.examples import series
from alerts.model import Series
from alerts.recording import losses
from alerts.rule_files import EXPRESSIONS, RECORDED
from alerts.thresholds.table import THRESHOLDS
from tests.alerts.rule_tests import FIRST, Case, Phases, record_case
from tests.alerts.test_alerts import play, shipped

COUNT = "namespace:gpunode_gpu_bottleneck:count"
LOST = "job:gpunode_gpu_lost:rate5m"
SEEN = series("cluster:gpunode_gpu_seconds:rate5m", state="compute")
OF_CAUSE = series(COUNT, owner_namespace="team", cause="shm")
OF_JOB = series(LOST, owner_namespace="team", workload="train")

Minutes = tuple[int, float]

COURSES: dict[str, tuple[Phases, Minutes | None]] = {
    "an incident on a fleet that always loses some": ([(100, 40.0), (60, 168.0)], (99, 168.0)),
    "a fleet on which nothing was lost": ([(100, None), (60, 16.0)], (99, 16.0)),
    "an incident that is half mended": ([(100, 40.0), (30, 200.0), (30, 168.0)], (99, 184.0)),
    "a dip of three minutes": ([(100, 8.0), (30, 64.0), (3, 16.0), (27, 64.0)], (99, 60.0)),
    "a pause of ten minutes": ([(100, 8.0), (30, 64.0), (10, 16.0), (20, 64.0)], (139, 64.0)),
    "noise": ([(80, 20.0), (20, 18.0), (20, 22.0), (40, 20.0)], (0, 20.0)),
    "an incident that is over": ([(60, 4.0), (50, 90.0), (50, 4.0)], (0, 30.9)),
    "the end": ([(100, 40.0), (40, 168.0), (20, None)], None),
    "an incident ten hours ago": ([(60, 40.0), (600, 160.0)], (59, 160.0)),
}
"""What a number of GPUs does minute by minute, and the last minute before its present step with
the mean since then; None if nothing is lost at the end."""


def _case(name: str, one: Series, seen: Phases) -> Case:
    """The GPU hours are right within what a minute more or less makes."""
    phases, expected = COURSES[name]
    case = Case(f"{one.metric}: {name}")
    case.give(one, phases)
    case.give(SEEN, seen)
    level, metric, _ = one.metric.split(":")
    base = f"{level}:{metric}"
    its = f'{{cluster="{case.name}"}}'
    end = sum(length for length, _ in phases) - 1
    if expected is None:
        case.expect(end, f"{base}:since{its}")
        case.expect(end, f"{base}:hours_since{its}")
        return case
    minute, mean = expected
    labels = {"cluster": case.name, **dict(one.labels)}
    case.expect(end, f"{base}:since{its}", [(f"{base}:since", labels, 60.0 * minute)])
    hours = mean * (end - minute) / 60
    near = f"abs({base}:hours_since{its} - {hours!r}) < bool {0.03 * hours!r}"
    case.expect(end, near, [("", labels, 1.0)])
    return case


def test_records_come_to_their_results(tmp_path: Path) -> None:
    cases = [record_case(record) for record in losses.SINCE]
    ran = play(tmp_path, cases, shipped(*FIRST, "cluster_losses"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_alert_rests_upon_what_looks_back_so_far() -> None:
    """promtool plays the scenarios of the alerts without it."""
    looking_back = {record.name for record in losses.SINCE}
    others = {name: text for name, text in EXPRESSIONS.items() if name not in looking_back}
    assert not [name for name, text in others.items() if looking_back & {*RECORDED.findall(text)}]
    tiers = [tier for row in THRESHOLDS for tier in row.tiers]
    assert not looking_back & {name for tier in tiers for name in (tier.record, tier.unless)}


@pytest.mark.integration
def test_the_present_step_up_is_found(tmp_path: Path) -> None:
    cases = [_case(name, one, [(700, 1.0)]) for name in COURSES for one in (OF_CAUSE, OF_JOB)]
    ran = play(tmp_path, cases, shipped(*FIRST, "cluster_losses"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_time_that_nobody_saw_is_no_time_without_losses(tmp_path: Path) -> None:
    """Prometheus was down: an incident that was there before and after has gone on."""
    case, blind = Case("blind"), 40
    phases: Phases = [(60, 8.0), (30, 64.0), (blind, None), (30, 64.0)]
    case.give(OF_CAUSE, phases)
    case.give(SEEN, [(90, 1.0), (blind, None), (30, 1.0)])
    labels = {"cluster": case.name, **dict(OF_CAUSE.labels)}
    since = "namespace:gpunode_gpu_bottleneck:since"
    case.expect(159, since, [(since, labels, 59.0 * 60)])
    ran = play(tmp_path, [case], shipped(*FIRST, "cluster_losses"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
