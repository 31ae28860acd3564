"""What sites write in values of exporters' charts, and where it ends up in the objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from helm.generate import REFUSED
from tests.helm.test_chart import CHART, NEWEST, OLDEST, daemon_of, helm, render, the
from tests.needs import ROOT

POD = ("DaemonSet", "spec", "template", "spec")
META = ("DaemonSet", "spec", "template", "metadata")
DAEMON = (*POD, "containers", 0)
MONITOR = ("PodMonitor", "spec")
ENDPOINT = (*MONITOR, "podMetricsEndpoints", 0)
SIDE = {"name": "side", "image": "side:1"}
SETTINGS = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-more"}}
KEEP = {"sourceLabels": ["a"], "action": "keep"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

INTENTIONS: list[tuple[dict[str, Any], tuple[str | int, ...], Any]] = [
    # The image
    ({"image": {"repository": "r.io/g", "tag": "1"}}, (*DAEMON, "image"), "r.io/g:1"),
    ({"image": {"pullPolicy": "Always"}}, (*DAEMON, "imagePullPolicy"), "Always"),
    ({"imagePullSecrets": [{"name": "a"}]}, (*POD, "imagePullSecrets"), [{"name": "a"}]),
    (
        {"global": {"imageRegistry": "r.io/m"}, "image": {"tag": "1"}},
        (*DAEMON, "image"),
        "r.io/m/gpunode/gpunode:1",
    ),
    (
        {"global": {"imagePullSecrets": [{"name": "a"}]}},
        (*POD, "imagePullSecrets"),
        [{"name": "a"}],
    ),
    (
        {"global": {"imagePullSecrets": ["a"]}, "imagePullSecrets": [{"name": "b"}]},
        (*POD, "imagePullSecrets"),
        [{"name": "b"}, {"name": "a"}],
    ),
    # Names, labels and annotations
    ({"fullnameOverride": "gpus"}, ("DaemonSet", "metadata", "name"), "gpus"),
    ({"namespaceOverride": "gpus"}, ("DaemonSet", "metadata", "namespace"), "gpus"),
    ({"commonLabels": {"team": "a"}}, ("ServiceAccount", "metadata", "labels", "team"), "a"),
    ({"commonAnnotations": {"a": "b"}}, ("Service", "metadata", "annotations"), {"a": "b"}),
    ({"daemonSetAnnotations": {"a": "b"}}, ("DaemonSet", "metadata", "annotations"), {"a": "b"}),
    ({"podAnnotations": {"a": "b"}}, (*META, "annotations", "a"), "b"),
    ({"podLabels": {"a": "b"}}, (*META, "labels", "a"), "b"),
    # The daemon and what is beside it
    ({"extraEnv": [{"name": "A", "value": "b"}]}, (*DAEMON, "env", -1, "value"), "b"),
    (
        {"envFrom": [{"secretRef": {"name": "a"}}]},
        (*DAEMON, "envFrom", 0, "secretRef", "name"),
        "a",
    ),
    ({"extraArgs": ["--log.level=debug"]}, (*DAEMON, "args", -1), "--log.level=debug"),
    ({"resources": {"limits": {"cpu": "1"}}}, (*DAEMON, "resources", "limits", "cpu"), "1"),
    ({"resources": {"limits": None}}, (*DAEMON, "resources", "limits"), None),
    ({"livenessProbe": {"periodSeconds": 7}}, (*DAEMON, "livenessProbe", "periodSeconds"), 7),
    ({"securityContext": {"runAsGroup": 4}}, (*DAEMON, "securityContext", "runAsGroup"), 4),
    ({"extraContainers": [SIDE]}, (*POD, "containers", 1), SIDE),
    ({"initContainers": [SIDE]}, (*POD, "initContainers", 0), SIDE),
    ({"extraVolumes": [{"name": "a", "emptyDir": {}}]}, (*POD, "volumes", -1, "name"), "a"),
    ({"extraManifests": [SETTINGS]}, ("Secret", "metadata", "name"), "gpunode-more"),
    # The pod and its network
    ({"podSecurityContext": {"fsGroup": 4}}, (*POD, "securityContext", "fsGroup"), 4),
    ({"runtimeClassName": "nvidia"}, (*POD, "runtimeClassName"), "nvidia"),
    ({"dnsConfig": {"searches": ["a"]}}, (*POD, "dnsConfig"), {"searches": ["a"]}),
    ({"dnsPolicy": "Default"}, (*POD, "dnsPolicy"), "Default"),
    ({"hostAliases": [{"ip": "10.0.0.1"}]}, (*POD, "hostAliases", 0, "ip"), "10.0.0.1"),
    ({"hostNetwork": True}, (*POD, "hostNetwork"), True),
    ({"hostNetwork": True}, (*POD, "dnsPolicy"), "ClusterFirstWithHostNet"),
    ({"hostPort": 9816}, (*DAEMON, "ports", 0, "hostPort"), 9816),
    ({"serviceAccount": {"name": "a"}}, (*POD, "serviceAccountName"), "a"),
    (
        {"serviceAccount": {"annotations": {"a": "b"}}},
        ("ServiceAccount", "metadata", "annotations"),
        {"a": "b"},
    ),
    # Where and when it runs
    ({"nodeSelector": {"a": "b"}}, (*POD, "nodeSelector"), {"a": "b"}),
    ({"affinity": {}}, (*POD, "affinity"), None),
    ({"affinity": {"podAffinity": {}}}, (*POD, "affinity"), {"podAffinity": {}}),
    ({"tolerations": []}, (*POD, "tolerations"), None),
    ({"priorityClassName": "a"}, (*POD, "priorityClassName"), "a"),
    ({"schedulerName": "a"}, (*POD, "schedulerName"), "a"),
    ({"terminationGracePeriodSeconds": 5}, (*POD, "terminationGracePeriodSeconds"), 5),
    (
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 100}}},
        ("DaemonSet", "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"),
        100,
    ),
    ({"revisionHistoryLimit": 0}, ("DaemonSet", "spec", "revisionHistoryLimit"), 0),
    ({"minReadySeconds": 5}, ("DaemonSet", "spec", "minReadySeconds"), 5),
    (
        {"verticalPodAutoscaler": {"enabled": True, "maxAllowed": {"memory": "1Gi"}}},
        ("VerticalPodAutoscaler", "spec", "resourcePolicy", "containerPolicies", 0, "maxAllowed"),
        {"memory": "1Gi"},
    ),
    # The Service
    ({}, ("Service", "spec", "clusterIP"), "None"),
    ({"service": {"type": "NodePort"}}, ("Service", "spec", "type"), "NodePort"),
    ({"service": {"type": "NodePort"}}, ("Service", "spec", "clusterIP"), None),
    ({"service": {"labels": {"a": "b"}}}, ("Service", "metadata", "labels", "a"), "b"),
    ({"service": {"annotations": {"a": "b"}}}, ("Service", "metadata", "annotations", "a"), "b"),
    (
        {"service": {"internalTrafficPolicy": "Local"}},
        ("Service", "spec", "internalTrafficPolicy"),
        "Local",
    ),
    # The scrape
    ({"monitor": {"interval": ""}}, (*ENDPOINT, "interval"), None),
    ({"monitor": {"labels": {"a": "b"}}}, ("PodMonitor", "metadata", "labels", "a"), "b"),
    ({"monitor": {"relabelings": [KEEP]}}, (*ENDPOINT, "relabelings", -1), KEEP),
    ({"monitor": {"metricRelabelings": [KEEP]}}, (*ENDPOINT, "metricRelabelings"), [KEEP]),
    ({"monitor": {"sampleLimit": 9000}}, (*MONITOR, "sampleLimit"), 9000),
    ({"monitor": {"tlsConfig": {"serverName": "a"}}}, (*ENDPOINT, "tlsConfig", "serverName"), "a"),
    (
        {"monitor": {"authorization": {"credentials": {"name": "a", "key": "b"}}}},
        (*ENDPOINT, "authorization", "credentials", "name"),
        "a",
    ),
    ({"monitor": {"proxyUrl": "http://p"}}, (*ENDPOINT, "proxyUrl"), "http://p"),
    ({"monitor": {"scrapeClass": "a"}}, (*MONITOR, "scrapeClass"), "a"),
    ({"monitor": {"podTargetLabels": ["a"]}}, (*MONITOR, "podTargetLabels"), ["a"]),
    ({"monitor": {"labelLimit": 30}}, (*MONITOR, "labelLimit"), 30),
    ({"monitor": {"port": "https"}}, (*ENDPOINT, "port"), "https"),
    ({"monitor": {"endpoint": {"honorTimestamps": False}}}, (*ENDPOINT, "honorTimestamps"), False),
    ({"monitor": {"spec": {"targetLimit": 9}}}, (*MONITOR, "targetLimit"), 9),
]


@pytest.mark.parametrize(("values", "path", "expected"), INTENTIONS)
def test_what_a_site_writes_is_in_the_object(
    values: dict[str, Any], path: tuple[str | int, ...], expected: Any, tmp_path: Path
) -> None:
    monitor = {"enabled": True, **values.get("monitor", {})}
    slim = {"dashboards": {"enabled": False}, **values, "monitor": monitor}
    kind, *steps = path
    found: Any = the(render(tmp_path, slim), str(kind))
    for step in steps[:-1]:
        found = found[step]
    last = steps[-1]
    assert (found[last] if isinstance(last, int) else found.get(last)) == expected


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
    value: Any = {"enabled": True}
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
    assert {rule["labels"]["severity"] for rule in alerts} <= {"warning", "info", "none"}
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
