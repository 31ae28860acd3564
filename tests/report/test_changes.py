"""What the report says of changes of versions, and whether jobs are worse than in a baseline."""

from __future__ import annotations

import json
import math
import random

import pytest

from gpunode.report.baseline import compared, parse
from gpunode.report.billing import Billing
from gpunode.report.changes import Pace, changes, hodges_lehmann, shift
from gpunode.report.history import DAY, JobKey, PeriodHours
from gpunode.report.page import as_json
from gpunode.report.sections import report
from gpunode.report.view import PeriodView
from tests.report.updates import JOBS, KINDS, fleet, named


def test_a_slower_driver_is_told_from_a_kernel_that_changed_nothing() -> None:
    effects = {"driver": 0.05, "kernel": 0.0, "nccl": 0.1, "image": 0.02}
    found = changes(fleet(effects, random.Random(3)))
    for kind, effect in effects.items():
        step = named(found, kind).step
        assert step is not None
        assert step.lower <= math.log1p(effect) <= step.upper
        assert step.sure is (effect > 0)
    assert found[0].what == ("nccl 1.0 to 1.1",), "what costs most comes first"


def test_versions_that_came_together_are_one_change() -> None:
    past = fleet({"driver": 0.05}, random.Random(4))
    past.versions["kernel"] = past.versions["driver"]
    (one,) = changes(past)
    assert one.what == ("driver 1.0 to 1.1", "kernel 1.0 to 1.1")


def test_without_jobs_that_did_not_change_nothing_is_told() -> None:
    past = fleet({"driver": 0.1}, random.Random(5))
    jobs = past.versions["driver"]
    for job in [job for job, days in jobs.items() if {*days[max(days)]} == {"1.0"}]:
        del jobs[job]
    (one,) = changes(past)
    assert one.step is None


def test_a_fleet_that_slows_for_another_reason_blames_no_change() -> None:
    """All jobs become slower on one day, those that changed within some days of it, too."""
    past = fleet({"driver": 0.0}, random.Random(6))
    late = past.period.start + 12 * DAY
    for jobs in past.versions.values():
        for days in jobs.values():
            for at, told in days.items():
                days[at] = {one: 1.2 * step if at > late else step for one, step in told.items()}
    step = named(changes(past), "driver").step
    assert step is not None
    assert not step.sure


def test_few_values_have_no_interval() -> None:
    assert shift([1.0], [0.0] * 5) is None
    assert hodges_lehmann([1.0, 1.0]) is None
    assert hodges_lehmann([0.05] * 20) is not None


def paces(factor: float, jobs: int = 30, seed: int = 1) -> dict[JobKey, Pace]:
    chance = random.Random(seed)
    return {
        JobKey("a", "research", f"job-{job}", ""): Pace(
            factor * (1 + job / 10) * math.exp(chance.gauss(0, 0.01)), 0.6
        )
        for job in range(jobs)
    }


@pytest.mark.parametrize(
    ("factor", "jobs", "accepted", "says"),
    [
        (1.0, 30, True, "beside the baseline"),
        (1.02, 30, True, "+2."),
        (1.06, 30, False, "longer than in the baseline, more than 3.0\u202f%"),
        (0.9, 30, True, "-9."),
        (1.0, 2, False, "It cannot be told whether jobs are slower: 2 of 30 jobs"),
        (1.0, 0, False, "It cannot be told whether jobs are slower: 0 of 30 jobs"),
    ],
)
def test_an_upgrade_is_accepted_if_the_same_jobs_are_as_fast(
    factor: float, jobs: int, accepted: bool, says: str
) -> None:
    outcome = compared(paces(1.0), paces(factor, jobs, seed=2), 0.03)
    assert outcome.accepted is accepted
    assert says in outcome.says
    assert outcome.says.count(". ") == 0, "one sentence"


def test_less_useful_time_is_worse_too() -> None:
    now = {job: Pace(pace.step, 0.5) for job, pace in paces(1.0, seed=2).items()}
    outcome = compared(paces(1.0), now, 0.03)
    assert not outcome.accepted
    assert "useful share is 16.7\u202f% lower" in outcome.says


def report_json(of: PeriodHours) -> str:
    view = PeriodView(of, PeriodHours(of.period.before), Billing(), "namespace")
    return as_json(report(view, "http://prometheus", ()))


def test_a_report_is_the_baseline_of_the_next() -> None:
    past = fleet({}, random.Random(7))
    found = parse(report_json(past))
    assert len(found) == JOBS
    assert all(pace.useful is not None and 0.5 < pace.useful < 0.6 for pace in found.values())


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"sections": []}', "[" * 100_000])
def test_what_is_no_report_is_no_baseline(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


def test_the_changes_are_in_the_report() -> None:
    past = fleet(dict(zip(KINDS, (0.1, 0.0, 0.0, 0.0), strict=True)), random.Random(8))
    document = json.loads(report_json(past))
    (section,) = (one for one in document["sections"] if one["name"] == "changes")
    assert section["says"].startswith("driver 1.0 to 1.1 made steps ")
    rows = section["tables"][0]["rows"]
    assert [row[5] for row in rows] == ["longer", *["no difference found"] * 3]
