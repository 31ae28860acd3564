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
    description = with_values(ITS_INCIDENT, {"node_url": address})
    alert = {"alert": "A", "expr": "job_stands_still", "annotations": {"description": description}}
    labels = ",".join(f'{name}="{text}"' for name, text in KEPT.items() if text)
    of_job = ",".join(f'{name}="{text}"' for name, text in JOB.items() if text)
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f"job:gpunode_incident:kept{{{labels}}}", "values": "1x5"},
                    {"series": f"job_stands_still{{{of_job}}}", "values": "1x5"},
                ],
                "alert_rule_test": [
                    {
                        "eval_time": "2m",
                        "alertname": "A",
                        "exp_alerts": [
                            {
                                "exp_labels": {name: text for name, text in JOB.items() if text},
                                "exp_annotations": {"description": says},
                            }
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": [alert]}]})
    )
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    command = [need("promtool"), "test", "rules", "test.yaml"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
