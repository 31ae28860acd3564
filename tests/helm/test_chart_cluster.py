"""The Helm chart on a real API server, with the controllers that make its pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.document import RULES
from helm.generate import CHART
from tests.conftest import until
from tests.helm.cluster import CRDS, Cluster, control_plane
from tests.helm.test_chart import CI, OPERATOR, RELEASED, render
from tests.helm.test_intentions import EXPRESSED

EXAMPLES = CHART.parent / "examples"
FILES = len([*RULES.glob("*.yaml")])
"""PrometheusRules of a release."""

GPU_NODES, OTHER_NODES = 50, 5
LEVELS = ("restricted", "baseline", "privileged")
NEEDED = {
    "restricted": "restricted",
    **dict.fromkeys(("node", "pods", "jobs", "network"), "privileged"),
}
"""The level of Pod Security that each profile needs of its namespace."""

MARKS = (
    {"nvidia.com/gpu.present": "true"},
    {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
    {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
    {"eks.amazonaws.com/instance-gpu-manufacturer": "nvidia"},
)
"""Labels of GPU nodes, as operators and clouds set them."""

SINCE_POLICIES = (1, 36)
INVENTED = re.compile(r" (Pod|ControllerRevision|Secret) ")
"""Kinds of which controllers and Helm invent the names."""

pytestmark = pytest.mark.integration


def node(name: str, labels: dict[str, str], cordoned: bool = False) -> dict[str, Any]:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint], "unschedulable": cordoned},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with nodes that have GPUs, one of them cordoned, and nodes that do not."""
    with control_plane(tmp_path_factory.mktemp("cluster")) as running:
        nodes = [node(f"gpu-{i}", MARKS[i % len(MARKS)], cordoned=not i) for i in range(GPU_NODES)]
        nodes += [node(f"cpu-{i}", {"nvidia.com/gpu.present": "false"}) for i in range(OTHER_NODES)]
        running.kubectl("create", "-f-", given=nodes)
        yield running


def helm(cluster: Cluster, *arguments: str) -> str:
    ran = cluster.run("helm", *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def everything(cluster: Cluster) -> set[str]:
    """Every object that the API server has, of whatever kind and wherever it is, but events."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    asked = ",".join(kind for kind in kinds if not kind.startswith("events"))
    columns = "--output=custom-columns=:metadata.namespace,:kind,:metadata.name"
    listed = cluster.kubectl("get", asked, "--all-namespaces", "--no-headers", columns)
    return {" ".join(line.split()) for line in listed.splitlines()}


def exists(cluster: Cluster, *arguments: str) -> bool:
    return cluster.run("kubectl", "get", *arguments).returncode == 0


def settled(cluster: Cluster, *namespaces: str) -> set[str]:
    """Everything that there is, with what Kubernetes itself puts into namespaces."""
    for namespace in namespaces:
        created = ("serviceaccount/default", f"--namespace={namespace}")
        until(partial(exists, cluster, *created))
    return everything(cluster)


def left_behind(cluster: Cluster, before: set[str], namespace: str) -> set[str]:
    """Uninstall a release; what is there afterwards and was not before."""
    helm(cluster, "uninstall", "gpunode", f"--namespace={namespace}", "--wait")
    until(lambda: not everything(cluster) - before)
    return everything(cluster) - before


def holds(stored: Any, sent: Any) -> bool:
    """Whether all that was sent is stored: a server adds defaults, and may drop what is unknown."""
    if isinstance(sent, dict):
        return isinstance(stored, dict) and all(
            key in stored and holds(stored[key], value) for key, value in sent.items()
        )
    if isinstance(sent, list):
        return len(stored or ()) == len(sent) and all(map(holds, stored, sent))
    return bool(stored == sent)


def test_every_gpu_node_has_a_pod_until_it_is_uninstalled(cluster: Cluster) -> None:
    namespace = cluster.namespace("gpus", "privileged")
    before = settled(cluster, namespace)
    told = helm(cluster, "install", "gpunode", str(CHART), f"--namespace={namespace}")
    assert "kubectl -n gpus rollout status daemonset/gpunode" in told
    assert "by a PodMonitor" in told, "the operator's CRDs are there"

    def pods() -> list[dict[str, Any]]:
        return list(cluster.get("pods", f"--namespace={namespace}")["items"])

    until(lambda: len(pods()) == GPU_NODES)
    terms = [
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for pod in pods()
    ]
    placed = {term["nodeSelectorTerms"][0]["matchFields"][0]["values"][0] for term in terms}
    assert placed == {f"gpu-{i}" for i in range(GPU_NODES)}, "also the one that is cordoned"
    for one in pods():
        asked = [container["resources"] for container in one["spec"]["containers"]]
        assert "nvidia.com/gpu" not in json.dumps(asked)
    assert not left_behind(cluster, before, namespace)


def test_all_that_it_can_make_is_gone_once_it_is_uninstalled(
    cluster: Cluster, tmp_path: Path
) -> None:
    namespace, other = (cluster.namespace(name, "privileged") for name in ("all", "elsewhere"))
    of_the_platform = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **of_the_platform}
    cluster.kubectl("create", "-f-", given=[runtime])
    before = settled(cluster, namespace, other)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "more"}}
    parts = ("monitor", "rules", "networkPolicy", "alertmanagerExample")
    values = {
        **{part: {"enabled": True} for part in parts},
        "dashboards": {"namespace": other},
        "config": {"gpu": {"interval": 1}},
        "platform": "openshift",
        "extraManifests": [secret],
    }
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    given = (f"--namespace={namespace}", f"--values={tmp_path / 'values.yaml'}")
    helm(cluster, "install", "gpunode", str(CHART), *given)
    kinds = {
        *("DaemonSet", "ControllerRevision", "Pod", "Service", "ServiceAccount", "NetworkPolicy"),
        *("ConfigMap", "Secret", "RoleBinding", "PodMonitor", "PrometheusRule"),
    }
    until(lambda: kinds <= {one.split()[1] for one in everything(cluster) - before})
    assert not left_behind(cluster, before, namespace)


@pytest.mark.parametrize("profile", NEEDED)
def test_a_profile_is_admitted_from_the_level_on_that_it_names(
    cluster: Cluster, profile: str
) -> None:
    for level in LEVELS:
        namespace = cluster.namespace(f"{profile}-{level}", level)
        only = f"--set=profile={profile},dashboards.enabled=false,rules.enabled=false"
        helm(cluster, "install", "gpunode", str(CHART), f"--namespace={namespace}", only)

        def status(of: str = namespace) -> dict[str, Any]:
            return dict(cluster.get("daemonset/gpunode", f"--namespace={of}")["status"])

        def refusals(of: str = namespace) -> str:
            events = cluster.get("events", f"--namespace={of}")["items"]
            return " ".join(one["message"] for one in events if one["reason"] == "FailedCreate")

        if LEVELS.index(level) >= LEVELS.index(NEEDED[profile]):
            until(lambda: status().get("currentNumberScheduled") == GPU_NODES)
        else:
            assert f'violates PodSecurity "{level}:latest"' in until(refusals)
            assert status()["currentNumberScheduled"] == 0
        helm(cluster, "uninstall", "gpunode", f"--namespace={namespace}")


@pytest.mark.parametrize("values", CI, ids=lambda path: path.stem)
def test_the_api_server_knows_every_field(cluster: Cluster, values: Path) -> None:
    options = (
        f"--kube-version={'.'.join(map(str, cluster.version()))}.0",
        f"--values={values}",
        "--set=dashboards.grafanaOperator=false",
        *(f"--api-versions={api}" for api in OPERATOR),
    )
    made = yaml.safe_load_all(helm(cluster, "template", "gpunode", str(CHART), *options))
    own = [one for one in made if one]
    for one in own:
        one["metadata"]["namespace"] = "default"
    check = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f-")
    assert cluster.kubectl(*check, given=own).count("serverside-applied") == len(own)


def test_the_api_server_would_tell_of_a_field_that_is_wrong(cluster: Cluster) -> None:
    options = ("--set=monitor.enabled=true", "--show-only=templates/monitor.yaml")
    (monitor,) = yaml.safe_load_all(helm(cluster, "template", "gpunode", str(CHART), *options))
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    ran = cluster.run(
        "kubectl",
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f-",
        given=[monitor],
    )
    assert "intervall" in ran.stderr


# What the Prometheus Operator reads, by its own definitions


MONITORS: dict[str, Any] = {
    key: value
    for one in EXPRESSED
    if one.place[0] == "PodMonitor"
    for key, value in one.values["monitor"].items()
    if value
}
"""Everything that sites set of a monitor."""


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_what_the_operator_reads_is_stored_whole(
    cluster: Cluster, kind: str, tmp_path: Path
) -> None:
    assert len(MONITORS) > 8
    namespace = cluster.namespace(kind.lower(), "privileged")
    monitor = {**MONITORS, "enabled": True, "kind": kind}
    port = {"name": monitor["port"], "containerPort": 9817}
    values = {
        "monitor": monitor,
        "extraContainers": [{"name": "proxy", "image": "a", "ports": [port]}],
        "rules": {"enabled": True},
        "namespaceOverride": namespace,
    }
    objects = [
        one
        for one in render(tmp_path, {**values, "dashboards": {"enabled": False}})
        if one["apiVersion"] == "monitoring.coreos.com/v1"
    ]
    assert sorted(one["kind"] for one in objects) == sorted([kind, *FILES * ["PrometheusRule"]])
    for _ in range(2):  # as Argo CD does, which keeps each object in an annotation
        applied = cluster.kubectl("apply", "--validate=strict", "-f-", given=objects)
    assert applied.count(" unchanged") == len(objects)
    for one in objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        assert holds(cluster.get(name, f"--namespace={namespace}")["spec"], one["spec"]), name
    cluster.kubectl("delete", "-f-", given=objects)


def test_a_field_that_was_dropped_would_be_missed() -> None:
    sent = {"endpoints": [{"port": "metrics", "interval": "15s"}]}
    assert holds({"endpoints": [{"port": "metrics", "interval": "15s", "added": 1}]}, sent)
    for stored in ([{"port": "metrics"}], [{"port": "metrics", "interval": "1s"}], [], None):
        assert not holds({"endpoints": stored}, sent)
    assert not holds({}, sent)


def test_it_is_installed_where_nothing_of_the_operator_is(cluster: Cluster) -> None:
    namespace = cluster.namespace("plain", "privileged")
    before = settled(cluster, namespace)
    cluster.kubectl("delete", f"--filename={CRDS}")
    try:
        told = helm(cluster, "install", "gpunode", str(CHART), f"--namespace={namespace}")
        assert "Nothing tells Prometheus to scrape it" in told
        assert not left_behind(cluster, before, namespace)
    finally:
        cluster.kubectl("apply", "--server-side", f"--filename={CRDS}")


# From the last release and back


def test_the_last_release_is_upgraded_with_its_values_rolled_back_and_removed(
    cluster: Cluster,
) -> None:
    namespace = cluster.namespace("upgrade", "privileged")
    given = f"--namespace={namespace}"
    before = settled(cluster, namespace)

    def running() -> dict[str, Any]:
        return dict(cluster.get("daemonset/gpunode", given)["spec"])

    def named() -> set[str]:
        """What the release has made, but what controllers and Helm give names to."""
        return {one for one in everything(cluster) - before if not INVENTED.search(one)}

    site = "profile=jobs,cluster=east,monitor.labels.release=kps"
    helm(cluster, "install", "gpunode", str(RELEASED), given, f"--set={site}")
    old, of_old = running(), named()
    more = "--set=compat=dcgm"
    helm(cluster, "upgrade", "gpunode", str(CHART), given, "--reuse-values", more)
    new = running()
    assert new["selector"] == old["selector"]
    pod = new["template"]["spec"]
    assert pod["hostPID"] is True, "as it was installed"
    assert pod["affinity"] == old["template"]["spec"]["affinity"]
    (daemon,) = (one for one in pod["containers"] if one["name"] == "gpunode")
    assert "--compat=dcgm" in daemon["args"]
    monitor = cluster.get("podmonitor/gpunode", given)
    assert monitor["metadata"]["labels"]["release"] == "kps"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert "east" in {relabeling.get("replacement") for relabeling in endpoint["relabelings"]}
    assert len(cluster.get("prometheusrules", given)["items"]) == FILES
    helm(cluster, "rollback", "gpunode", "1", given)
    assert running()["template"] == old["template"]

    until(lambda: named() == of_old)  # also without what the new version brought
    helm(cluster, "upgrade", "gpunode", str(CHART), given, "--reset-then-reuse-values")
    assert running()["selector"] == old["selector"]
    assert not left_behind(cluster, before, namespace)


# A job's side


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def job(namespace: str) -> dict[str, Any]:
    """The example's pod, as it would be without the daemon's socket."""
    pod = load("job.yaml")[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    plain = {"name": "log", "image": "example.org/log"}
    del pod["volumes"], container["volumeMounts"]
    pod["containers"].append(plain)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "train-", "namespace": namespace},
        "spec": pod,
    }


def test_the_example_of_a_job_is_admitted(cluster: Cluster) -> None:
    namespace = cluster.namespace("job", "privileged")
    cluster.kubectl(
        "create", "--validate=strict", f"--namespace={namespace}", "-f-", given=load("job.yaml")
    )


def test_a_policy_mounts_the_socket_where_there_is_a_gpu(cluster: Cluster) -> None:
    if cluster.version() < SINCE_POLICIES:
        pytest.skip("this Kubernetes has no MutatingAdmissionPolicy")
    cluster.kubectl("create", "--validate=strict", "-f-", given=load("mount-socket.yaml"))
    for namespace in ("with", "without"):
        cluster.namespace(namespace, "privileged")
        account = ("--namespace", namespace, "serviceaccount/default", "--for=create")
        cluster.kubectl("wait", *account)
    cluster.kubectl("label", "namespace/with", "gpunode/socket=mounted")

    def created(pod: dict[str, Any]) -> dict[str, Any]:
        answer = cluster.kubectl("create", "-f-", "--dry-run=server", "-o", "json", given=[pod])
        return dict(json.loads(answer)["spec"])

    def mounted(pod: dict[str, Any]) -> dict[str, list[str]]:
        return {
            container["name"]: [m["mountPath"] for m in container.get("volumeMounts", ())]
            for container in created(pod)["containers"]
        }

    def in_force() -> bool:
        return "/run/gpunode" in mounted(job("with"))["train"]

    until(in_force)  # the API server looks for policies at intervals
    assert "/run/gpunode" not in mounted(job("with"))["log"]
    assert "/run/gpunode" not in mounted(job("without"))["train"]
    (volume,) = (v for v in created(job("with"))["volumes"] if v["name"] == "gpunode")
    assert volume["hostPath"] == {"path": "/run/gpunode", "type": "DirectoryOrCreate"}


def test_a_claim_gives_the_socket_to_a_restricted_namespace(cluster: Cluster) -> None:
    namespace = cluster.namespace("team", "restricted")
    cluster.kubectl("create", "--validate=strict", "-f-", given=load("socket-claim.yaml"))
    pod = job(namespace)
    pod["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for container in pod["spec"]["containers"]:
        container["securityContext"] = safe
        container["volumeMounts"] = [
            {"name": "gpunode", "mountPath": "/run/gpunode", "readOnly": True}
        ]
    claim = {"claimName": "gpunode", "readOnly": True}
    create = ("kubectl", "create", "--dry-run=server", "-f-")
    pod["spec"]["volumes"] = [{"name": "gpunode", "persistentVolumeClaim": claim}]
    until(lambda: cluster.run(*create, given=[pod]).returncode == 0)  # its account comes first
    pod["spec"]["volumes"] = [{"name": "gpunode", "hostPath": {"path": "/run/gpunode"}}]
    assert "violates PodSecurity" in cluster.run(*create, given=[pod]).stderr
