"""What runs the report each month and mails it: the CronJob and the timer of the documents."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gpunode.cli.loader import load
from gpunode.cli.report import period
from gpunode.cli.settings.report import ReportSettings
from gpunode.report.billing import Billing, parse
from gpunode.report.history import HOUR, JobKey
from tests.needs import need

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "exporter/systemd"
DOCUMENT = (ROOT / "docs/report.md").read_text()
NEWEST = kubernetes_validate.latest_version()
EXAMPLE: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "helm/examples/report.yaml").read_text())
)


def test_the_api_server_takes_the_cron_job() -> None:
    assert [one["kind"] for one in EXAMPLE] == ["ConfigMap", "CronJob"]
    for one in EXAMPLE:
        kubernetes_validate.validate(one, NEWEST, strict=True)


def test_its_prices_and_teams_and_those_of_the_document_can_be_read(tmp_path: Path) -> None:
    written = (EXAMPLE[0]["data"]["billing.yaml"], _block("yaml"))
    for text in written:
        (tmp_path / "billing.yaml").write_text(text)
        billing = parse(tmp_path / "billing.yaml")
        assert billing.price_of("NVIDIA H200") == 3.1
        assert billing.price_of("NVIDIA H100 80GB HBM3") == 2.2
        assert billing.price_of("NVIDIA L4") == billing.price
        assert billing.teams["vision"].mail
        assert billing != Billing()


def test_a_job_is_of_the_first_team_that_has_its_account_namespace_or_user(tmp_path: Path) -> None:
    (tmp_path / "billing.yaml").write_text(
        "teams: {a: {accounts: [ml]}, b: {namespaces: [res*]}, c: {users: [kim, res]}}"
    )
    billing = parse(tmp_path / "billing.yaml")
    for job, account, team in (
        (JobKey("", "", "slurm-1", "kim"), "ml", "a"),
        (JobKey("", "research", "llm", ""), "", "b"),
        (JobKey("", "", "slurm-2", "kim"), "bio", "c"),
        (JobKey("", "web", "chat", ""), "", ""),
    ):
        assert billing.team(job, account) == team, job


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found
    return found[1]


def _script() -> str:
    (container,) = EXAMPLE[1]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    return str(script)


def _of_the_unit() -> list[str]:
    unit = (UNITS / "gpunode-report.service").read_text()
    return re.findall(r"^Exec\w+=(.*)$", unit, re.MULTILINE)


def test_the_options_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUNODE_PROMETHEUS__URL", "http://prometheus:9090")
    monkeypatch.setenv("GPUNODE_BILLING_FILE", "/etc/gpunode/billing.yaml")
    lines = [line.strip() for line in (*_script().splitlines(), *_of_the_unit())]
    asked = [line.split("gpunode report ")[1] for line in lines if "gpunode report " in line]
    assert len(asked) == 2
    for options in asked:
        settings = load(ReportSettings, "gpunode report", options.split())
        assert settings.out_folder is not None
        assert (settings.since, settings.until) == ("last-month", "now")
        assert str(settings.billing_file) == "/etc/gpunode/billing.yaml"


@pytest.mark.parametrize(
    ("until", "now", "begins", "ends"),
    [
        ("now", "2026-11-01T06:00", "2026-10-01", "2026-11-01"),
        ("now", "2026-11-30T23:00", "2026-10-01", "2026-11-01"),
        ("now", "2027-01-01T00:00", "2026-12-01", "2027-01-01"),
        ("2026-03-01", "2026-11-01T06:00", "2026-02-01", "2026-03-01"),
    ],
)
def test_each_hour_is_on_the_bill_of_one_calendar_month(
    until: str, now: str, begins: str, ends: str
) -> None:
    def at(text: str) -> int:
        return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())

    assert period("last-month", until, at(now), HOUR) == (at(begins), at(ends))


def _programs(folder: Path) -> dict[str, str]:
    """An environment in which a report makes two mails, and what sends them writes them down."""
    for name, does in (
        (
            "gpunode",
            f"printf 'To: a\\n\\nA' > {folder}/a.eml; printf 'To: b\\n\\nB' > {folder}/b.eml",
        ),
        ("msmtp", f"cat >> {folder}/sent"),
        ("sendmail", f"cat >> {folder}/sent"),
    ):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SMTP_HOST": "mail"}


def test_every_mail_is_sent(tmp_path: Path) -> None:
    environment = _programs(tmp_path)
    of_unit = "\n".join(
        line.removeprefix("/bin/sh -c '")
        .rstrip("'")
        .replace("$$", "$")
        .replace("/var/lib/gpunode-report", str(tmp_path))
        for line in _of_the_unit()
        if line.startswith("/bin/sh")
    ).replace("/usr/sbin/sendmail", "sendmail")
    for script in (_script().replace("/out", str(tmp_path)), of_unit):
        (tmp_path / "sent").write_text("")
        subprocess.run(["/bin/sh", "-ec", script], env=environment, check=True)
        assert (tmp_path / "sent").read_text() == "To: a\n\nATo: b\n\nB"


@pytest.mark.parametrize("name", ["gpunode-report.service", "gpunode-report.timer"])
def test_systemd_understands_every_line(name: str, tmp_path: Path) -> None:
    for unit in UNITS.glob("gpunode-report.*"):
        text = unit.read_text().replace("/opt/gpunode/bin/gpunode", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    command = [need("systemd-analyze"), "verify", "--man=no", str(tmp_path / name)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert name not in ended.stderr
    assert ended.returncode == 0, ended.stderr
