"""Tests of the rules for ``promtool test rules``, from the threshold table.

https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from alerts.figures import FORMATS, RENDERED
from alerts.recording import RECORDS, TESTED_AT, Record
from alerts.rule_files import (
    DASHBOARDS,
    HELD,
    groups,
    minutes,
    only_pages,
    pages_unless_cordoned,
    rule,
)
from alerts.thresholds.table import Given, Threshold, Tier, ledger
from gpunode.sources import METRICS as SECTIONS

LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")

BASE = {"cluster": "c", "instance": "node-a"}
ONE_GPU = {"gpu": "0", "uuid": "GPU-a"}
OF_GPU = {
    metric.name for section in SECTIONS.values() for metric in section if "gpu" in metric.labels
}

EVALUATES: Given = {'gpunode_training_seconds_total{phase="evaluation"}': 0.5}

QUIET = 40
"""Minutes of quiet before an alert is made to fire; longer where the signal looks further back."""


def series(name: str) -> str:
    """A series with the labels of a test's node and GPU."""
    metric, _, labels = name.partition("{")
    own = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    family = re.sub(r"_(bucket|sum|count)$", "", metric)
    of_gpu = ONE_GPU if {metric, family} & OF_GPU or metric.startswith("gpu:") else {}
    base = {} if metric.startswith(("namespace:", "job:")) else BASE
    every = {**base, **of_gpu, **own}
    return metric + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(every.items())) + "}"


def is_counter(name: str) -> bool:
    """Whether a series only grows."""
    return re.search(r"_(total|bucket|sum|count)($|\{)", name) is not None


def values(name: str, phases: Iterable[tuple[int, float | None]], ramps: bool = False) -> str:
    """What a series is, minute by minute, in promtool's notation."""
    told: list[str] = []
    at = 0.0
    for length, value in phases:
        if value is None:
            told += ["stale", *["_"] * (length - 1)]
            at = 0.0
            continue
        for _ in range(length):
            told.append(f"{at if is_counter(name) or ramps else value:.10g}")
            at += value * 60
    return " ".join(told)


@dataclass(frozen=True, slots=True)
class Course:
    """How an alert is put to the test: minutes of quiet, of what makes it fire, of quiet again."""

    quiet: int
    firing: int
    after: int
    given: dict[str, tuple[float | None, float | None]]
    """Each series in quiet and when the alert is to fire."""

    @classmethod
    def of(cls, row: Threshold) -> Course:
        """The course of a row of the table."""
        longest = max(minutes(tier.after) for tier in row.tiers)
        of_ledger = any("gpu_seconds_total" in name for name in row.fires)
        context = {} if of_ledger else dict(ledger(starved=0.0))
        context['gpunode_gpu_owner_info{owner_pod="train-0"}'] = 1.0
        given: dict[str, tuple[float | None, float | None]] = {
            name: (value, value) for name, value in context.items()
        }
        for name, value in row.fires.items():
            given[name] = row.quiet.get(name, value), value
        for name, value in row.quiet.items():
            given.setdefault(name, (value, value))
        return cls(
            max(QUIET, row.settles + 5),
            row.settles + longest + 5,
            row.settles + minutes(row.keep or "0s") + longest + 10,
            given,
        )

    def series(self, row: Threshold) -> list[dict[str, str]]:
        """The series for promtool."""
        return [
            {
                "series": series(name),
                "values": values(
                    name,
                    [(self.quiet, low), (self.firing, high), (self.after, low)],
                    row.ramps and name in row.fires,
                ),
            }
            for name, (low, high) in self.given.items()
        ]

    def length(self) -> int:
        """Minutes in all."""
        return self.quiet + self.firing + self.after


def alert_test(row: Threshold) -> dict[str, Any]:
    """A test that an alert is quiet below, waits, fires with everything it says, and resolves."""
    course = Course.of(row)
    fires = course.quiet + course.firing - 3
    checks: list[tuple[int, list[dict[str, Any]]]] = [(course.quiet - 1, [])]
    shortest = min(minutes(tier.after) for tier in row.tiers)
    if shortest >= 3:
        checks.append((course.quiet + shortest - 2, []))
    checks.append((fires, [expected(row, tier) for tier in row.tiers]))
    checks.append((course.length() - 2, []))
    return {
        "name": row.alert,
        "interval": "1m",
        "input_series": course.series(row),
        "alert_rule_test": [
            {"eval_time": f"{time}m", "alertname": row.alert, "exp_alerts": told}
            for time, told in checks
        ],
    }


def silenced_test(row: Threshold) -> dict[str, Any]:
    """A test that an alert is silent while training evaluates, or what else silences it."""
    test = alert_test(row)
    silent = [{**check, "exp_alerts": []} for check in test["alert_rule_test"]]
    name = f"{row.alert} while training evaluates"
    given = [*test["input_series"], *_throughout(row, row.silenced_by or EVALUATES)]
    return {**test, "name": name, "input_series": given, "alert_rule_test": silent}


def _throughout(row: Threshold, given: Given) -> list[dict[str, str]]:
    """Series that go on from the beginning to the end of a row's course."""
    length = Course.of(row).length()
    return [
        {"series": series(name), "values": values(name, [(length, value)])}
        for name, value in given.items()
    ]


def cordon_test(row: Threshold) -> dict[str, Any]:
    """A test that an alert pages nobody about a node that is cordoned, and warns all the same."""
    test = alert_test(row)
    cordoned = 'kube_node_spec_unschedulable{node="node-a",instance="kube-state-metrics:8080"}'
    told = [
        expected(row, tier, cordoned=only_pages(row))
        for tier in row.tiers
        if only_pages(row) or not pages_unless_cordoned(row, tier)
    ]
    checks = [
        {**check, "exp_alerts": told if check["exp_alerts"] else []}
        for check in test["alert_rule_test"]
    ]
    given = [*test["input_series"], *_throughout(row, {cordoned: 1.0})]
    name = f"{row.alert} on a cordoned node"
    return {**test, "name": name, "input_series": given, "alert_rule_test": checks}


def rollover_test(row: Threshold) -> dict[str, Any]:
    """A test that an alert fires, and no rule fails, when another pod took over the scrapes.

    For a while the series of both are there, as in the rolling update of a DaemonSet.
    """
    course = Course.of(row)
    overlap = 2
    given = []
    for name, (low, high) in course.given.items():
        for pod, phases in (
            ("old", [(course.quiet + overlap, low), (1, None)]),
            ("new", [(course.quiet, None), (course.firing, high)]),
        ):
            own = "" if low is None and high is None else f'pod="gpunode-{pod}"'
            bare, _, labels = name.removesuffix("}").partition("{")
            given.append(
                {
                    "series": series(f"{bare}{{{labels},{own}}}"),
                    "values": values(name, phases, row.ramps and name in row.fires),
                }
            )
    fires = course.quiet + course.firing - 3
    return {
        "name": f"{row.alert} with another pod of the exporter",
        "interval": "1m",
        "input_series": given,
        "alert_rule_test": [
            {
                "eval_time": f"{fires}m",
                "alertname": row.alert,
                "exp_alerts": [expected(row, tier) for tier in row.tiers],
            }
        ],
    }


def expected(row: Threshold, tier: Tier, cordoned: bool = False) -> dict[str, Any]:
    """An alert as it must arrive, all its annotations rendered."""
    kept = re.search(r"\bby \(([^)]*)\)", row.signal)
    names = [name.strip() for name in kept[1].split(",")] if kept else []
    first = dict(re.findall(r'(\w+)="([^"]*)"', next(iter(row.fires))))
    labels = {**(BASE if row.scope != "cluster" else {}), **(ONE_GPU if row.scope == "gpu" else {})}
    labels |= {name: first[name] for name in names if first.get(name) and name not in (*BASE, "le")}
    if row.scope == "cluster" and "cluster" in names:
        labels["cluster"] = BASE["cluster"]
    arrives = rule(row, tier, cordoned)
    said = arrives["annotations"]["description"].replace(HELD, " Held by train-0.")
    if row.unit != "flag":
        said = said.replace(FORMATS[row.unit], RENDERED[row.unit](row.value))
    said = LABEL.sub(lambda match: labels.get(match[1], ""), said)
    dashboard = DASHBOARDS[row.scope].replace("{{ $labels.instance }}", BASE["instance"])
    return {
        "exp_labels": {**labels, **arrives["labels"]},
        "exp_annotations": {**arrives["annotations"], "description": said, "dashboard": dashboard},
    }


def record_test(record: Record) -> dict[str, Any]:
    """A test of what a recording rule comes to."""
    return {
        "name": record.name,
        "interval": "1m",
        "input_series": [
            {"series": series(name), "values": values(name, [(TESTED_AT + 8, value)])}
            for name, value in record.given.items()
        ],
        "promql_expr_test": [
            {
                "expr": record.name + _matcher(record),
                "eval_time": f"{TESTED_AT}m",
                "exp_samples": [
                    {"labels": record.name + labels, "value": value}
                    for labels, value in record.results.items()
                ],
            }
        ],
    }


def _matcher(record: Record) -> str:
    """Of a rule with a result for each state and namespace, only those that the test names."""
    wanted = []
    for label in ("state", "owner_namespace"):
        found = [re.findall(rf'{label}="(\w+)"', result) for result in record.results]
        if all(found):
            wanted.append(f'{label}=~"{"|".join(sorted({name for (name,) in found}))}"')
    return "{" + ",".join(wanted) + "}" if wanted else ""


def tests(items: Iterable[dict[str, Any]], *rules: str) -> dict[str, Any]:
    """A file for ``promtool test rules``."""
    return {
        "rule_files": [f"../rules/{name}.yaml" for name in dict.fromkeys(("recording", *rules))],
        "evaluation_interval": "1m",
        "tests": list(items),
    }


def _tests_of(row: Threshold) -> list[Callable[[Threshold], dict[str, Any]]]:
    silenced = row.gate != "always" or bool(row.silenced_by)
    cordons = any(pages_unless_cordoned(row, tier) for tier in row.tiers)
    own = [test for test, needed in ((silenced_test, silenced), (cordon_test, cordons)) if needed]
    return [alert_test, rollover_test, *own]


def test_files() -> dict[str, dict[str, Any]]:
    """What promtool is to test, by the name of the file."""
    return {
        "recording": tests(map(record_test, RECORDS), "cluster"),
        **{
            name: tests([test(row) for row in rows for test in _tests_of(row)], name)
            for name, rows in groups().items()
        },
    }
