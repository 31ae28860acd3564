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

from tests.alerts.scenarios.play import ALERTMANAGER, Alert, Notified, Timeline, notified
from tests.needs import need
from tests.prometheus.programs import alertmanager

OF_A_NODE = {"GpuUnhealthy": "gpu", "GpunodeDown": "exporter"}
"""Alerts that can wake somebody for one node and are FleetFault's for many, and their part."""


def page(alert: str, cluster: str, **labels: str) -> Alert:
    """A page of an alert."""
    known = {"alertname": alert, "group": "node", "severity": "page", "cluster": cluster}
    return frozenset({**known, **labels}.items())


def of_node(alert: str, cluster: str, node: int, gpu: int = 0) -> Alert:
    """A page about a node, or about one of its GPUs."""
    own = {"gpu": str(gpu), "uuid": f"GPU-{node}-{gpu}"} if alert == "GpuUnhealthy" else {}
    return page(alert, cluster, instance=f"n-{node}", part=OF_A_NODE[alert], **own)


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
    for name, part in OF_A_NODE.items():
        cases[f"{name} three nodes"] = one_after_the_other(
            *([of_node(name, f"{name} three nodes", node)] for node in range(3))
        )
        cases[f"{name} eight GPUs"] = one_after_the_other(
            [of_node(name, f"{name} eight GPUs", 0, gpu) for gpu in range(8)]
        )
        cases[f"{name} a fleet"] = one_after_the_other(
            [page("FleetFault", f"{name} a fleet", part=part)],
            [of_node(name, f"{name} a fleet", node) for node in range(300)],
            minutes=2,
        )
    cases["others"] = one_after_the_other(
        [page("FleetFault", "others", part="network")],
        [of_node("GpuUnhealthy", "others", 0), page("JobStalled", "others", workload="a")],
        minutes=2,
    )
    return notified(cases, ALERTMANAGER)


@pytest.mark.integration
@pytest.mark.parametrize("alert", OF_A_NODE)
def test_each_broken_node_is_an_incident_of_its_own(told: dict[str, Notified], alert: str) -> None:
    found = told[f"{alert} three nodes"]
    assert (len(found.keys), found.count("page")) == (3, 3)


@pytest.mark.integration
@pytest.mark.parametrize("alert", OF_A_NODE)
def test_what_breaks_in_one_node_is_one_incident(told: dict[str, Notified], alert: str) -> None:
    found = told[f"{alert} eight GPUs"]
    assert (len(found.keys), found.count("page")) == (1, 1)


@pytest.mark.integration
@pytest.mark.parametrize("alert", OF_A_NODE)
def test_one_event_of_a_fleet_is_one_incident(told: dict[str, Notified], alert: str) -> None:
    found = told[f"{alert} a fleet"]
    assert (len(found.keys), found.count("page")) == (1, 1)
    (one,) = found.alerts["page"]
    assert dict(one)["alertname"] == "FleetFault"


@pytest.mark.integration
def test_what_a_fleet_has_in_common_holds_back_nothing_else(told: dict[str, Notified]) -> None:
    names = {dict(one)["alertname"] for one in told["others"].alerts["page"]}
    assert names == {"FleetFault", "GpuUnhealthy", "JobStalled"}


@pytest.mark.integration
def test_the_dead_mans_switch_is_heard_again_and_again_and_by_nobody_else(tmp_path: Path) -> None:
    """Also while a fault of the whole fleet holds back everything else."""
    need("alertmanager", "prometheus-alertmanager")
    routes = yaml.safe_load(ALERTMANAGER.read_text())
    (switch,) = (one for one in routes["route"]["routes"] if one["receiver"] == "dead-mans-switch")
    assert switch["repeat_interval"] == "1m"
    switch |= {"group_interval": "200ms", "repeat_interval": "200ms"}
    heard: list[tuple[str, str]] = []

    def note(receiver: str, body: dict[str, Any]) -> None:
        heard.extend((receiver, one["labels"]["alertname"]) for one in body["alerts"])

    watchdog = {"alertname": "Watchdog", "cluster": "a", "severity": "none"}
    alerts = [{"labels": one} for one in (watchdog, dict(page("FleetFault", "a", part="exporter")))]
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
