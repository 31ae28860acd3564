"""What sites write in values of exporters' charts (``intentions``), and where it ends up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from helm.generate import REFUSED
from tests.helm.test_chart import CHART, NEWEST, OLDEST, daemon_of, helm, render, the
from tests.needs import ROOT

pytestmark = pytest.mark.integration

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FILES = sorted((Path(__file__).parent / "intentions").glob("*.yaml"))

PLACES = {
    "template": "DaemonSet/spec/template/metadata",
    "pod": "DaemonSet/spec/template/spec",
    "daemon": "DaemonSet/spec/template/spec/containers/0",
    "monitor": "PodMonitor/spec",
    "endpoint": "PodMonitor/spec/podMetricsEndpoints/0",
}
"""Short names of places, at which a place may begin."""


@dataclass(frozen=True, slots=True)
class Intention:
    """What a site wants, and where it ends up: in an object, or refused."""

    source: str
    """Where somebody wrote it, or offers it."""

    theirs: Any = None
    """The values of the other chart, where this chart takes them by other names or not at all."""

    values: Any = None
    at: str = ""
    """The kind of an object and a place in it, as a JSON Pointer; -1 is the last of a list.
    https://www.rfc-editor.org/rfc/rfc6901"""

    expected: Any = None
    refused: str = ""
    """The value that the chart has not; ``REFUSED`` says why."""

    @property
    def place(self) -> tuple[str, ...]:
        """The kind of the object, and the steps to the value."""
        first, _, rest = self.at.partition("/")
        steps = f"{PLACES.get(first, first)}/{rest}".split("/")
        return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def read(path: Path) -> Iterator[Intention]:
    """The intentions in a file; one that names no source has that of the file."""
    content = yaml.safe_load(path.read_text())
    for each in content["intentions"]:
        given = {"source": content.get("source"), **each}
        if "is" in given:
            given["expected"] = given.pop("is")
        yield Intention(**given)


INTENTIONS = [one for path in FILES for one in read(path)]
EXPRESSED = [one for one in INTENTIONS if not one.refused]
ELSEWHERE = [one for one in INTENTIONS if one.theirs]


def test_there_are_as_many_as_promised_and_each_names_its_source() -> None:
    assert len(INTENTIONS) >= 55
    assert len(EXPRESSED) >= 50
    assert all(one.source.startswith("https://") for one in INTENTIONS)
    assert all(bool(one.refused) != bool(one.at) for one in INTENTIONS)


@pytest.mark.parametrize("one", EXPRESSED, ids=lambda one: one.at)
def test_what_a_site_writes_is_in_the_object(one: Intention, tmp_path: Path) -> None:
    monitor = {"enabled": True, **one.values.get("monitor", {})}
    slim = {"dashboards": {"enabled": False}, **one.values, "monitor": monitor}
    kind, *steps = one.place
    found: Any = the(render(tmp_path, slim), kind)
    for step in steps[:-1]:
        found = _step(found, step)
    assert _step(found, steps[-1]) == one.expected


def _step(found: Any, step: str) -> Any:
    """What is at a step; None where there is nothing of the name."""
    return found[int(step)] if isinstance(found, list) else found.get(step)


@pytest.mark.parametrize("one", ELSEWHERE, ids=lambda one: next(iter(one.theirs)))
def test_what_a_site_writes_for_another_chart_is_refused_with_what_to_write(
    one: Intention, tmp_path: Path
) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps(one.theirs))
    refused = helm("template", "gpunode", CHART, f"--values={tmp_path / 'values.yaml'}")
    assert refused.returncode != 0
    told = re.findall(r"(\S+) is not a value of this chart: (.+)", refused.stderr)
    assert told
    assert all(REFUSED[name] == why for name, why in told)
    assert not one.refused or one.refused in dict(told)


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_the_job_may_be_named_by_a_label_that_the_rules_select(kind: str, tmp_path: Path) -> None:
    team = {"team": "gpunode-a"}
    labels = {"podLabels": team, "service": {"labels": team}}
    monitor = {"enabled": True, "kind": kind, "jobLabel": "team"}
    made = the(render(tmp_path, {**labels, "monitor": monitor}), kind)["spec"]
    assert made["jobLabel"] == "team"
    (endpoint,) = made.get("endpoints") or made["podMetricsEndpoints"]
    assert "job" not in {one["targetLabel"] for one in endpoint["relabelings"]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"podLabels": {"team": "a"}}, 'the job "a"; the rules select jobs'),
        ({}, "no label team"),
        ({"service": {"labels": {"team": "a"}}}, "no label team"),
    ],
)
def test_a_job_that_the_rules_would_not_see_is_refused(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = {**values, "monitor": {"enabled": True, "jobLabel": "team"}}
    (tmp_path / "values.yaml").write_text(json.dumps(given))
    refused = helm("template", "gpunode", CHART, f"--values={tmp_path / 'values.yaml'}")
    assert refused.returncode != 0
    assert said in refused.stderr


def test_without_an_affinity_the_pods_run_where_a_gpu_is_marked(tmp_path: Path) -> None:
    pod, _ = daemon_of(render(tmp_path))
    terms = pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    keys = {expression["key"] for term in terms for expression in term["matchExpressions"]}
    assert {"nvidia.com/gpu.present", "cloud.google.com/gke-accelerator"} <= keys


def test_an_annotation_for_every_object_is_on_every_object(tmp_path: Path) -> None:
    parts = ("monitor", "rules", "networkPolicy", "alertmanagerExample", "verticalPodAutoscaler")
    values = {
        "commonAnnotations": {"owner": "ml"},
        "config": {"gpu": {"interval": 1}},
        "platform": "openshift",
        **{part: {"enabled": True} for part in parts},
    }
    objects = render(tmp_path, values)
    bare = {one["kind"] for one in objects if one["metadata"].get("annotations") is None}
    assert len({one["kind"] for one in objects}) >= 10
    assert not bare
    assert {one["metadata"]["annotations"]["owner"] for one in objects} == {"ml"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_other_charts_have_and_this_has_not_is_refused_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    value: Any = "x"
    for part in reversed(name.split(".")):
        value = {part: value}
    (tmp_path / "values.yaml").write_text(json.dumps(value))
    refused = helm("template", "gpunode", CHART, f"--values={tmp_path / 'values.yaml'}")
    assert refused.returncode != 0
    assert f"{name} is not a value of this chart: {REFUSED[name]}" in refused.stderr


def test_all_that_is_refused_is_named_at_once(tmp_path: Path) -> None:
    """As where a site takes its values of dcgm-exporter for this chart."""
    values = {
        "arguments": ["-f", "/etc/dcgm-exporter/custom.csv"],
        "serviceMonitor": {"enabled": True},
        "service": {"enable": True, "address": ":9400"},
        "extraEnv": [{"name": "DCGM_EXPORTER_LISTEN", "value": ":9400"}, {"name": "TZ"}],
    }
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    refused = helm("template", "gpunode", CHART, f"--values={tmp_path / 'values.yaml'}")
    assert refused.returncode != 0
    for name in ("arguments", "serviceMonitor", "service.enable", "service.address"):
        assert f"{name} is not a value of this chart: {REFUSED[name]}\n" in refused.stderr
    assert "extraEnv DCGM_EXPORTER_LISTEN: " in refused.stderr
    assert "extraEnv TZ" not in refused.stderr


def test_the_example_for_the_gpu_operator_wakes_nobody(tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "helm/examples/gpu-operator-values.yaml").read_text())
    objects = render(tmp_path, values)
    pod = the(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == "nvidia"
    daemon = next(one for one in pod["containers"] if one["name"] == "gpunode")
    assert "--compat=dcgm" in daemon["args"]
    rules = [one for one in objects if one["kind"] == "PrometheusRule"]
    for one in (the(objects, "PodMonitor"), *rules):
        assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    groups = (group for one in rules for group in one["spec"]["groups"])
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    told = [(rule["alert"], rule["labels"]["severity"]) for rule in alerts]
    assert {severity for _, severity in told} == {"page", "ticket", "info"}, "no route knows them"
    assert any(one["kind"] == "ConfigMap" for one in objects)


def test_a_proxy_may_stand_before_the_daemon(tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "helm/examples/kube-rbac-proxy-values.yaml").read_text())
    values["monitor"]["enabled"] = True
    objects = render(tmp_path, values)
    pod = the(objects, "DaemonSet")["spec"]["template"]["spec"]
    daemon, proxy = pod["containers"]
    assert daemon["args"][-1] == "--web.listen-address=127.0.0.1:9816"
    (port,) = proxy["ports"]
    assert f"--secure-listen-address=:{port['containerPort']}" in proxy["args"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert daemon[probe]["httpGet"]["port"] == port["name"]
    monitor = the(objects, "ServiceMonitor")["spec"]["endpoints"][0]
    (served,) = the(objects, "Service")["spec"]["ports"]
    assert (served["name"], served["targetPort"]) == (monitor["port"], port["name"])
    assert the(objects, "ClusterRoleBinding")["subjects"][0]["name"] == pod["serviceAccountName"]
    for version in (OLDEST, NEWEST):
        for one in render(tmp_path, values, f"--kube-version={version}"):
            if not one["apiVersion"].startswith("monitoring.coreos.com"):
                assert kubernetes_validate.validate(one, version, strict=True)
