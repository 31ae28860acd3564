"""``gpunode rules``: the rules as a site wants them, written by the installed program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.mistake import UsageError
from gpunode.rules.changes import read
from gpunode.rules.document import shipped
from gpunode.rules.render import number, rendered
from tests.needs import ROOT, need

ALERTS = ROOT / "alerts"


def write(folder: Path, changes: str | None = None) -> subprocess.CompletedProcess[str]:
    options = [f"--into={folder / 'mine'}"]
    if changes is not None:
        (folder / "changes.yaml").write_text(changes)
        options.append(f"--changes={folder / 'changes.yaml'}")
    command = [sys.executable, "-m", "gpunode", "rules", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def alerts(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The alerts in a folder, by name and severity."""
    return {
        (rule["alert"], rule["labels"]["severity"]): rule
        for path in (folder / "mine" / "rules").iterdir()
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_without_changes_it_writes_the_rules_of_the_project(tmp_path: Path) -> None:
    ran = write(tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    (line,) = ran.stdout.splitlines()
    files = rendered(shipped())
    assert line.startswith(f"{tmp_path / 'mine'}: wrote {len(files)} rule files")
    made = {path.name: path.read_text() for path in (tmp_path / "mine" / "rules").iterdir()}
    assert {name: yaml.safe_load(text) for name, text in made.items()} == {
        f"{name}.yaml": content for name, content in files.items()
    }
    example = (tmp_path / "mine" / "alertmanager.yaml").read_text()
    assert example == (ALERTS / "alertmanager.yaml").read_text()


def test_every_alert_can_be_changed_or_left_out(tmp_path: Path) -> None:
    changes = """
alerts:
  JobStarved: {ticket: {threshold: 0.25, for: 40m}, page: off}
  GpuHot: {ticket: {severity: info, threshold: 123456789.5}}
  JobStalled: {page: {severity: ticket}}
  JobLaunchBound: off
settings:
  fleet_nodes: 20
  xids_of_hardware: "79"
  nvlink_errors: 7
  runbooks_url: https://wiki.example.org
severities: {page: critical, ticket: warning}
keep_firing_for: off
"""
    ran = write(tmp_path, changes)
    assert ran.returncode == 0, ran.stderr
    written = sorted((tmp_path / "mine" / "rules").iterdir())
    text = "".join(path.read_text() for path in written)
    assert ">= 20" in text
    assert 'xid=~"79"' in text
    assert re.search(r"> 7\b", text)
    assert "keep_firing_for" not in text
    assert "JobLaunchBound" not in text
    assert "job:gpunode_launch:ratio" not in text, "only this alert looks at it"
    named = alerts(tmp_path)
    starved = named["JobStarved", "warning"]
    assert starved["for"] == "40m"
    assert starved["expr"].endswith(" > 0.25")
    assert starved["annotations"]["runbook_url"] == "https://wiki.example.org/JobStarved.md"
    assert ("JobStarved", "critical") not in named
    assert named["GpuHot", "info"]["expr"].endswith(" > 123456789.5")
    assert [severity for alert, severity in named if alert == "JobStalled"] == ["warning"]
    assert named["JobStalled", "warning"]["expr"].startswith("job:gpunode_stalled"), "the first"
    routes = (tmp_path / "mine" / "alertmanager.yaml").read_text()
    assert 'severity="critical"' in routes
    assert 'severity=~"warning|info"' in routes
    assert 'severity="page"' not in routes
    checked = subprocess.run(
        [need("promtool"), "check", "rules", "--lint=all", "--lint-fatal", *written],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_a_site_no_longer_wants_is_gone_from_the_folder(tmp_path: Path) -> None:
    write(tmp_path)
    groups = shipped()["files"]["thermal_power"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    write(tmp_path, yaml.safe_dump({"alerts": dict.fromkeys(alerts, False)}))
    left = yaml.safe_load((tmp_path / "mine/rules/thermal_power.yaml").read_text())
    assert left == {"groups": []}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ("alerts: {JobStarfed: off}", "alerts.JobStarfed: no alert has this name; did you mean "),
        ("alerts: {Xyz: off}", "alerts.Xyz: no alert has this name; docs/thresholds.md"),
        ("alerts: {JobStarved: {info: off}}", "no such tier; choose from ticket, page"),
        ("alerts: {JobStarved: {tickt: off}}", "no such tier; choose from ticket, page"),
        ("alerts: {JobStarved: {ticket: {for: soon}}}", "ticket.for: soon is not a duration"),
        ("alerts: {JobStarved: {ticket: {treshold: 1}}}", "choose from threshold, for, severity"),
        ("alerts: {JobStarved: {ticket: {threshold: hot}}}", "threshold: Input should be a valid"),
        ("alerts: {JobStarved: {ticket: {threshold: nan}}}", "threshold: Input should be a fini"),
        (
            "alerts: {JobStarved: {ticket: {threshold: 20}}}",
            "alerts.JobStarved.ticket.threshold: 20 is no share of 1: did you mean 0.2?",
        ),
        ("alerts: {JobStarved: {ticket: {threshold: -1}}}", "-1 is no share of 1: it is from 0 t"),
        (
            "settings: {fleet_share: 5}",
            "settings.fleet_share: 5 is no share of 1: did you mean 0.05",
        ),
        ("alerts: {JobStarved: {ticket: 7}}", "ticket: must be a mapping, or off, not 7"),
        ("alerts: {JobStarved: on}", "JobStarved: must be a mapping, or off, not on"),
        ("alerts: {JobStarved: }", "JobStarved: must be a mapping, or off, not "),
        ("alerts: {JobStarved: off, JobStarved: off}", "line 1: 'JobStarved' is there twice"),
        ("settings: {flet_nodes: 7}", "settings.flet_nodes: no setting has this name; did you m"),
        ("settings: {fleet_nodes: many}", "settings.fleet_nodes: must be a number, such as 5"),
        ("settings: {fleet_nodes: .inf}", "settings.fleet_nodes: must be a number, such as 5"),
        ("settings: {fleet_nodes: [1]}", "settings.fleet_nodes: must be a text or a number"),
        ('settings: {scrape_jobs: "gpu.*("}', "settings.scrape_jobs: gpu.*( is no pattern: unclos"),
        ('settings: {scrape_jobs: "(?!a)b"}', "(?!a)b is no pattern: look-around"),
        ('settings: {xids_of_hardware: "(7)\\\\1"}', "is no pattern: backreferences are not supp"),
        ("settings: {grafana_url: g.example}", "_url: g.example does not begin with http:// or"),
        ("severities: {page: warning, ticket: warning}", "page and ticket are both warning, so th"),
        ("severities: {page: ticket}", "severities: page and ticket are both ticket"),
        ("severities: {page: two words}", "severities.page: two words is not made of letters"),
        ("alert: {}", "alert: no such key; choose from alerts, settings, severities, keep_"),
        ("[1, 2]", "line 1: not a mapping"),
        ("{", "line 1: expected the node content"),
        ("[" * 5000, "changes.yaml: "),
    ],
)
def test_a_change_that_means_nothing_is_refused(
    changes: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "changes.yaml"
    path.write_text(changes)
    with pytest.raises(UsageError) as refused:
        read(path, shipped())
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert complaint in line


def test_nothing_is_written_of_changes_that_are_refused(tmp_path: Path) -> None:
    ran = write(tmp_path, "alerts: {JobStarfed: off}")
    path = tmp_path / "changes.yaml"
    complaint = "alerts.JobStarfed: no alert has this name; did you mean JobStarved?"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"gpunode: {path}: {complaint}\n")
    assert not (tmp_path / "mine").exists()


def test_a_file_or_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpunode", "rules"]
    (tmp_path / "file").write_text("")
    for options, complaint in (
        (["--into=rules", "--changes=nowhere"], "gpunode: nowhere: No such file or directory"),
        (["--into=file"], "gpunode: file/rules: cannot be written: Not a directory"),
    ):
        ran = subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (2, f"{complaint}\n")


def test_what_is_shipped_has_a_value_for_every_name() -> None:
    assert "${" not in yaml.safe_dump(rendered(shipped()))


@pytest.mark.parametrize("value", [0, 5, 0.05, 1e6, 14400.0, 123456789.5, 1e-9, 0.1 + 0.2])
def test_a_number_is_written_without_loss(value: float) -> None:
    assert float(number(value)) == value
