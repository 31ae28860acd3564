"""Which alerts a real Alertmanager with the shipped routes tells together, and which instead."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.explain import rule_files
from tests.conftest import until
from tests.needs import ROOT, need
from tests.prometheus.programs import alertmanager

ROUTES = yaml.safe_load((ROOT / "alerts/alertmanager.yaml").read_text())
Labels = dict[str, str]

JOB = {"owner_namespace": "research", "workload": "llama", "replica": "", "user": ""}
GPU = {"instance": "n-1", "gpu": "0", "uuid": "GPU-1", "part": "gpu"}
EXPORTER = {"instance": "n-1", "part": "exporter"}
SCRATCH = {"name": "scratch", "part": "filesystem"}

SPOKEN_FOR: dict[str, tuple[tuple[str, str, Labels], tuple[str, str, Labels], bool]] = {
    "a page and its ticket": (
        ("GpuUnhealthy", "page", GPU),
        ("GpuUnhealthy", "ticket", GPU),
        True,
    ),
    "a page and a ticket of another GPU": (
        ("GpuUnhealthy", "page", GPU),
        ("GpuUnhealthy", "ticket", {**GPU, "gpu": "1", "uuid": "GPU-2"}),
        False,
    ),
    "a fleet and one of its GPUs": (
        ("FleetFault", "page", {"part": "gpu"}),
        ("GpuUnhealthy", "page", GPU),
        True,
    ),
    "a fleet and another part": (
        ("FleetFault", "page", {"part": "network"}),
        ("GpuUnhealthy", "page", GPU),
        False,
    ),
    "a fleet and a job": (
        ("FleetFault", "page", {"part": "gpu"}),
        ("JobStalled", "page", JOB),
        False,
    ),
    "a fleet that is dark and a node": (
        ("FleetFault", "page", {"part": "exporter"}),
        ("GpunodeDown", "page", EXPORTER),
        True,
    ),
    "a server of files and its clients": (
        ("StorageDown", "page", SCRATCH),
        ("NodeFilesystemFailing", "page", {**SCRATCH, "instance": "n-1", "reason": "unanswering"}),
        True,
    ),
    "a server of files that is down, and slow": (
        ("StorageDown", "page", SCRATCH),
        ("StorageSlow", "ticket", SCRATCH),
        True,
    ),
    "two servers of files": (
        ("StorageDown", "page", SCRATCH),
        ("StorageSlow", "ticket", {**SCRATCH, "name": "home"}),
        False,
    ),
    "a node that is down and its GPU": (
        ("GpunodeDown", "page", EXPORTER),
        ("GpuUnhealthy", "page", GPU),
        True,
    ),
    "a node that is down and another": (
        ("GpunodeDown", "page", EXPORTER),
        ("GpuUnhealthy", "page", {**GPU, "instance": "n-2"}),
        False,
    ),
    "a node that is down and a job": (
        ("GpunodeDown", "page", EXPORTER),
        ("JobStalled", "page", JOB),
        False,
    ),
    "a stall and what else is wrong with the job": (
        ("JobStalled", "page", JOB),
        ("JobSlowed", "ticket", JOB),
        True,
    ),
    "a stall and another page of the job": (
        ("JobStalled", "page", JOB),
        ("JobCrashLoops", "page", JOB),
        False,
    ),
    "a stall and another job": (
        ("JobStalled", "page", JOB),
        ("JobSlowed", "ticket", {**JOB, "workload": "gemma"}),
        False,
    ),
    "an idle job and its slow steps": (
        ("JobIdle", "page", JOB),
        ("JobStarved", "ticket", JOB),
        True,
    ),
    "a job without data and its slow steps": (
        ("JobStarved", "ticket", JOB),
        ("JobSlowed", "ticket", JOB),
        True,
    ),
    "a port that is down and its errors": (
        ("NetworkPortDown", "ticket", {"instance": "n-1", "part": "network", "name": "ib0"}),
        ("RdmaErrors", "ticket", {"instance": "n-1", "part": "network", "device": "mlx5_0"}),
        True,
    ),
    "a GPU that heat slows, and heat": (
        ("GpuThrottled", "ticket", {**GPU, "part": "thermal"}),
        ("GpuHot", "ticket", {**GPU, "part": "", "sensor": "GPU"}),
        True,
    ),
    "a service and one of its replicas": (
        ("ServingStopped", "page", {"owner_namespace": "research", "workload": "llama"}),
        ("JobCrashLoops", "page", {**JOB, "replica": "a"}),
        True,
    ),
    "alerts of others": (("FleetFault", "page", {"part": ""}), ("Theirs", "page", EXPORTER), False),
}
"""Two alerts, and whether the first speaks for the second."""


def labelled(cluster: str, alert: tuple[str, str, Labels]) -> Labels:
    name, severity, labels = alert
    group = {} if name == "Theirs" else {"group": "any"}
    own = {key: value for key, value in labels.items() if value}
    return {"alertname": name, "severity": severity, "cluster": cluster, **group, **own}


def post(address: str, alerts: Iterable[Labels]) -> None:
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    form = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(f"http://{address}/api/v2/alerts", body, form)
    ).close()


def answer(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/api/v2/{path}") as found:
        return json.load(found)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Alertmanager with the shipped routes, to which nothing was posted yet."""
    need("alertmanager", "prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("alertmanager")
    with alertmanager(folder, ROUTES, lambda *_: None) as address:

        def ready() -> bool:
            with suppress(OSError):
                return bool(answer(address, "status"))
            return False

        until(ready)
        yield address


def test_one_event_is_told_once(manager: str) -> None:
    both = {
        name: (labelled(name, first), labelled(name, second))
        for name, (first, second, _) in SPOKEN_FOR.items()
    }
    post(manager, (labels for pair in both.values() for labels in pair))
    wanted = {name for name, (_, _, quiet) in SPOKEN_FOR.items() if quiet}

    def quiet(of: int) -> set[str]:
        found = answer(manager, "alerts")
        states = {json.dumps(one["labels"], sort_keys=True): one["status"] for one in found}
        return {
            name
            for name, pair in both.items()
            if states[json.dumps(pair[of], sort_keys=True)]["inhibitedBy"]
        }

    until(lambda: len(answer(manager, "alerts")) == 2 * len(both))
    assert quiet(1) == wanted
    assert quiet(0) == set(), "what speaks is told itself"


def test_each_broken_node_is_an_incident_of_its_own_and_its_parts_are_one(manager: str) -> None:
    pages = [rule for rule in rule_files.read_rules() if rule.alerts and rule.severity == "page"]
    nodes = [
        rule.name for rule in pages if "by (cluster, instance" in rule.expression.split(">")[0]
    ]
    assert {"GpuUnhealthy", "NodeFilesystemFailing"} <= {*nodes}
    of = "grouping"
    post(
        manager,
        (
            labelled(of, (name, "page", {**GPU, "instance": f"n-{node}", "gpu": str(gpu)}))
            for name in nodes
            for node in range(3)
            for gpu in range(8)
        ),
    )

    def groups() -> list[Any]:
        found = answer(manager, "alerts/groups")
        return [one for one in found if one["labels"].get("cluster") == of]

    until(lambda: sum(len(one["alerts"]) for one in groups()) == len(nodes) * 24)
    assert sorted((one["labels"]["alertname"], one["labels"]["instance"]) for one in groups()) == (
        sorted((name, f"n-{node}") for name in nodes for node in range(3))
    )
    assert {one["receiver"]["name"] for one in groups()} == {"pager"}


def test_each_alert_goes_to_whom_it_concerns(manager: str) -> None:
    alerts = {(rule.name, rule.severity): rule for rule in rule_files.read_rules() if rule.alerts}
    of = "receivers"
    post(
        manager,
        (
            {
                "alertname": rule.name,
                "cluster": of,
                **{name: value for name, value in rule.labels.items() if name != "group"},
            }
            for rule in alerts.values()
        ),
    )

    def told() -> dict[tuple[str, str], str]:
        return {
            (one["labels"]["alertname"], one["labels"]["severity"]): one["receivers"][0]["name"]
            for one in answer(manager, "alerts")
            if one["labels"].get("cluster") == of
        }

    found = until(lambda: told() if len(told()) == len(alerts) else None)
    owners = {name for name, rule in alerts.items() if rule.labels.get("route") == "job_owner"}
    to = {"page": "pager", "ticket": "tickets", "info": "review"}
    for (name, severity), receiver in found.items():
        own = (name, severity) in owners and severity != "info"
        assert receiver == f"{'owner-' if own else ''}{to[severity]}", name


def test_every_label_by_which_a_page_and_its_ticket_differ_is_compared() -> None:
    """Otherwise the page about one thing would hide the ticket about another."""
    (first, *_) = ROUTES["inhibit_rules"]
    alerts = [rule for rule in rule_files.read_rules() if rule.alerts]
    both = [
        rule
        for rule in alerts
        if {one.severity for one in alerts if one.name == rule.name} >= {"page", "ticket"}
    ]
    assert len(both) > 10
    for rule in both:
        left = rule.expression.split(")")[0]
        by = left.partition("by (")[2].split(", ") if "by (" in left else []
        assert {*by} <= {*first["equal"]}, rule.name


def test_the_dead_mans_switch_is_heard_again_and_again_and_by_nobody_else(tmp_path: Path) -> None:
    """Also while a fault of the whole fleet holds back everything else."""
    need("alertmanager", "prometheus-alertmanager")
    routes = yaml.safe_load((ROOT / "alerts/alertmanager.yaml").read_text())
    (switch,) = (one for one in routes["route"]["routes"] if one["receiver"] == "dead-mans-switch")
    assert switch["repeat_interval"] == "1m"
    switch |= {"group_interval": "200ms", "repeat_interval": "200ms"}
    heard: list[tuple[str, str]] = []

    def note(receiver: str, body: dict[str, Any]) -> None:
        heard.extend((receiver, one["labels"]["alertname"]) for one in body["alerts"])

    watchdog = {"alertname": "Watchdog", "cluster": "a", "severity": "none"}
    fleet = labelled("a", ("FleetFault", "page", {"part": "exporter"}))
    with alertmanager(tmp_path, routes, note) as address:
        deadline = time.monotonic() + 60
        while heard.count(("dead-mans-switch", "Watchdog")) < 3 and time.monotonic() < deadline:
            with suppress(OSError):
                post(address, [watchdog, fleet])
            time.sleep(0.5)
    assert heard.count(("dead-mans-switch", "Watchdog")) >= 3
    assert {receiver for receiver, name in heard if name == "Watchdog"} == {"dead-mans-switch"}
