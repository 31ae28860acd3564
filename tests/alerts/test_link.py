"""The address of what a node has kept of an incident, in the descriptions of alerts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from alerts.rule_files import ITS_INCIDENT
from gpunode.rules.render import with_values
from tests.needs import need

JOB = {"cluster": "c", "owner_namespace": "", "workload": "llm", "replica": "", "user": "kim"}
KEPT = {**JOB, "instance": "node-b", "incident": "20261122T043119Z-stall-0", "where": ""}


def describes(
    folder: Path, template: str, labels: dict[str, str], recorded: dict[str, int], says: str
) -> None:
    """Hold what the template of an alert with some labels says where these series are recorded."""
    alert = {"alert": "A", "expr": "it_is_so", "annotations": {"description": template}}
    of_alert = {name: text for name, text in labels.items() if text}
    given = {_with(of_alert, "it_is_so"): 1, **recorded}
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": f"{v}x5"} for s, v in given.items()],
                "alert_rule_test": [
                    {
                        "eval_time": "2m",
                        "alertname": "A",
                        "exp_alerts": [
                            {"exp_labels": of_alert, "exp_annotations": {"description": says}}
                        ],
                    }
                ],
            }
        ],
    }
    (folder / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": [alert]}]})
    )
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    command = [need("promtool"), "test", "rules", "test.yaml"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _with(labels: dict[str, str], name: str) -> str:
    told = ",".join(f'{label}="{text}"' for label, text in labels.items() if text)
    return f"{name}{{{told}}}"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", " Kept: 20261122T043119Z-stall-0 on node-b."),
        (
            "https://INSTANCE.example.org/gpunode",
            " Kept: 20261122T043119Z-stall-0 on node-b: https://node-b.example.org/gpunode"
            "/api/v1/incidents/20261122T043119Z-stall-0.",
        ),
    ],
)
def test_an_alert_leads_to_the_incident_where_a_site_gives_an_address(
    address: str, says: str, tmp_path: Path
) -> None:
    template = with_values(ITS_INCIDENT, {"node_url": address})
    describes(tmp_path, template, JOB, {_with(KEPT, "job:gpunode_incident:kept"): 1}, says)
