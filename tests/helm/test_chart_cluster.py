"""The Helm chart on a real API server, with the controllers that make its pods."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.generate import CHART
from tests.conftest import until
from tests.helm.cluster import Cluster, control_plane
from tests.helm.test_chart import CI, OPERATOR

EXAMPLES = CHART.parent / "examples"
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


def objects(cluster: Cluster, namespace: str) -> set[str]:
    """Everything that is in a namespace but what Kubernetes itself puts there, and events."""
    kinds = cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name")
    asked = ",".join(kind for kind in kinds.split() if not kind.startswith("events"))
    found = set(cluster.kubectl("get", asked, "--output=name", f"--namespace={namespace}").split())
    return {one for one in found if not one.endswith(("/default", "/kube-root-ca.crt"))}


def test_every_gpu_node_has_a_pod_until_it_is_uninstalled(cluster: Cluster) -> None:
    namespace = cluster.namespace("gpus", "privileged")
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
    helm(cluster, "uninstall", "gpunode", f"--namespace={namespace}", "--wait")
    until(lambda: not objects(cluster, namespace))


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


def test_an_upgrade_that_reuses_values_keeps_the_pods_selected(
    cluster: Cluster, tmp_path: Path
) -> None:
    namespace = cluster.namespace("upgrade", "privileged")
    before = tmp_path / "gpunode"
    shutil.copytree(CHART, before)
    chart = yaml.safe_load((before / "Chart.yaml").read_text())
    (before / "Chart.yaml").write_text(
        yaml.safe_dump(chart | {"version": "0.0.1", "appVersion": "0.0.1"})
    )
    values = yaml.safe_load((before / "values.yaml").read_text())
    del values["kubeletPath"]  # as in a version from before the key
    (before / "values.yaml").write_text(yaml.safe_dump(values))
    given = f"--namespace={namespace}"
    helm(cluster, "install", "gpunode", str(before), given, "--set=profile=jobs,cluster=east")
    helm(cluster, "upgrade", "gpunode", str(CHART), given, "--reuse-values", "--set=compat=dcgm")
    pod = cluster.get("daemonset/gpunode", given)["spec"]["template"]["spec"]
    assert pod["hostPID"] is True, "as it was installed"
    (daemon,) = (one for one in pod["containers"] if one["name"] == "gpunode")
    assert "--compat=dcgm" in daemon["args"]
    helm(cluster, "uninstall", "gpunode", given)


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
