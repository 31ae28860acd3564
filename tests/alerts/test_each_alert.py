"""Each alert through promtool: quiet, firing with its labels and its text, and over again.

``cases/*.yaml`` say what a node exports, in promtool's notation
(https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/#series).
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpunode.explain import rule_files
from tests.needs import need

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "alerts" / "rules"
CASES: list[dict[str, Any]] = [
    case
    for file in sorted((HERE / "cases").glob("*.yaml"))
    for case in yaml.safe_load(file.read_text())
    if "alert" in case
]
FIRST = ("thresholds", "records")
STEMS = sorted(
    (file.stem for file in RULES.glob("*.yaml")), key=lambda stem: (stem not in FIRST, stem)
)
"""The files of rules, each after those on which it rests."""

OF_FILES = {
    stem: list(rule_files.rules_of((RULES / f"{stem}.yaml").read_text(), stem)) for stem in STEMS
}
ALERTS = [rule for rules in OF_FILES.values() for rule in rules if rule.alerts]


@dataclass(frozen=True, slots=True)
class Check:
    """What is expected of an alert at a time."""

    at: str
    alerts: list[dict[str, Any]]


def _tests(case: dict[str, Any]) -> dict[str, Any]:
    """A case as promtool has it."""
    fires = case["fires"]
    tiers = [case["severity"], *([fires["with"]] if "with" in fires else [])]
    checks = [
        Check(case["quiet"], []),
        Check(fires["at"], [_fired(case["alert"], tier, fires) for tier in tiers]),
        *([Check(case["over"], [])] if "over" in case else []),
    ]
    return {
        "name": f"{case['alert']} {case['severity']}",
        "interval": "30s",
        "input_series": [
            {"series": series, "values": values}
            for given in case["given"]
            for series, values in given.items()
        ],
        "alert_rule_test": [
            {"eval_time": check.at, "alertname": case["alert"], "exp_alerts": check.alerts}
            for check in checks
        ],
    }


def _fired(alert: str, severity: str, fires: dict[str, Any]) -> dict[str, Any]:
    """An alert that fires. Its annotations are the rule's, but for the description."""
    (rule,) = (one for one in ALERTS if (one.name, one.severity) == (alert, severity))
    annotations = {name: _filled(text, fires["labels"]) for name, text in rule.annotations.items()}
    return {
        "exp_labels": {**rule.labels, **fires["labels"]},
        "exp_annotations": {**annotations, "description": fires["says"]},
    }


def _filled(text: str, labels: dict[str, str]) -> str:
    """An annotation of which the only templates are labels."""
    for name in ("cluster", "instance", "gpu", "owner_namespace", "workload"):
        text = text.replace(f"{{{{ $labels.{name} }}}}", labels.get(name, ""))
    return text


def test_each_alert_is_quiet_then_fires_with_its_text_and_is_over(tmp_path: Path) -> None:
    played = _played(tmp_path, list(OF_FILES), [_tests(case) for case in CASES])
    assert not played.returncode, played.stdout + played.stderr


def _played(
    folder: Path, stems: list[str], tests: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    file = folder / "test.yaml"
    test = {
        "rule_files": [str(RULES / f"{stem}.yaml") for stem in stems],
        "evaluation_interval": "30s",
        "group_eval_order": [
            *dict.fromkeys(rule.group for stem in stems for rule in OF_FILES[stem])
        ],
        "tests": tests,
    }
    file.write_text(yaml.safe_dump(test, allow_unicode=True, width=1000))
    return subprocess.run(
        [need("promtool"), "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_its_thresholds_the_rules_say_so(tmp_path: Path) -> None:
    stems = [stem for stem in OF_FILES if stem != "thresholds"]
    fires = {
        "labels": {},
        "says": "Load thresholds.yaml beside the other rules: 0 of 13 thresholds are there, and "
        "alerts that need the others are silent.",
    }
    check = {
        "eval_time": "11m",
        "alertname": "GpunodeThresholdsMissing",
        "exp_alerts": [_fired("GpunodeThresholdsMissing", "ticket", fires)],
    }
    series = [{"series": "up{job='gpunode',instance='n1'}", "values": "1x40"}]
    played = _played(
        tmp_path,
        stems,
        [{"interval": "30s", "input_series": series, "alert_rule_test": [check]}],
    )
    assert not played.returncode, played.stdout + played.stderr


def test_each_alert_has_a_case() -> None:
    told = {(case["alert"], case["severity"]) for case in CASES}
    rules = {(rule.name, rule.severity) for rule in ALERTS}
    assert rules - told == {("GpunodeThresholdsMissing", "ticket")}
    assert all("over" in case or "lasts" in case for case in CASES)
