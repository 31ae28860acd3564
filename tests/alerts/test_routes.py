"""Which alerts the example for Alertmanager makes one incident of, and which several."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.model import OF_ONE_NODE, Threshold, seconds
from alerts.recording import RECORDS
from alerts.rule_files import can_page
from alerts.thresholds.table import THRESHOLDS
from tests.alerts.scenarios.play import Alert, Notified, Timeline, notified
from tests.needs import need
from tests.prometheus.incidents import ALERTMANAGER
from tests.prometheus.programs import alertmanager

OF_A_NODE = [row for row in THRESHOLDS if row.scope in OF_ONE_NODE and can_page(row)]
"""The alerts that can wake somebody for one node."""

(FLEET_FAULT,) = (row for row in THRESHOLDS if row.alert == "FleetFault")
(NODE_FAULTS,) = (record for record in RECORDS if record.name == "node:gpunode_fault:level")


def page(row: Threshold, cluster: str, node: int, gpu: int = 0) -> Alert:
    """An alert of a row about a node, or about one of its GPUs."""
    own = {
        **dict.fromkeys(row.identity, "0"),
        **({"gpu": str(gpu), "uuid": f"GPU-{node}-{gpu}"} if row.scope == "gpu" else {}),
        "cluster": cluster,
        "instance": f"n-{node}",
    }
    return labelled(row, own)


def labelled(row: Threshold, own: dict[str, str]) -> Alert:
    named = {"alertname": row.alert, "group": row.group, "severity": "page"}
    fault = {"fault": row.fault} if row.fault else {}
    return frozenset({**named, **own, **fault}.items())


def waits(row: Threshold) -> int:
    """Seconds for which the condition of a page must last."""
    return min(seconds(tier.after) for tier in row.tiers if tier.severity == "page")


def fleet_fault(cluster: str, fault: str) -> Alert:
    return labelled(FLEET_FAULT, {"cluster": cluster, "fault": fault})


def one_after_the_other(*firing: Iterable[Alert], minutes: int = 10) -> Timeline:
    """Alerts that begin to fire so many minutes after each other, and go on."""
    steps: list[frozenset[Alert]] = [frozenset()]
    for alerts in firing:
        steps += [steps[-1] | frozenset(alerts)] * minutes
    return Timeline(60, tuple(steps))


@pytest.fixture(scope="module")
def told() -> dict[str, Notified]:
    """Whom a real Alertmanager notifies; each case is a cluster of its own."""
    need("alertmanager", "prometheus-alertmanager")
    cases: dict[str, Timeline] = {}
    for row in OF_A_NODE:
        name = row.alert
        cases[f"{name} three nodes"] = one_after_the_other(
            *([page(row, f"{name} three nodes", node)] for node in range(3))
        )
        cases[f"{name} eight GPUs"] = one_after_the_other(
            [page(row, f"{name} eight GPUs", 0, gpu) for gpu in range(8)]
        )
        cases[f"{name} a fleet"] = one_after_the_other(
            [fleet_fault(f"{name} a fleet", row.fault)],
            [page(row, f"{name} a fleet", node) for node in range(300)],
            minutes=2,
        )
    return notified(cases)


@pytest.mark.integration
@pytest.mark.parametrize("row", OF_A_NODE, ids=lambda row: row.alert)
def test_each_broken_node_is_an_incident_of_its_own(
    told: dict[str, Notified], row: Threshold
) -> None:
    found = told[f"{row.alert} three nodes"]
    assert (len(found.keys), found.count("page")) == (3, 3)


@pytest.mark.integration
@pytest.mark.parametrize("row", OF_A_NODE, ids=lambda row: row.alert)
def test_what_breaks_in_one_node_is_one_incident(told: dict[str, Notified], row: Threshold) -> None:
    found = told[f"{row.alert} eight GPUs"]
    assert (len(found.keys), found.count("page")) == (1, 1)


@pytest.mark.integration
@pytest.mark.parametrize("row", OF_A_NODE, ids=lambda row: row.alert)
def test_one_event_of_a_fleet_is_one_incident(told: dict[str, Notified], row: Threshold) -> None:
    found = told[f"{row.alert} a fleet"]
    assert (len(found.keys), found.count("page")) == (1, 1)
    (alert,) = found.alerts["page"]
    assert dict(alert)["alertname"] == "FleetFault"


@pytest.mark.parametrize("row", OF_A_NODE, ids=lambda row: row.alert)
def test_what_pages_for_a_node_is_counted_over_the_fleet(row: Threshold) -> None:
    """Otherwise each node of a fleet would page; what speaks for all of them fires first."""
    assert row.fault
    assert f'"fault", "{row.fault}"' in NODE_FAULTS.expression
    assert waits(FLEET_FAULT) < waits(row)


@pytest.mark.parametrize("row", THRESHOLDS, ids=lambda row: row.alert)
def test_only_what_is_about_a_node_names_one(row: Threshold) -> None:
    """The route of nodes takes what has the label ``instance``."""
    assert ("instance" in row.identity) == (row.scope in OF_ONE_NODE)


@pytest.mark.integration
def test_the_dead_mans_switch_is_heard_again_and_again_and_by_nobody_else(tmp_path: Path) -> None:
    """Also while a fault of the whole fleet holds back everything else."""
    need("alertmanager", "prometheus-alertmanager")
    routes = yaml.safe_load(ALERTMANAGER.read_text())
    (switch,) = (one for one in routes["route"]["routes"] if one["receiver"] == "dead-mans-switch")
    assert seconds(switch["repeat_interval"]) <= 60
    switch |= {"group_interval": "200ms", "repeat_interval": "200ms"}
    heard: list[tuple[str, str]] = []

    def note(receiver: str, body: dict[str, Any]) -> None:
        heard.extend((receiver, one["labels"]["alertname"]) for one in body["alerts"])

    watchdog = {"alertname": "Watchdog", "cluster": "a", "severity": "none"}
    alerts = [{"labels": labels} for labels in (watchdog, dict(fleet_fault("a", "exporter")))]
    with alertmanager(tmp_path, routes, note) as address:
        deadline = time.monotonic() + 60
        while heard.count(("dead-mans-switch", "Watchdog")) < 3 and time.monotonic() < deadline:
            with suppress(OSError):
                urllib.request.urlopen(
                    urllib.request.Request(
                        f"http://{address}/api/v2/alerts",
                        json.dumps(alerts).encode(),
                        {"Content-Type": "application/json"},
                    )
                ).close()
            time.sleep(0.5)
    assert heard.count(("dead-mans-switch", "Watchdog")) >= 3
    assert {receiver for receiver, name in heard if name == "Watchdog"} == {"dead-mans-switch"}


def test_what_many_nodes_have_in_common_outlasts_what_each_of_them_has() -> None:
    """Otherwise the tickets of its nodes come after the repair, when nothing holds them back."""
    assert FLEET_FAULT.keep_firing_for
    for row in THRESHOLDS:
        if row.fault == "network" and row.keep_firing_for:
            assert seconds(row.keep_firing_for) < seconds(FLEET_FAULT.keep_firing_for)
