"""The alert rules: derived from the table, valid, tested by Prometheus itself, and resting on
metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from alerts import generate, rule_tests
from alerts.recording import OF_CLUSTERS, OF_NODES, RECORDS
from alerts.rule_files import alert_rules, expression, groups
from alerts.thresholds.table import THRESHOLDS, Threshold, Tier
from gpunode.sources import METRICS as SECTIONS
from tests.bench.incidents import find

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "alerts"
DECLARED = {metric.name: metric for metrics in SECTIONS.values() for metric in metrics}
RECORDED = {record.name for record in RECORDS}


def run(
    program: str, *arguments: str | Path, cwd: Path = ALERTS
) -> subprocess.CompletedProcess[str]:
    found = find(program)
    if found is None:
        pytest.skip(f"{program} is not here: make monitoring")
    return subprocess.run(
        [found, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


def promtool(*arguments: str | Path, cwd: Path = ALERTS) -> subprocess.CompletedProcess[str]:
    return run("promtool", *arguments, cwd=cwd)


def test_what_is_committed_is_what_the_table_says() -> None:
    found = {path: (ROOT / path).read_text() for path in generate.files()}
    assert found == generate.files(), "make alerts"
    runbooks = {path.name for path in (ALERTS / "runbooks").iterdir()}
    assert runbooks == {f"{row.alert}.md" for row in THRESHOLDS}


def test_the_rules_are_valid() -> None:
    rules = sorted((ALERTS / "rules").iterdir())
    ran = promtool("check", "rules", "--lint=all", "--lint-fatal", *rules)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_pint_has_nothing_to_say_about_the_rules() -> None:
    ran = run("pint", "--offline", "--no-color", "lint", "--min-severity=info", "rules")
    assert ran.returncode == 0, ran.stderr
    assert "Problems found" not in ran.stderr, ran.stderr


def test_victoriametrics_accepts_the_rules() -> None:
    ran = run("vmalert", "-dryRun", "-rule=rules/*.yaml")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["recording", *groups()])
def test_prometheus_finds_that_the_rules_do_what_they_should(name: str) -> None:
    ran = promtool("test", "rules", f"tests/{name}.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_wrong_threshold_fails_the_tests(tmp_path: Path) -> None:
    """The tests of the rules can fail: with a threshold out of reach, nothing fires."""
    for folder in ("rules", "tests"):
        shutil.copytree(ALERTS / folder, tmp_path / folder)
    (row, *_) = groups()["serving"]
    beyond = replace(row, tiers=(Tier("warning", 99.0, "5m"),))
    rules = tmp_path / "rules/serving.yaml"
    rules.write_text(generate.dump(alert_rules("serving", [beyond])))
    ran = promtool("test", "rules", "tests/serving.yaml", cwd=tmp_path)
    assert ran.returncode == 1
    assert f"alertname: {row.alert}" in ran.stdout + ran.stderr


def test_an_input_pipeline_that_stalls_is_a_warning(tmp_path: Path) -> None:
    """The daemon exports every cause, all but one of them 0."""
    (row,) = (row for row in THRESHOLDS if row.alert == "TrainingStalled")
    stalled = 'gpunode_training_stalled{cause="input"}'
    collective = 'gpunode_training_stalled{cause="collective"}'
    row = replace(
        row,
        fires={stalled: 1.0, collective: 0.0},
        quiet={stalled: 0.0},
        tiers=row.tiers[:1],
        value=1.0,
    )
    shutil.copytree(ALERTS / "rules", tmp_path / "rules")
    (tmp_path / "tests").mkdir()
    written = generate.dump(rule_tests.tests([rule_tests.alert_test(row)], "communication"))
    (tmp_path / "tests/input.yaml").write_text(written)
    ran = promtool("test", "rules", "tests/input.yaml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def generated(folder: Path, changes: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "changes.yaml").write_text(changes)
    command = [sys.executable, "-m", "alerts.generate", f"--into={folder}/rules", *options]
    return subprocess.run(
        [*command, f"--changes={folder}/changes.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_alert_can_be_changed_or_left_out(tmp_path: Path) -> None:
    changes = """
GpuStarved: {warning: {threshold: 0.25, for: 30m}, critical: off}
GpuHot: {warning: {severity: info}}
LaunchBound: off
"""
    ran = generated(tmp_path, changes, "--no-keep-firing-for")
    assert ran.returncode == 0, ran.stderr
    assert promtool("check", "rules", *(tmp_path / "rules").iterdir()).returncode == 0
    rules = [
        rule
        for path in (tmp_path / "rules").iterdir()
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    named = {(rule["alert"], rule["labels"]["severity"]): rule for rule in rules}
    starved = named["GpuStarved", "warning"]
    assert starved["for"] == "30m"
    assert " > 0.25 and " in starved["expr"]
    assert ("GpuStarved", "critical") not in named
    assert ("GpuHot", "info") in named
    assert "LaunchBound" not in {alert for alert, _ in named}
    assert not any("keep_firing_for" in rule for rule in rules)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ("GpuStarfed: off", "no alert is called GpuStarfed"),
        ("GpuStarved: {info: off}", "GpuStarved has no tier info"),
        ("GpuStarved: {warning: {for: soon}}", "String should match"),
        ("GpuStarved: {warning: {treshold: 1}}", "treshold: Extra inputs"),
        ("[1, 2]", "Input should be a valid dictionary"),
        ("{", "changes.yaml"),
    ],
)
def test_a_change_of_nothing_is_misuse(changes: str, complaint: str, tmp_path: Path) -> None:
    ran = generated(tmp_path, changes)
    assert ran.returncode == 2
    assert complaint in ran.stderr
    assert not (tmp_path / "rules").exists()


def test_every_alert_and_record_is_tested() -> None:
    alerts = [
        test
        for group in groups()
        for test in yaml.safe_load((ALERTS / f"tests/{group}.yaml").read_text())["tests"]
    ]
    names = {test["name"] for test in alerts}
    assert len(names) == len(alerts)
    every = {row.alert for row in THRESHOLDS}
    assert {f"{alert} with another pod of the exporter" for alert in every} <= names
    for how in ("while training evaluates", "on a cordoned node"):
        assert sum(name.endswith(how) for name in names) > 5
    alone = [test for test in alerts if test["name"] in every]
    assert len(alone) == len(every)
    for test in alone:
        checks = [check["exp_alerts"] for check in test["alert_rule_test"]]
        assert not checks[0], "quiet just below"
        assert checks[-2], "fires"
        assert not checks[-1], "resolves"
    records = yaml.safe_load((ALERTS / "tests/recording.yaml").read_text())["tests"]
    assert [test["name"] for test in records] == [record.name for record in RECORDS]


def expressions() -> dict[str, str]:
    found = {
        f"{row.alert} {t.severity}": expression(row, t) for row in THRESHOLDS for t in row.tiers
    }
    return found | {record.name: record.expression for record in RECORDS}


@pytest.mark.parametrize("name", expressions())
def test_a_rule_rests_on_metrics_that_there_are(name: str) -> None:
    expression = re.sub(r'"[^"]*"', '""', expressions()[name])
    for metric in set(re.findall(r"\b(?:gpu|node|cluster|namespace|job):[\w:]+", expression)):
        assert metric in RECORDED
    for metric in set(re.findall(r"(?<!:)\b(gpunode_\w+)", expression)):
        assert re.sub(r"_(bucket|sum|count)$", "", metric) in DECLARED, metric


EXPOSED = [
    (name, dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    for path in [*ROOT.glob("tests/golden/*.txt"), *ROOT.glob("tests/machines/*/golden/*.txt")]
    for name, labels in re.findall(r"^(gpunode_\w+){(.*)} ", path.read_text(), re.M)
]


@pytest.mark.parametrize("row", THRESHOLDS, ids=lambda row: row.alert)
def test_a_signal_asks_for_labels_that_are_exported(row: Threshold) -> None:
    """What a golden exposition shows of a metric has the label values that the signal selects."""
    for metric, selected in re.findall(r"\b(gpunode_\w+){([^}]*)}", row.signal):
        shown = [labels for name, labels in EXPOSED if name == metric]
        for label, value in re.findall(r'(\w+)="([^"]+)"', selected):
            values = {labels.get(label) for labels in shown}
            assert not shown or value in values, f"{metric}: {label} is one of {values}"


@pytest.mark.parametrize("name", expressions())
def test_a_rule_follows_the_craft(name: str) -> None:
    expression = expressions()[name]
    assert not re.search(r"\b(topk|bottomk)\b", expression)
    for metric in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
        assert re.search(r"_(total|bucket|sum|count)$", metric), f"{metric} is no counter"
    for divisor in re.findall(r"/ (?:on \([^)]*\) (?:group_left \(\) )?)?(.{0,200})", expression):
        constant = re.match(r"\d+\b", divisor)
        assert constant or "> 0" in divisor or name == "gpu:gpunode_gpu_owner:share", divisor
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert "cluster" in grouped
        over_nodes = "owner_namespace" in grouped or name.startswith("cluster:")
        over_nodes |= any(row.over_nodes for row in THRESHOLDS if row.alert == name.split()[0])
        assert "instance" in grouped or over_nodes


def test_the_rules_for_a_shard_rest_on_nothing_that_takes_all_nodes() -> None:
    of_clusters = {record.name for record in OF_CLUSTERS}
    for rows in (rows for name, rows in groups().items() if name != "cluster"):
        for row in rows:
            assert not any(name in row.signal for name in of_clusters), row.alert
    for record in OF_NODES:
        assert not any(name in record.expression for name in of_clusters), record.name
    above = [expression(row, tier) for row in groups()["cluster"] for tier in row.tiers]
    above += [record.expression for record in OF_CLUSTERS]
    raw = {
        name
        for text in above
        for name in re.findall(r"(?<![:\w])(?:gpunode|kube)_\w+|\bup\b", text)
    }
    assert raw == {
        "gpunode_filesystem_available_bytes",
        "gpunode_filesystem_size_bytes",
        "gpunode_gpu_bottleneck",
        "kube_node_status_allocatable",
        "up",
    }, "docs/rules.md says what they rest on"


def test_names_of_recording_rules_say_level_metric_and_operation() -> None:
    for record in RECORDS:
        assert re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", record.name)


@pytest.mark.parametrize("row", THRESHOLDS, ids=lambda row: row.alert)
def test_a_row_of_the_table_says_all_that_on_call_needs(row: Threshold) -> None:
    for text in (row.meaning, row.impact, row.diagnosis, row.remedy):
        assert text[-1] in ".?"
        assert len(text) >= 9
    assert row.source.startswith("https://")
    assert re.search("[가-힣]", row.korean)
    severities = [tier.severity for tier in row.tiers]
    assert len(set(severities)) == len(severities)
    sign = 1 if row.comparison == ">" else -1
    assert all(sign * (row.value - tier.threshold) > 0 for tier in row.tiers if row.unit != "flag")


def test_the_example_for_alertmanager_is_valid() -> None:
    ran = run("amtool", "check-config", "alertmanager.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("severity", "to"), [("critical", "pager"), ("warning", "channel"), ("info", "review")]
)
def test_a_severity_goes_where_it_should(severity: str, to: str) -> None:
    labels = ("alertname=GpuStarved", f"severity={severity}")
    ran = run("amtool", "config", "routes", "test", "--config.file=alertmanager.yaml", *labels)
    assert ran.stdout.strip() == to


def test_the_example_for_alertmanager_names_alerts_that_there_are() -> None:
    text = (ALERTS / "alertmanager.yaml").read_text()
    named = {n for found in re.findall(r'alertname=~?"([^"]+)"', text) for n in found.split("|")}
    assert named <= {row.alert for row in THRESHOLDS}
    (grouped,) = re.findall(r'group=~"([^"]+)"', text)
    assert set(grouped.split("|")) == {row.group for row in THRESHOLDS}
