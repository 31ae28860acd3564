"""What ``docs/serving.md`` says of the chart, and its example for an autoscaler."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import promql_parser
import pytest
import yaml

from dashboards.rules import labels_of
from gpunode.serving.requests import ServingEngines
from tests.dashboards.promtool import Found, promtool, with_labels
from tests.needs import ROOT

DOCUMENT = (ROOT / "docs/serving.md").read_text()
KEDA, ADAPTER, HPA = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL))
OLDEST, NEWEST = "1.25.0", "1.37.0"
MINUTES = 20
WAITING, CACHES = (4, 3, 4), (0.5, 0.95, 0.6)
"""Requests that wait at each of three replicas, and how full their caches are."""

QUEUE, FULL = sum(WAITING) / len(WAITING), 100 * max(CACHES)


def asked_by_keda() -> list[str]:
    return [trigger["metadata"]["query"] for trigger in KEDA["spec"]["triggers"]]


def asked_by_adapter() -> list[str]:
    """What prometheus-adapter asks for the example, as it replaces what is in its queries.

    https://github.com/kubernetes-sigs/prometheus-adapter/blob/master/docs/config.md
    """
    rules = {rule["name"]["as"]: rule for rule in ADAPTER["externalRules"]}
    queries = []
    for metric in HPA["spec"]["metrics"]:
        asked = metric["external"]["metric"]
        rule = rules[asked["name"]]
        ((label, of),) = rule["resources"]["overrides"].items()
        assert of == {"resource": "namespace"}
        matchers = {label: HPA["metadata"]["namespace"], **asked["selector"]["matchLabels"]}
        query = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        matched = ",".join(f'{name}="{value}"' for name, value in matchers.items())
        queries.append(query.replace("<<.LabelMatchers>>", matched))
    return queries


def service(namespace: str, deployment: str, instance: str) -> Iterator[tuple[str, str]]:
    """What exporters tell of three replicas of a Deployment."""
    for at, (waiting, cache) in enumerate(zip(WAITING, CACHES, strict=True)):
        gpu = {"cluster": "c", "instance": instance, "gpu": str(at), "uuid": f"{instance}-{at}"}
        pod = f"{deployment}-5d6f7c8b9d-x7k2{'bcd'[at]}"
        owner = {
            **dict.fromkeys(("owner_container", "slurm_job", "user"), ""),
            "owner_namespace": namespace,
            "owner_pod": pod,
            "workload": deployment,
            "replica": pod,
            "via": "kubelet",
        }
        told = {**gpu, "engine": "vllm", "model": deployment}
        yield with_labels("gpunode_gpu_owner_info", {**gpu, **owner}), f"1x{MINUTES}"
        for phase, many in (("running", 8), ("waiting", waiting)):
            requests = with_labels("gpunode_serving_requests_in_flight", {**told, "phase": phase})
            yield requests, f"{many}x{MINUTES}"
        yield with_labels("gpunode_serving_kv_cache_used_ratio", told), f"{cache}x{MINUTES}"


def test_the_profile_that_is_named_for_pods_is_the_first_with_the_privilege() -> None:
    """The chart's README has a row for each profile: its name, and what it may."""
    assert "SYS_ADMIN" in ServingEngines.needs
    readme = (ROOT / "helm/gpunode/README.md").read_text().partition("## Platforms")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", readme, re.MULTILINE)
    profile, adds = next((name, adds) for name, may, adds in rows if "SYS_ADMIN" in may)
    assert "gpunode_serving_requests_in_flight" in adds
    assert f"profile `{profile}`" in DOCUMENT
    kubernetes = (ROOT / "docs/kubernetes.md").read_text()
    for line in kubernetes.splitlines():
        if "inference engines" in line or "gpunode_serving_unanswered" in line:
            assert re.search(rf"profile[:=] ?{profile}\b", line), line
    assert "inference engines" in kubernetes


def test_an_autoscaler_gets_the_queue_and_the_cache_of_its_service(tmp_path: Path) -> None:
    """By the shipped rules in promtool; nothing of other services, or where there is none."""
    assert KEDA["spec"]["scaleTargetRef"]["name"] == "llama"
    others = [*service("chat", "qwen", "n-2"), *service("test", "llama", "n-3")]
    given = [
        *service("chat", "llama", "n-1"),
        *((one, f"99x{MINUTES}" if "requests" in one else values) for one, values in others),
    ]
    asks: dict[tuple[int, str], Found] = {}
    for queue, cache in (asked_by_keda(), asked_by_adapter()):
        asks[MINUTES - 2, queue] = [({}, QUEUE)]
        asks[MINUTES - 2, cache] = [({}, FULL)]
        for query in (queue, cache):
            asks[MINUTES - 2, query.replace("llama", "mistral")] = []
    told = promtool(tmp_path, given, asks, recorded=True)
    assert not told, told[:3000]


def test_keda_and_the_autoscaler_scale_alike() -> None:
    """Replicas times the figure over its threshold, of which the larger counts."""
    triggers = KEDA["spec"]["triggers"]
    thresholds = [float(trigger["metadata"]["threshold"]) for trigger in triggers]
    targets = [metric["external"]["target"] for metric in HPA["spec"]["metrics"]]
    assert [(each["type"], float(each["value"])) for each in targets] == [
        ("Value", threshold) for threshold in thresholds
    ]
    scaled = [
        math.ceil(3 * figure / of) for figure, of in zip((4.0, FULL), thresholds, strict=True)
    ]
    assert max(scaled) == 6
    spec, of_keda = HPA["spec"], KEDA["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (
        of_keda["minReplicaCount"],
        of_keda["maxReplicaCount"],
    )


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_autoscaler_is_one_that_kubernetes_takes(version: str) -> None:
    assert kubernetes_validate.validate(HPA, version, strict=True)


def test_the_adapter_makes_metrics_of_series_that_are_recorded() -> None:
    for rule in ADAPTER["externalRules"]:
        promql_parser.parse(rule["seriesQuery"])
        name, _, matchers = rule["seriesQuery"].partition("{")
        asked = {*re.findall(r"(\w+)!=", matchers), *rule["resources"]["overrides"]}
        assert asked <= labels_of(name)
        assert re.fullmatch("[a-z_]+", rule["name"]["as"]), "a path of the API, without a colon"


def test_the_example_for_keda_asks_for_series_that_are_recorded() -> None:
    triggers = KEDA["spec"]["triggers"]
    assert len(triggers) == 2
    for trigger in triggers:
        # By default, KEDA divides by the replicas: https://keda.sh/docs/latest/reference/scaledobject-spec/#triggers
        assert trigger["metricType"] == "Value"
        query, threshold = trigger["metadata"]["query"], trigger["metadata"]["threshold"]
        promql_parser.parse(query)
        assert float(threshold) > 0
        ((name, labels),) = re.findall(r"(job:[\w:]+)\{([^}]*)\}", query)
        asked = set(re.findall(r"(\w+)=", labels))
        assert asked <= labels_of(name)
