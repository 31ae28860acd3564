"""JobSlowed says what has changed since the job's best pace; the rules play hours in promtool."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alerts.examples import HELD, owner, series
from alerts.model import Series
from alerts.recording.versions import JOB_INFO, NODE_INFO
from tests.alerts import rule_tests
from tests.alerts.rule_tests import FIRST, IN_ORDER, Case
from tests.alerts.test_alerts import run, shipped

CHANGE = 130
"""The minute of the change: two hours with whole samples are over."""

LOOK = CHANGE + 40
END = CHANGE + 60
MEDIAN = series("gpunode_training_step_median_seconds")
BASELINE = series("gpunode_training_step_baseline_seconds")
SAME = "It runs with the versions of its best pace."


def other(one: Series, **labels: str) -> Series:
    return Series(one.metric, tuple({**dict(one.labels), **labels}.items()))


@dataclass(frozen=True)
class Story:
    """What a job is before and after the change, and what the alert then says; None for silence."""

    says: str | None
    after: tuple[Series, ...] = ()
    """Series that take the places of others of the same name."""

    step: float = 1.5
    baseline: float = 1.5
    """Of the process that runs after the change: a new one has a best pace of its own."""

    before: tuple[Series, ...] = field(default=(*HELD, NODE_INFO, JOB_INFO))


IMAGE = "registry.example.org/research/trainer"
STORIES = {
    "its image": Story(
        f"Changed since: image {IMAGE}:2026-12 (before: {IMAGE}:2026-11).",
        (owner(owner_pod="train-7"), other(JOB_INFO, image=f"{IMAGE}:2026-12")),
    ),
    "the driver, at a restart": Story(
        "Changed since: driver 580.159.04 (before: 570.133.20).",
        (owner(owner_pod="train-7"), other(NODE_INFO, driver="580.159.04")),
    ),
    "nothing, in the same run": Story(SAME, baseline=1.0),
    "nothing, at a restart": Story(None, (owner(owner_pod="train-7"),)),
    "its image, and it is as fast": Story(
        None, (other(JOB_INFO, image=f"{IMAGE}:2026-12"),), step=1.05, baseline=1.05
    ),
    "its image, and it is a little slower": Story(
        None, (other(JOB_INFO, image=f"{IMAGE}:2026-12"),), step=1.2, baseline=1.2
    ),
    "nobody knows what": Story("", baseline=1.0, before=(*HELD,)),
    "the job that has the node": Story(
        None, (owner(owner_pod="other-0"), other(JOB_INFO, image=f"{IMAGE}:2026-12"))
    ),
}


def told(story: Story, name: str) -> Case:
    """The series of a story, in a cluster of its own."""
    case = Case(name)
    after = {one.metric: one for one in story.after}
    for one in story.before:
        new = after.get(one.metric)
        if new is None:
            case.give(one, [(END, 1.0)])
        else:
            case.give(one, [(CHANGE, 1.0), (END - CHANGE, None)])
            case.give(new, [(CHANGE, None), (END - CHANGE, 1.0)])
    case.give(MEDIAN, [(CHANGE, 1.0), (END - CHANGE, story.step)])
    case.give(BASELINE, [(CHANGE, 1.0), (END - CHANGE, story.baseline)])
    return case


def descriptions(folder: Path) -> dict[str, str]:
    """What JobSlowed says where it fires: promtool prints what it did not expect."""
    rules = map(str, shipped(*FIRST, "cluster_communication"))
    cases = [told(story, name) for name, story in STORIES.items()]
    test = rule_tests.promtool_file(rules, cases, IN_ORDER)
    test["tests"][0]["promql_expr_test"] = []
    test["tests"][0]["alert_rule_test"] = [
        {"eval_time": f"{minute}m", "alertname": "JobSlowed", "exp_alerts": []}
        for minute in (CHANGE, LOOK)
    ]
    (folder / "test.json").write_text(json.dumps(test))
    ran = run("promtool", "test", "rules", "test.json", cwd=folder)
    printed = ran.stdout + ran.stderr
    assert f"time: {CHANGE // 60}h{CHANGE % 60}m" not in printed, "it is quiet before the change"
    found = re.findall(r'cluster="([^"]*)".*?\bdescription="(.*?)", runbook', printed, re.DOTALL)
    return dict(found)


@pytest.mark.integration
def test_a_slowed_job_is_told_with_what_changed(tmp_path: Path) -> None:
    found = descriptions(tmp_path)
    slower = "train (1 GPU on 1 node): a step takes 1.5 times as long as at "
    assert all(text.startswith(slower) for text in found.values()), found
    said = {name: text.partition("best pace.")[2].strip() for name, text in found.items()}
    assert said == {name: story.says for name, story in STORIES.items() if story.says is not None}
