"""The alerts on Fleet: pages before tickets, a thousand tickets in a row, and where rows lead.

promtool answers the panel's own queries for alerts that fire; Grafana's functions draw the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboards import FOLDER
from dashboards.firing import LABELS, NOT_KNOWN, PLACE
from dashboards.layout import GROUPS
from dashboards.promql import NO_NAMESPACE
from tests.dashboards.promtool import Found, promtool, with_labels
from tests.dashboards.queries import CHOSEN, filled
from tests.dashboards.tables import Row, table_rows

GROUP = GROUPS.partition("|")[0]
ALERTS: Mapping[str, str] = {"alertstate": "firing", "group": GROUP, "cluster": "c"}
JOB = {"owner_namespace": "team", "workload": "llama", "user": "kim"}
SLURM = {"workload": "slurm-42", "user": "kim"}
MEMBERS = ({"instance": "n1", "gpu": "0", "uuid": "GPU-a"}, {"instance": "n2", "gpu": "0"})

PAGES: tuple[Mapping[str, str], ...] = (
    {"alertname": "JobStalled", **JOB},
    {"alertname": "JobStalled", **SLURM},
    {"alertname": "GpuUnhealthy", "part": "gpu", **MEMBERS[0]},
    {"alertname": "NodeDown", "part": "exporter", "instance": "n2"},
    {"alertname": "StorageDown", "part": "filesystem", "name": "scratch"},
    {"alertname": "GpunodeAbsent"},
)
TICKETS = 1000

EXPECTED_GPUS: Mapping[tuple[str, str], float] = {
    ("JobStalled", "llama"): 512.0,
    ("JobStalled", "slurm-42"): 8.0,
    ("GpuUnhealthy", "llama"): 512.0,
    ("NodeDown", "llama"): 512.0,
    ("StorageDown", ""): float(NOT_KNOWN),
    ("GpunodeAbsent", ""): float(NOT_KNOWN),
    ("GpuHot", "llama"): 512.0,
}
"""The GPUs that each row has, by alert and job: a job that loses one GPU loses all."""


def panel() -> dict[str, Any]:
    content = json.loads((FOLDER / "gpunode-fleet.json").read_text())
    (found,) = (one for one in content["panels"] if one["title"] == "Firing alerts")
    return dict(found)


def given() -> Iterator[tuple[str, str]]:
    """Series with what they are minute by minute."""
    for page in PAGES:
        for name in ("ALERTS", "ALERTS_FOR_STATE"):
            labels = {**ALERTS, "severity": "page", **page}
            if name == "ALERTS_FOR_STATE":
                del labels["alertstate"]
            yield with_labels(name, labels), "1x10"
    for number in range(TICKETS):
        own = {"instance": f"n{number}", "gpu": "0", "uuid": "GPU-a" if number == 1 else "GPU-x"}
        labels = {**ALERTS, "severity": "ticket", "alertname": "GpuHot", **own}
        yield with_labels("ALERTS", labels), "1x10"
        del labels["alertstate"]
        yield with_labels("ALERTS_FOR_STATE", labels), "1x10"
    for member in MEMBERS:
        labels = {"cluster": "c", **member, **JOB}
        yield with_labels("gpu:gpunode_owner:info", labels), "1x10"
    labels = {"cluster": "c", "instance": "n9", "gpu": "0", **SLURM}
    yield with_labels("gpu:gpunode_owner:info", labels), "1x10"
    yield with_labels("job:gpunode_gpus:count", {"cluster": "c", **JOB}), "512x10"
    yield with_labels("job:gpunode_gpus:count", {"cluster": "c", **SLURM}), "8x10"


def run_promtool(folder: Path, checks: Mapping[str, Found]) -> str:
    """What promtool says against expressions having come to these results."""
    return promtool(folder, given(), {(5, one): found for one, found in checks.items()})


def test_each_page_has_a_row_and_a_thousand_tickets_have_one(tmp_path: Path) -> None:
    gpus, since = (filled(target["expr"]) for target in panel()["targets"])
    rows = [
        ({"alertname": alert, "its_job": job}, value)
        for (alert, job), value in EXPECTED_GPUS.items()
    ]
    told = run_promtool(
        tmp_path,
        {
            f"max by (alertname, its_job) ({gpus})": rows,
            f"count by (severity, alerts) ({gpus})": [
                ({"severity": "page", "alerts": "2"}, 2.0),
                ({"severity": "page", "alerts": "1"}, 4.0),
                ({"severity": "ticket", "alerts": str(TICKETS)}, 1.0),
            ],
            f"count({since})": [({}, float(len(EXPECTED_GPUS)))],
            f"count(({gpus}) unless ({since}))": [],
        },
    )
    assert not told, told


@pytest.mark.parametrize(
    ("alert", "board"),
    [("ServingCacheFull", "gpunode-serving"), ("JobSlowed", "gpunode-job")],
)
def test_a_job_leads_to_the_dashboard_that_shows_what_its_alert_looks_at(
    alert: str, board: str, tmp_path: Path
) -> None:
    labels = {**ALERTS, "severity": "ticket", "alertname": alert, **JOB}
    gpus, _ = (filled(target["expr"]) for target in panel()["targets"])
    told = promtool(
        tmp_path,
        {with_labels("ALERTS", labels): "1x10"},
        {(5, f"count by (to_job) ({gpus})"): [({"to_job": board}, 1.0)]},
    )
    assert not told, told


@pytest.mark.parametrize(
    ("namespace", "pages"), [("team", 5), ("other", 4), (NO_NAMESPACE, 5), (".*", 6)]
)
def test_a_namespace_has_its_alerts_and_those_of_hardware(
    namespace: str, pages: int, tmp_path: Path
) -> None:
    gpus = filled(panel()["targets"][0]["expr"], {**CHOSEN, "${namespace:pipe}": namespace})
    found = [({"severity": "page"}, float(pages)), ({"severity": "ticket"}, 1.0)]
    told = run_promtool(tmp_path, {f"count by (severity) ({gpus})": found})
    assert not told, told


@pytest.mark.parametrize(
    ("node", "marked"),
    [
        ("n1", ("llama", "gpu", "filesystem", "")),
        ("n2", ("llama", "exporter", "filesystem", "")),
        ("n9", ("slurm-42", "filesystem", "")),
        ("n1|n9", ("llama", "slurm-42", "gpu", "filesystem", "")),
    ],
)
def test_a_node_has_marks_of_its_own_pages_and_those_of_its_jobs(
    node: str, marked: tuple[str, ...], tmp_path: Path
) -> None:
    content = json.loads((FOLDER / "gpunode-node.json").read_text())
    pages, _ = (one["expr"] for one in content["annotations"]["list"])
    about = 'label_join({}, "about", "", "workload", "part")'
    marks = about.format(filled(pages, {**CHOSEN, "$node": node}))
    told = run_promtool(
        tmp_path, {f"count by (about) ({marks})": [({"about": one}, 1.0) for one in marked]}
    )
    assert not told, told


def test_pages_come_first_and_then_what_harms_most() -> None:
    order = [(one["displayName"], one.get("desc", False)) for one in panel()["options"]["sortBy"]]
    assert order == [("Level", False), ("GPUs", True)]
    assert "page" < "ticket"


def test_an_alert_has_no_label_that_would_make_two_rows_of_it() -> None:
    assert {*PLACE} <= {*LABELS}


@pytest.mark.integration
def test_rows_lead_to_the_runbook_and_to_what_the_alert_is_about() -> None:
    of_job = {
        "alertname": "JobStalled",
        "severity": "page",
        **JOB,
        "cluster": "c",
        "its_job": "llama",
    }
    of_node = {"alertname": "NodeDown", "severity": "page", "instance": "n2", "place": "n2"}
    of_fleet = {"alertname": "GpunodeAbsent", "severity": "page"}
    leads = {
        "JobStalled": ("gpunode-job", "llama", "gpunode-health", "All"),
        "NodeDown": ("gpunode-health", "All", "gpunode-node", "n2"),
        "GpunodeAbsent": ("gpunode-health", "All", "gpunode-health", "All"),
    }
    answer = [
        (
            {
                **labels,
                **dict(zip(("to_job", "in_job", "to_node", "in_node"), to, strict=True)),
                "in_cluster": labels.get("cluster", "All"),
                "of_namespace": labels.get("owner_namespace", NO_NAMESPACE),
            },
            float(NOT_KNOWN) if labels is of_fleet else 512.0,
        )
        for labels, to in zip((of_job, of_node, of_fleet), leads.values(), strict=True)
    ]
    rows = table_rows(panel(), [answer] * 2)
    assert [row.cells["GPUs"] for row in rows] == ["512", "512", "-"]
    for row in rows:
        to_job, job, to_node, node = leads[row.cells["Alert"]]
        assert row.links["Alert"].endswith(f"/{row.cells['Alert']}.md")
        assert board(row, "Job") == to_job
        assert row.selects("Job")["job"] == job
        assert board(row, "Place") == to_node
        assert row.selects("Place")["node"] == node


def board(row: Row, column: str) -> str:
    """The dashboard to which a column leads."""
    found = re.match(r"/d/([\w-]+)\?", row.links[column])
    assert found
    return found[1]
