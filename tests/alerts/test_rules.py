"""What a person who is woken can take in: how large the rules are, and whether they are sound."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from alerts import document
from alerts.document import RULES, RUNBOOKS, figures
from gpunode.explain.promql import selectors
from gpunode.explain.rule_files import (
    MAX_DEPTH,
    THRESHOLD,
    Rule,
    by_record,
    read_rules,
    underlying_records,
)
from gpunode.faults.fault import Part, Severity
from gpunode.metric import Metric
from gpunode.sources import METRICS
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.held_up import MOMENTARY_CAUSES
from gpunode.verdict.reasons import REASONS
from gpunode.verdict.workload import KINDS
from tests.needs import need

ALL = read_rules(RULES)
ALERTS = [rule for rule in ALL if rule.alerts]
PAGES = {rule.name for rule in ALERTS if rule.severity == "page"}
DECLARED: dict[str, Metric] = {one.name: one for told in METRICS.values() for one in told}
OF_PROMETHEUS = {"cluster", "instance"}
OF_KUBERNETES = {
    "up": {"job", "rack", "leaf"},  # a site adds the last two (docs/dashboards.md)
    "kube_node_status_allocatable": {"node", "resource", "unit"},
    "kube_node_labels": {
        "node",
        "label_topology_kubernetes_io_rack",
        "label_network_topology_nvidia_com_leaf",
    },
    "kube_node_spec_unschedulable": {"node"},
    "kube_node_status_condition": {"node", "condition", "status"},
}
"""https://github.com/kubernetes/kube-state-metrics/blob/main/docs/metrics/cluster/node-metrics.md"""

VALUES = {
    "cause": {*CAUSES, *MOMENTARY_CAUSES},
    "part": {*get_args(Part), "exporter"},
    "severity": {*get_args(Severity)},
    "workload kind": {*KINDS},
    "waited for": {*REASONS},
}
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def declared(name: str) -> Metric | None:
    """The metric that a series belongs to, even if it is part of a histogram."""
    return DECLARED.get(name) or DECLARED.get(re.sub(r"_(bucket|sum|count)$", "", name))


# How large they are


def test_behind_an_alert_is_little_to_read() -> None:
    found = document.shipped()
    wrong = {
        name: (rules, characters, depth)
        for name, (rules, characters, depth) in found.behind.items()
        if rules > 12 or characters > 6000 or depth > MAX_DEPTH
    }
    assert wrong == {}, "rules, characters of PromQL, depth"
    assert found.themselves == ()
    assert {name: size for name, size in found.groups.items() if size > 20} == {}
    assert [one for one in found.intervals if not re.fullmatch(r"[1-9]\d*0s|\d+[mh]", one)] == []
    assert found.records <= 80
    assert len({rule.name for rule in ALERTS}) <= 50
    assert len(PAGES) <= 12


def test_a_rule_that_reads_itself_and_a_deep_one_are_found() -> None:
    def made(name: str, expression: str, alerts: bool = False) -> Rule:
        return Rule(name, alerts, expression, {}, {}, "", "", "g", "10s", "x.yaml")

    rules = [
        made("a:b:c", "up or d:e:f"),
        made("d:e:f", "max_over_time(a:b:c[1h])"),
        made("g:h:i", "a:b:c > 1"),
        made("Wakes", "g:h:i == 1", alerts=True),
    ]
    assert set(document.size(rules).themselves) == {"a:b:c", "d:e:f"}
    assert underlying_records("g:h:i == 1", by_record(rules)) == {
        "g:h:i": 1,
        "a:b:c": 2,
        "d:e:f": 3,
    }


# What they read


def test_a_rule_reads_what_exists() -> None:
    made = {rule.name for rule in ALL if not rule.alerts}
    wrong = []
    for rule in ALL:
        for name, matchers in selectors(rule.expression):
            metric = declared(name)
            labels = OF_KUBERNETES.get(name) or (set(metric.labels) if metric else None)
            if name not in made and labels is None:
                wrong.append(f"{rule.name}: {name}")
            for label, how, value in MATCHER.findall(matchers):
                if labels is not None and label not in labels | OF_PROMETHEUS:
                    wrong.append(f"{rule.name}: {name} has no label {label}")
                of = {
                    ("gpunode_gpu_workload", "kind"): "workload kind",
                    ("gpunode_gpu_waited_for", "reason"): "waited for",
                }.get((name, label), label)
                if how in ("=", "=~") and of in VALUES:
                    wrong += [
                        f'{rule.name}: {name}{{{label}="{one}"}}'
                        for one in value.split("|")
                        if not any(re.fullmatch(one, known) for known in VALUES[of])
                    ]
    assert wrong == []


def test_a_rule_follows_the_craft() -> None:
    """It keeps clusters apart, and takes rates of counters alone."""
    wrong = []
    for rule in ALL:
        wrong += [
            f"{rule.name}: {how} ({labels})"
            for how, labels in re.findall(r"\b(by|on) \(([^)]*)\)", rule.expression)
            if "cluster" not in labels.split(", ") and rule.name != "GpunodeThresholdsMissing"
        ]
        for counter in re.findall(r"\b(?:rate|increase)\(\s*(\w+)", rule.expression):
            metric = declared(counter)
            if metric is None or metric.kind == "gauge":
                wrong.append(f"{rule.name}: {counter} is no counter")
        if not rule.alerts and not re.fullmatch(r"[a-z]+:[a-z0-9_]+:[a-z0-9_]+", rule.name):
            wrong += [rule.name] * (rule.name != THRESHOLD)
    assert wrong == []


def test_every_threshold_is_read_and_counted() -> None:
    given = figures(ALL)
    reading = {
        name
        for rule in ALL
        for name in re.findall(r'gpunode_threshold{name="(\w+)"}', rule.expression)
    }
    assert reading == given.keys()
    assert len(given) == sum(rule.name == THRESHOLD for rule in ALL), "each once"
    (missing,) = (rule for rule in ALERTS if rule.name == "GpunodeThresholdsMissing")
    assert missing.expression.endswith(f"< {len(given)}")
    assert f"of {len(given)} thresholds" in missing.annotations["description"]


def test_every_record_is_read() -> None:
    """By an alert or its text, by a board, or by the report."""
    root = RULES.parents[1]
    places = [
        *(root / "dashboards/json").glob("*.json"),
        *(root / "exporter/gpunode").rglob("*.py"),
        *RULES.glob("*.yaml"),
        root / "docs/serving.md",  # for autoscalers
    ]
    texts = "\n".join(path.read_text() for path in places)
    made = {rule.name for rule in ALL if not rule.alerts} - {THRESHOLD}
    unread = [name for name in made if len(re.findall(rf"{name}\b", texts)) < 2]
    assert unread == []


# What an alert says


def test_every_alert_says_what_on_call_needs() -> None:
    wrong = []
    for rule in ALERTS:
        told = rule.annotations
        needed = ("summary", "description", "runbook_url", "dashboard")
        wrong += [f"{rule.name}: no {name}" for name in needed if not told.get(name)]
        if rule.severity not in ("page", "ticket", "info") or not rule.labels.get("group"):
            wrong.append(f"{rule.name}: severity and group")
        if not told.get("runbook_url", "").endswith(f"/alerts/runbooks/{rule.name}.md"):
            wrong.append(f"{rule.name}: its runbook")
        if not told.get("dashboard", "").startswith("/d/gpunode-"):
            wrong.append(f"{rule.name}: its dashboard")
        korean = told.get("runbook_url_ko", "").endswith(f"/runbooks/ko/{rule.name}.md")
        if (rule.name in PAGES) != (korean and bool(told.get("summary_ko"))):
            wrong.append(f"{rule.name}: Korean is for what can page")
    assert wrong == []


def test_what_is_told_outlasts_a_missed_scrape() -> None:
    """An alert that ends for one scrape is told twice."""
    assert [rule.name for rule in ALERTS if rule.severity == "page" and not rule.kept] == []


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    found = {str(path.relative_to(RUNBOOKS)) for path in RUNBOOKS.rglob("*.md")}
    assert found == {
        *(f"{rule.name}.md" for rule in ALERTS),
        *(f"ko/{name}.md" for name in PAGES),
    }


def test_what_derives_from_the_rules_is_up_to_date() -> None:
    made = document.files()
    assert {path: path.read_text() for path in made} == made, "make alerts"


def test_a_comment_is_that_of_its_rule(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        """\
groups:
  - name: g
    rules:
      # Of the first.
      # Of both.
      - record: a:b:c
        expr: up # not this
      - record: d:e:f
        expr: up

      - alert: A
        expr: up
      # Of B.
      - alert: B
        expr: up
"""
    )
    said = {one.rule.name: one.comment for one in document.rules_with_comments(tmp_path)}
    first = "Of the first. Of both."
    assert said == {"a:b:c": first, "d:e:f": first, "A": "", "B": "Of B."}


# What programs say of them


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "--lint=all", "--lint-fatal"),
        ("pint", "--offline", "--no-color", "lint", "--min-severity=info"),
        ("vmalert", "-dryRun"),
    ],
    ids=lambda command: command[0],
)
def test_engines_accept_the_rules(command: tuple[str, ...]) -> None:
    program, *options = command
    given = [f"-rule={RULES}/*.yaml"] if program == "vmalert" else sorted(RULES.glob("*.yaml"))
    ran = subprocess.run(
        [need(program), *options, *map(str, given)],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Problems found" not in ran.stderr, ran.stderr


def test_the_routes_are_valid_and_name_what_the_rules_have() -> None:
    path = RULES.parent / "alertmanager.yaml"
    checked = [need("amtool"), "check-config", str(path)]
    ran = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    named = {
        name
        for found in re.findall(r'alertname!?=~?"([^"]+)"', path.read_text())
        for name in found.split("|")
    }
    known = {rule.name for rule in ALERTS}
    assert named - {"Job.*", "Serving.*", "Watchdog"} <= known


def test_names_in_runbooks_exist() -> None:
    made = {rule.name for rule in ALL}
    alerts = {rule.name for rule in ALERTS}
    levels = "Fleet|Gpu|Gpunode|Job|Nccl|Node|Nvlink|Pcie|Serving|Storage"
    wrong = []
    for path in RUNBOOKS.rglob("*.md"):
        text = path.read_text()
        said = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
        wrong += [
            f"{path.name}: {name}"
            for name in re.findall(r"(?<![:\w/.-])(gpunode_\w+)\b(?!:)", text)
            if declared(name) is None and name not in made
        ]
        wrong += [
            f"{path.name}: {name}"
            for name in re.findall(r"\b[a-z]+:gpunode_\w+:\w+", text)
            if name not in made
        ]
        wrong += [
            f"{path.name}: {name}"
            for name in re.findall(rf"\b(?:{levels})(?:[A-Z]\w+)\b(?!=)", said, re.ASCII)
            if name not in alerts
        ]
    assert wrong == []
