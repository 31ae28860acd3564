"""The Helm chart, rendered by Helm: valid everywhere, strict, and with the project's own rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from alerts.document import RULES, figures
from dashboards import FOLDER
from gpunode.cli.loader import load
from gpunode.cli.settings.run import RunSettings
from gpunode.config.web import WebSettings
from gpunode.explain import rule_files
from helm import generate, release
from tests.conftest import until, watching
from tests.daemon import TIMEOUT
from tests.fakes.nvml import FakeDriver
from tests.needs import ROOT, need

CHART = generate.CHART
DOCKERFILE = Path(__file__).parents[2] / "docker/Dockerfile"
CI = sorted((CHART / "ci").glob("*.yaml"))
OPERATOR = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
OLDEST, NEWEST = "1.25.0", "1.37.0"
ANNOTATIONS = 1 << 18
"""Bytes that the annotations of an object may have:
https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go"""
PROFILES = ("restricted", "node", "pods", "jobs", "network")
(RELEASED,) = (Path(__file__).parent / "released").glob("*.tgz")
"""The chart of the last release, from which sites upgrade; `make release` replaces it."""

Object = dict[str, Any]

pytestmark = pytest.mark.integration


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [need("helm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)


def documents(text: str) -> Iterator[Any]:
    """What YAML of many documents holds, read in C: it is ten times as fast."""
    return yaml.load_all(text, yaml.CSafeLoader)


def render(folder: Path, values: Object | None = None, *options: str | Path) -> list[Object]:
    """The objects of a release called ``gpunode`` in the namespace ``monitoring``."""
    (folder / "values.yaml").write_text(json.dumps(values or {}))
    given = f"--values={folder / 'values.yaml'}"
    ran = helm("template", "gpunode", CHART, "--namespace=monitoring", given, *options)
    assert ran.returncode == 0, ran.stderr
    return [found for found in documents(ran.stdout) if found]


def the(objects: list[Object], kind: str) -> Object:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


def all_of(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def rendered_rules(folder: Path, values: Object, **rules: Any) -> list[Object]:
    """The groups of all PrometheusRules."""
    objects = render(folder, {**values, "rules": {"enabled": True, **rules}})
    return [group for one in all_of(objects, "PrometheusRule") for group in one["spec"]["groups"]]


def shipped() -> dict[str, Object]:
    """The rules of the project, by file."""
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yaml"))}


def shipped_groups() -> list[Object]:
    return [group for file in shipped().values() for group in file["groups"]]


# What is packed


def test_a_packed_chart_holds_the_rules_and_the_dashboards(tmp_path: Path) -> None:
    ran = helm("package", CHART, f"--destination={tmp_path}")
    assert ran.returncode == 0, ran.stderr
    (packed,) = tmp_path.iterdir()
    with tarfile.open(packed) as archive:
        release.extract(archive, tmp_path)
    files = tmp_path / "gpunode" / "files"
    boards = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert {path.name: path.read_bytes() for path in (files / "dashboards").iterdir()} == boards
    for name in ("alertmanager.yaml", *(f"rules/{path.name}" for path in RULES.glob("*.yaml"))):
        assert (files / name).read_bytes() == (ROOT / "alerts" / name).read_bytes()


# Renders


@pytest.mark.parametrize("values", [None, *CI], ids=lambda path: path.stem if path else "defaults")
def test_it_renders_what_kubernetes_knows(values: Path | None, tmp_path: Path) -> None:
    options = () if values is None else (f"--values={values}",)
    linted = helm("lint", "--strict", CHART, *options)
    assert linted.returncode == 0, linted.stdout
    apis = [f"--api-versions={api}" for api in OPERATOR]
    for version, there in ((OLDEST, ()), (NEWEST, apis)):
        objects = render(tmp_path, {}, *options, *there, f"--kube-version={version}")
        assert the(objects, "DaemonSet")
        for one in objects:
            # kubectl apply, and so Argo CD, keeps the object in an annotation
            assert len(json.dumps(one)) < ANNOTATIONS
            assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "gpunode"
            if one["apiVersion"].partition("/")[0].endswith((".coreos.com", ".integreatly.org")):
                continue
            assert kubernetes_validate.validate(one, version, strict=True)


def test_by_default_it_needs_no_crd_and_uses_those_that_are_there(tmp_path: Path) -> None:
    assert {"PodMonitor", "PrometheusRule"}.isdisjoint(one["kind"] for one in render(tmp_path))
    there = render(tmp_path, {}, *(f"--api-versions={api}" for api in OPERATOR))
    assert the(there, "PodMonitor")
    assert len(all_of(there, "PrometheusRule")) == len(shipped())


@pytest.mark.parametrize(
    "typo",
    [
        "profil: jobs",
        "profile: job",
        "image: {tags: v1}",
        "image: {digest: latest}",
        "nameOverride: GPUs",
        "fullnameOverride: GPU-node",
        "port: '9816'",
        "port: 98160",
        "config: {gpu: {intervall: 1}}",
        "config: {web: {listen_address: '0.0.0.0:1'}}",
        "config: {gpu: {interval: 2s}}",
        "config: {gpu: {interval: 0.1}}",
        "config: {incident: {folder_bytes: 1Gi}}",
        "config: {serving: {ask: maybe}}",
        "config: {node: {drained_file: run/drained}}",
        "monitor: {intervall: 30s}",
        "monitor: {interval: 30}",
        "monitor: {kind: podMonitor}",
        "monitor: {relabellings: []}",
        "rules: {enabled: 'yes'}",
        "rules: {disabled: [JobStarfed]}",
        "rules: {thresholds: {fleet_node: 7}}",
        "rules: {thresholds: {fleet_nodes: many}}",
        "rules: {grafana: g.example}",
        "dashboards: {enable: true}",
        "resources: {limit: {memory: 1Gi}}",
        "helpers: {enabled: false}",
        "helpers: {resources: 64Mi}",
        "tolerations: {operator: Exists}",
        "updateStrategy: {maxUnavailable: 1}",
        "networkpolicy: {enabled: true}",
    ],
)
def test_a_typo_is_refused(typo: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(typo)
    ran = helm("template", "gpunode", CHART, f"--values={tmp_path}/values.yaml")
    assert ran.returncode != 0
    assert "don't meet the specifications of the schema" in ran.stderr


def test_a_key_without_a_value_is_as_good_as_none(tmp_path: Path) -> None:
    """As where a site has a comment on every line below the key."""
    optional = ("monitor", "rules", "networkPolicy", "alertmanagerExample")
    shown = f"--set={','.join(f'{name}.enabled=true' for name in optional)}"
    may_be_empty = [v for v in generate.values() if v.description and v.default in ({}, [])]
    assert len(may_be_empty) > 30
    given: Object = {}
    for value in may_be_empty:
        within = given
        for part in value.path[:-1]:
            within = within.setdefault(part, {})
        within[value.path[-1]] = None
    assert render(tmp_path, given, shown) == render(tmp_path, {}, shown)


def test_a_chart_that_depends_on_it_may_leave_it_out(tmp_path: Path) -> None:
    depends = {"name": "gpunode", "version": "*", "condition": "gpunode.enabled"}
    about = {"apiVersion": "v2", "name": "site", "version": "1.0.0", "dependencies": [depends]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    shutil.copytree(CHART, tmp_path / "charts" / "gpunode")
    made = {
        enabled: helm("template", "site", tmp_path, f"--set=gpunode.enabled={enabled}")
        for enabled in ("true", "false")
    }
    assert [ran.returncode for ran in made.values()] == [0, 0], made["true"].stderr
    assert "kind: DaemonSet" in made["true"].stdout
    assert made["false"].stdout.strip() == ""


@pytest.mark.parametrize("profile", [PROFILES[0], PROFILES[-1]])
def test_a_value_that_the_last_release_lacks_is_as_good_as_its_default(
    profile: str, tmp_path: Path
) -> None:
    """As for ``helm upgrade --reuse-values``, which takes the values of the version before."""
    before, now = tmp_path / "before", tmp_path / "now"
    for chart in (before, now):
        shutil.copytree(CHART, chart)
    with tarfile.open(RELEASED) as released:
        values = released.extractfile("gpunode/values.yaml")
        assert values
        (before / "values.yaml").write_bytes(values.read())
    optional = ("monitor", "rules", "networkPolicy", "alertmanagerExample")
    shown = f"--set=profile={profile},{','.join(f'{name}.enabled=true' for name in optional)}"
    made = [helm("template", "gpunode", chart, shown) for chart in (before, now)]
    assert made[0].returncode == 0, made[0].stderr
    assert made[0].stdout == made[1].stdout


def test_what_contradicts_itself_is_refused() -> None:
    for values, why in (
        ("profile=restricted,hostRoot=true", "hostRoot needs a profile"),
        (
            "monitor.enabled=true,monitor.kind=ServiceMonitor,service.enabled=false",
            "service.enabled",
        ),
        ("monitor.enabled=true,monitor.interval=5s", "scrapeTimeout 10s is longer"),
        ("profile=network,hostPort=9400", "hostPort 9400: on the node's network"),
        ("hostNetwork=true,hostPort=9400", "hostPort 9400: on the node's network"),
        ("monitor.enabled=true,monitor.endpoint.interval=20s", "see monitor.interval"),
        ("monitor.enabled=true,monitor.endpoint.path=/x", "endpoint.path: the chart sets it"),
        (
            "monitor.enabled=true,monitor.tlsConfig.caFile=/a",
            "tlsConfig.caFile: a PodMonitor reads",
        ),
        ("monitor.enabled=true,monitor.endpoint.bearerTokenFile=/a", "File: a PodMonitor reads no"),
        ("monitor.enabled=true,monitor.bearerTokenFile=/a", "File: a PodMonitor reads no"),
        ("monitor.enabled=true,monitor.spec.selector.a=b", "spec.selector: the chart sets it"),
        (
            "monitor.enabled=true,monitor.sampleLimit=9,monitor.spec.sampleLimit=8",
            "spec.sampleLimit: the chart sets it; see monitor.sampleLimit",
        ),
        ("monitor.enabled=true,monitor.interval=5m", "monitor.interval 5m is longer than 1m"),
        ("monitor.enabled=true,monitor.interval=1m,monitor.scrapeTimeout=2m", "longer"),
        ("monitor.enabled=true,monitor.port=http", "port http: no container has a port of this"),
        ("rules.alertLabels.severity=warning", "is for routes of Alertmanager to say"),
        ("rules.part=nodes", "one engine evaluates all rules"),
        ("rules.keepFiringFor=false", "the rules need Prometheus 2.42"),
        ("rules.alerts.GpuHot=false", "see rules.disabled"),
        ("rules.thresholds.fleet=5", "must be one of 'stalled_seconds'"),
        ("rules.disabled={JobStarfed}", "must be one of"),
    ):
        ran = helm("template", "gpunode", CHART, f"--set={values}")
        assert why in ran.stderr


@pytest.mark.parametrize("name", ["123", "true", "null", "1e3", "my.release"])
def test_names_are_text_whatever_they_look_like(name: str) -> None:
    options = ("template", name, CHART, f"--namespace={name.replace('.', '-')}")
    given = f"nameOverride={name},webConfigSecret={name},priorityClassName={name}"
    apis = [f"--api-versions={api}" for api in OPERATOR]
    for more in ("", f",fullnameOverride={name}"):
        ran = helm(*options, f"--set-string={given}{more}", *apis)
        assert ran.returncode == 0, ran.stderr
        for one in documents(ran.stdout):
            metadata = one["metadata"]
            names = [metadata["name"], metadata["namespace"], *metadata["labels"].values()]
            assert all(isinstance(text, str) for text in names), metadata
            assert one["kind"] != "Service" or "." not in metadata["name"]
            if not one["apiVersion"].startswith("monitoring"):
                assert kubernetes_validate.validate(one, NEWEST, strict=True)


def test_the_name_of_the_test_pod_fits_into_a_label(tmp_path: Path) -> None:
    labels = the(render(tmp_path, {"nameOverride": 63 * "a"}), "Pod")["metadata"]["labels"]
    assert len(labels["app.kubernetes.io/name"]) <= 63


class Strict(yaml.SafeLoader):
    """Refuses a key that is there twice, of which one value would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


def test_labels_of_one_object_win_over_those_of_all_and_never_over_the_selector(
    tmp_path: Path,
) -> None:
    values = tmp_path / "values.yaml"
    every = {"team": "all", "release": "all", "app.kubernetes.io/name": "other"}
    own = {"labels": {"release": "kps"}}
    given = {"commonLabels": every, "podLabels": {"team": "pods"}, "monitor": own, "rules": own}
    values.write_text(yaml.safe_dump(given))
    apis = [f"--api-versions={api}" for api in OPERATOR]
    ran = helm("template", "gpunode", CHART, f"--values={values}", *apis)
    objects = [one for one in yaml.load_all(ran.stdout, Strict) if one]
    daemons = the(objects, "DaemonSet")
    pod = daemons["spec"]["template"]["metadata"]["labels"]
    assert daemons["metadata"]["labels"]["team"] == "all"
    assert pod["team"] == "pods"
    assert daemons["spec"]["selector"]["matchLabels"].items() <= pod.items()
    for one in (*all_of(objects, "PodMonitor"), *all_of(objects, "PrometheusRule")):
        assert one["metadata"]["labels"]["release"] == "kps"


def test_an_annotation_of_a_site_takes_the_place_of_that_of_the_chart(tmp_path: Path) -> None:
    given = {"kubectl.kubernetes.io/default-container": "side", "team": "a"}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"podAnnotations": given, "config": {"gpu": {"interval": 1}}}))
    ran = helm("template", "gpunode", CHART, f"--values={values}")
    daemons = the([one for one in yaml.load_all(ran.stdout, Strict) if one], "DaemonSet")
    found = daemons["spec"]["template"]["metadata"]["annotations"]
    assert found.pop("checksum/config")
    assert found == given


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ("compat=none", "curl http://"),
        ("webConfigSecret=web,monitor.scheme=https", "curl -k https://"),
        ("webConfigSecret=web,monitor.basicAuth.username.name=scrape", "curl -u USER http://"),
    ],
)
def test_the_notes_ask_as_prometheus_does(given: str, asks: str) -> None:
    ran = helm("install", "gpunode", CHART, "--dry-run=client", f"--set={given}")
    assert f"\n  {asks}localhost:9816/metrics" in ran.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("profile=restricted", False),
        ("profile=node", True),
        ("profile=restricted,platform=gke", True),
        ("profile=restricted,platform=bottlerocket", True),
        ("profile=restricted,hostPort=9816", True),
        ("profile=restricted,hostNetwork=true", True),
    ],
)
def test_the_notes_tell_what_a_namespace_must_allow(given: str, said: bool) -> None:
    ran = helm("install", "gpunode", CHART, "--dry-run=client", f"--set={given}")
    assert ("pod-security.kubernetes.io/enforce=privileged" in ran.stdout) == said


# Profiles


def daemon_of(objects: list[Object]) -> tuple[Object, Object]:
    """The pod of the DaemonSet and the container of the daemon."""
    pod = the(objects, "DaemonSet")["spec"]["template"]["spec"]
    (container,) = (one for one in pod["containers"] if one["name"] == "gpunode")
    return pod, container


def helpers_of(pod: Object) -> dict[str, Object]:
    """The containers of a pod that have the privilege, by their work."""
    return {one["args"][1]: one for one in pod["containers"] if one["name"].startswith("helper-")}


def mounted(pod: Object, container: Object) -> set[str]:
    """The folders of the node that a container sees, with those that it may write to marked."""
    paths = {
        one["name"]: one["hostPath"]["path"] for one in pod["volumes"] or () if "hostPath" in one
    }
    return {
        paths[one["name"]] + ("" if one.get("readOnly") else " to write")
        for one in container["volumeMounts"] or ()
        if one["name"] in paths
    }


def user_of(pod: Object, container: Object) -> int:
    """The user that a container runs as."""
    both = pod["securityContext"] | container["securityContext"]
    assert both["runAsNonRoot"] is (both["runAsUser"] != 0)
    assert both["runAsGroup"] == both["runAsUser"]
    return int(both["runAsUser"])


NOBODY = 65534
OF_NODE = {"/proc", "/sys"}
KUBELET, LOGS = "/var/lib/kubelet/pod-resources", {"/var/log/pods", "/var/log/containers"}
OF_FILES = {"DAC_READ_SEARCH", "SETGID", "SETUID", "SYS_PTRACE"}
Rights = tuple[set[str], set[str]]
SOCKETS: dict[str, Rights] = {"sockets": (set(), {KUBELET})}
ALL_SOCKETS: dict[str, Rights] = {"sockets": (set(), {KUBELET, "/run/gpunode to write"})}
FILES = {"files": (OF_FILES, OF_NODE | LOGS)}
STACKS = {"stacks": ({"DAC_READ_SEARCH", "SYS_PTRACE"}, {"/proc"})}
NETWORK = {"network": ({"SYS_ADMIN", "SYS_PTRACE"}, {"/proc"})}
RIGHTS: dict[str, tuple[set[str], set[str], dict[str, Rights]]] = {
    "restricted": (set(), set(), {}),
    "node": (set(), OF_NODE, {}),
    "pods": (set(), OF_NODE, SOCKETS),
    "jobs": ({"hostPID"}, OF_NODE | {"/run/gpunode"}, ALL_SOCKETS | FILES | STACKS),
    "network": (
        {"hostPID", "hostNetwork"},
        OF_NODE | {"/run/gpunode"},
        ALL_SOCKETS | FILES | STACKS | NETWORK,
    ),
}
"""Of each profile: namespaces of the node, folders that the daemon sees, and capabilities and
folders of each helper."""


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_gives_each_container_what_it_needs_and_the_daemon_no_right(
    profile: str, tmp_path: Path
) -> None:
    objects = render(tmp_path, {"profile": profile})
    pod, daemon = daemon_of(objects)
    helpers = helpers_of(pod)
    namespaces, seen, of_helpers = RIGHTS[profile]
    assert {name for name in ("hostPID", "hostNetwork", "hostIPC") if pod.get(name)} == namespaces
    assert pod["containers"] == [*helpers.values(), daemon], "helpers start first"
    assert user_of(pod, daemon) == NOBODY
    assert mounted(pod, daemon) == seen
    assert all(mount["readOnly"] for mount in daemon["volumeMounts"] or ())
    found = {
        name: (set(one["securityContext"]["capabilities"].get("add", ())), mounted(pod, one))
        for name, one in helpers.items()
    }
    assert found == {name: (own | {"CHOWN"}, seen) for name, (own, seen) in of_helpers.items()}
    # So that they know the daemon from another process of its user.
    assert bool(helpers) == bool(pod.get("hostPID") or pod.get("shareProcessNamespace"))
    assert "add" not in daemon["securityContext"]["capabilities"]
    for one in pod["containers"]:
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert one["image"] == daemon["image"]
        assert "nvidia.com/gpu" not in json.dumps(one["resources"])
        assert one["resources"]["limits"]["memory"]
    for one in helpers.values():
        assert user_of(pod, one) == 0, "Kubernetes gives others no capability"
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in one["env"]
        entry = re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
        assert entry
        command = [*json.loads(entry[1]), *one["args"][:3], "--check"]
        assert one["livenessProbe"]["exec"]["command"] == command, "one that hangs is restarted"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert the(objects, "DaemonSet")["spec"]["selector"]["matchLabels"].keys() == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
    }


@pytest.mark.parametrize(
    "values",
    [
        {"hostRoot": True},
        {"driver": {"library": "/lib/libnvidia-ml.so.1"}},
        {"helpers": {"securityContext": {"capabilities": {"add": ["SYSLOG"]}}}},
        {"clientSocket": {"enabled": False}},
    ],
    ids=lambda values: next(iter(values)),
)
@pytest.mark.parametrize("profile", [one for one in PROFILES if one != "restricted"])
def test_no_value_but_its_own_context_gives_the_daemon_a_user_or_a_capability(
    profile: str, values: Object, tmp_path: Path
) -> None:
    pod, daemon = daemon_of(render(tmp_path, {"profile": profile, **values}))
    assert user_of(pod, daemon) == NOBODY
    assert daemon["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(mount["readOnly"] for mount in daemon["volumeMounts"] or ())


def test_incidents_are_kept_in_the_volume_that_a_site_gives(tmp_path: Path) -> None:
    source = {"hostPath": {"path": "/var/lib/gpunode", "type": "Directory"}}
    pod, daemon = daemon_of(render(tmp_path, {"incidents": {"volume": source}}))
    assert "--incident.folder=/var/lib/gpunode/incidents" in daemon["args"]
    assert {"name": "incidents", "mountPath": "/var/lib/gpunode"} in daemon["volumeMounts"]
    assert {"name": "incidents", **source} in pod["volumes"]
    _, without = daemon_of(render(tmp_path))
    assert not any("incident" in one for one in without["args"])


def test_helpers_answer_the_user_that_the_daemon_is(tmp_path: Path) -> None:
    def asked(values: Object) -> set[str]:
        pod, _ = daemon_of(render(tmp_path, {"profile": "network", **values}))
        return {word for one in helpers_of(pod).values() for word in one["args"] if "user" in word}

    assert asked({}) == {"--user=65534"}
    assert asked({"podSecurityContext": {"runAsUser": 4000}}) == {"--user=4000"}
    both = {"podSecurityContext": {"runAsUser": 4000}, "securityContext": {"runAsUser": 5000}}
    assert asked(both) == {"--user=5000"}
    assert asked({"securityContext": {"runAsUser": 0}}) == {"--user=0"}


def test_only_the_containers_of_the_pod_see_the_sockets_of_helpers(tmp_path: Path) -> None:
    pod, daemon = daemon_of(render(tmp_path, {"profile": "network"}))
    (volume,) = (one for one in pod["volumes"] if one["name"] == "helpers")
    assert volume["emptyDir"] == {"sizeLimit": "1Mi"}

    def place(container: Object) -> Object:
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "helpers")
        return dict(mount)

    folder = "/run/gpunode-helpers/sockets"
    assert place(daemon)["readOnly"], "who takes it over puts no socket in place of one"
    assert f"--path.helpers={folder}" in daemon["args"]
    for one in helpers_of(pod).values():
        assert folder == f"{place(one)['mountPath']}/sockets"
        assert f"--folder={folder}" in one["args"]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("version", "knows"), [("1.30.9", False), ("1.31.0", True)])
def test_what_is_mounted_below_a_folder_is_read_only_where_kubernetes_can(
    profile: str, version: str, knows: bool, tmp_path: Path
) -> None:
    objects = render(tmp_path, {"profile": profile}, f"--kube-version={version}")
    pod, _ = daemon_of(objects)
    for one in pod["containers"]:
        for mount in one["volumeMounts"] or ():
            of_node = mount["mountPath"].startswith("/host")
            given = mount.get("recursiveReadOnly")
            assert given == ("IfPossible" if of_node and knows else None)
            assert not (given and "mountPropagation" in mount), "the API server refuses both"


def test_later_mounts_of_the_node_appear_below_its_root(tmp_path: Path) -> None:
    _, daemon = daemon_of(render(tmp_path, {"hostRoot": True}, "--kube-version=1.36.0"))
    (mount,) = daemon["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/host", True)
    assert mount["mountPropagation"] == "HostToContainer"
    assert "recursiveReadOnly" not in mount, "which excludes them"


@pytest.mark.parametrize(("version", "given"), [("1.30.9", None), ("1.31.0", "IfPossible")])
def test_a_site_may_close_what_is_mounted_below_the_root(
    version: str, given: str | None, tmp_path: Path
) -> None:
    values = {"profile": "jobs", "hostRoot": True, "hostRootPropagation": "None"}
    pod, daemon = daemon_of(render(tmp_path, values, f"--kube-version={version}"))
    for container in (daemon, helpers_of(pod)["files"]):
        (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == "/host")
        assert mount["readOnly"]
        assert mount.get("recursiveReadOnly") == given
        assert "mountPropagation" not in mount


def test_a_kubelet_in_another_folder_is_asked_there(tmp_path: Path) -> None:
    folder = "/var/lib/k0s/kubelet/pod-resources"
    pod, container = daemon_of(render(tmp_path, {"profile": "pods", "kubeletPath": folder}))
    helper = helpers_of(pod)["sockets"]
    assert mounted(pod, helper) == {folder}
    assert f"/host{folder}" in {mount["mountPath"] for mount in helper["volumeMounts"]}
    assert f"--kubelet={folder}/kubelet.sock" in helper["args"]
    _, *options = container["args"]
    given = [f"--path.rootfs={tmp_path}" if "rootfs" in one else one for one in options]
    settings = load(RunSettings, "gpunode run", given)
    assert settings.kubernetes.pod_resources_socket == f"{folder}/kubelet.sock"


def test_a_site_adds_to_the_rights_of_the_daemon_and_to_those_of_helpers(tmp_path: Path) -> None:
    site = {"capabilities": {"add": ["SYSLOG", "SYS_PTRACE"]}}
    given = {"profile": "jobs", "securityContext": {"seLinuxOptions": {"type": "spc_t"}}}
    given["helpers"] = {"securityContext": site, "resources": {"limits": {"memory": "1Gi"}}}
    pod, daemon = daemon_of(render(tmp_path, given))
    assert daemon["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    for one in helpers_of(pod).values():
        assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert one["resources"] == {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"memory": "1Gi"},
        }
    of_files = helpers_of(pod)["files"]["securityContext"]["capabilities"]["add"]
    assert sorted(of_files) == sorted({*OF_FILES, "CHOWN", "SYSLOG"})
    _, daemon = daemon_of(render(tmp_path, {"profile": "jobs", "securityContext": site}))
    assert daemon["securityContext"]["capabilities"]["add"] == ["SYSLOG", "SYS_PTRACE"]


def test_a_site_may_give_another_value_to_each_variable(tmp_path: Path) -> None:
    given = [
        {"name": "NODE_NAME", "value": "a"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        {"name": "TZ", "value": "UTC"},
    ]
    _, container = daemon_of(render(tmp_path, {"extraEnv": given}))
    of_the_chart = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    # Kubernetes refuses a name that is there twice
    assert sorted(container["env"], key=str) == sorted([of_the_chart, *given], key=str)


def test_a_site_may_make_it_privileged(tmp_path: Path) -> None:
    _, container = daemon_of(render(tmp_path, {"securityContext": {"privileged": True}}))
    assert container["securityContext"]["privileged"] is True
    # which the API server refuses beside it
    assert "allowPrivilegeEscalation" not in container["securityContext"]


def test_a_probe_asks_in_one_way(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}}
    given = {"webConfigSecret": "web", "livenessProbe": probe}
    _, container = daemon_of(render(tmp_path, given))
    timing = {"periodSeconds": 20, "timeoutSeconds": 5}
    assert container["livenessProbe"] == probe | timing
    assert "tcpSocket" in container["readinessProbe"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_daemon_takes_the_options_it_is_given(profile: str, tmp_path: Path) -> None:
    _, container = daemon_of(render(tmp_path, {"profile": profile, "compat": "dcgm"}))
    command, *options = container["args"]
    assert command == "run"
    given = [f"--path.rootfs={tmp_path}" if "rootfs" in one else one for one in options]
    settings = load(RunSettings, "gpunode run", given)
    assert settings.compat == "dcgm"
    assert settings.web == WebSettings(node_name="$(NODE_NAME)")  # which Kubernetes fills in
    assert bool(settings.client.socket) is (profile in ("jobs", "network"))


def test_the_settings_of_a_file_are_those_that_the_daemon_reads(tmp_path: Path) -> None:
    config = {
        "gpu": {"interval": 1.5},
        "host": {"slow_interval": 120},
        "log": {"level": "debug"},
        "incident": {"folder_bytes": 1 << 30, "keep": True},
        "web": {"node_name": 17},
    }
    objects = render(tmp_path, {"config": config})
    (found,) = (one for one in objects if one["metadata"]["name"] == "gpunode" and "data" in one)
    (tmp_path / "gpunode.yaml").write_text(found["data"]["gpunode.yaml"])
    settings = load(RunSettings, "gpunode run", [f"--config.file={tmp_path}/gpunode.yaml"])
    assert (settings.gpu.interval, settings.host.slow_interval) == (1.5, 120)
    assert settings.log.level == "debug"
    assert (settings.incident.folder_bytes, settings.incident.keep) == (1 << 30, True)
    assert settings.web.node_name == "17"


# Rules


def test_the_rules_of_the_chart_are_those_of_the_project(tmp_path: Path) -> None:
    assert rendered_rules(tmp_path, {}) == shipped_groups()


def test_a_site_has_its_own_thresholds_and_leaves_alerts_out(tmp_path: Path) -> None:
    figure = {"gpu_celsius": 85.5, "fleet_nodes": 20, "starved_ratio": 0}
    left_out = ["JobStarved", "NodeAuditFailed"]
    found = rendered_rules(tmp_path, {}, thresholds=figure, disabled=left_out)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/all.yaml").write_text(yaml.safe_dump({"groups": found}))
    rules = rule_files.read_rules(tmp_path / "rules")
    given = figures(rule_files.read_rules())
    assert figures(rules) == {**given, **figure}
    names = {rule.name for rule in rule_files.read_rules() if rule.alerts}
    assert {rule.name for rule in rules if rule.alerts} == names - {*left_out}
    check = [need("promtool"), "check", "rules", "--lint=all", "--lint-fatal"]
    checked = subprocess.run(
        [*check, tmp_path / "rules/all.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_carry_what_a_site_adds(tmp_path: Path) -> None:
    found = rendered_rules(
        tmp_path,
        {},
        alertLabels={"team": "ml"},
        alertAnnotations={"channel": "#gpus"},
        runbooks="https://wiki.example.org/gpu/",
        grafana="https://grafana.example.org/",
    )
    alerts = [rule for group in found for rule in group["rules"] if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["team"] == "ml"
        noted = alert["annotations"]
        assert noted["channel"] == "#gpus"
        assert noted["runbook_url"] == f"https://wiki.example.org/gpu/{alert['alert']}.md"
        if "runbook_url_ko" in noted:
            assert noted["runbook_url_ko"].startswith("https://wiki.example.org/gpu/ko/")
        assert noted["dashboard"].startswith("https://grafana.example.org/d/gpunode-")


def test_rule_files_for_a_prometheus_without_the_operator(tmp_path: Path) -> None:
    objects = render(tmp_path, {"rules": {"kind": "ConfigMap"}})
    (found,) = (one for one in objects if one["metadata"]["name"] == "gpunode-rules")
    read = {name: yaml.safe_load(text) for name, text in found["data"].items()}
    assert read == shipped()


# What finds the pods, and what shows them


NODE_NAME = "__meta_kubernetes_pod_node_name"


def scrapes(objects: list[Object]) -> Iterator[Object]:
    for one in objects:
        if one["kind"] in ("PodMonitor", "ServiceMonitor"):
            yield from one["spec"].get("endpoints") or one["spec"]["podMetricsEndpoints"]


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_a_target_is_called_after_its_node_and_its_job_is_one_that_the_rules_know(
    kind: str, tmp_path: Path
) -> None:
    monitor = {"enabled": True, "kind": kind, "relabelings": [{"action": "labelmap"}]}
    values = {"monitor": monitor, "cluster": "east$1", "nameOverride": "gpus"}
    (endpoint,) = scrapes(render(tmp_path, values))
    replace = {"action": "replace"}
    assert endpoint["relabelings"] == [
        replace | {"targetLabel": "job", "replacement": "gpunode"},
        replace | {"sourceLabels": [NODE_NAME], "targetLabel": "instance"},
        replace | {"targetLabel": "cluster", "replacement": "east$$1"},
        {"action": "labelmap"},
    ]


def test_pods_are_looked_for_where_they_are(tmp_path: Path) -> None:
    """Left out where that is the namespace of the object, as a post-renderer may change both."""
    for namespace, asked in (("", None), ("prometheus", {"matchNames": ["monitoring"]})):
        given = {"monitor": {"enabled": True, "namespace": namespace}}
        found = the(render(tmp_path, given), "PodMonitor")
        assert found["metadata"]["namespace"] == (namespace or "monitoring")
        assert found["spec"].get("namespaceSelector") == asked


def test_dashboards_are_the_projects_and_fit_into_an_object(tmp_path: Path) -> None:
    values = {"dashboards": {"folder": "GPUs", "namespace": "grafana"}}
    found = [
        one for one in render(tmp_path, values) if one["metadata"]["name"].endswith("dashboard")
    ]
    shown = {name: text for one in found for name, text in one["data"].items()}
    assert shown.keys() == {path.name for path in FOLDER.glob("*.json")}
    for name, text in shown.items():
        assert json.loads(text) == json.loads((FOLDER / name).read_text())
        assert len(text) < 1 << 20
    for one in found:
        assert one["metadata"]["namespace"] == "grafana"
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "GPUs"}


def test_the_operator_of_grafana_gets_the_same_dashboards(tmp_path: Path) -> None:
    instances = {"matchLabels": {"dashboards": "gpus"}}
    shown = {"grafanaOperator": True, "folder": "GPUs", "instanceSelector": instances}
    found = all_of(render(tmp_path, {"dashboards": shown}), "GrafanaDashboard")
    boards = [json.loads(one["spec"]["json"]) for one in found]
    expected = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    assert sorted(boards, key=lambda board: str(board["uid"])) == expected
    for one in found:
        assert (one["spec"]["folder"], one["spec"]["instanceSelector"]) == ("GPUs", instances)
        assert "grafana_dashboard" not in one["metadata"]["labels"], "the sidecar would take it too"


def test_the_example_of_routes_is_the_projects(tmp_path: Path) -> None:
    objects = render(tmp_path, {"alertmanagerExample": {"enabled": True}})
    (found,) = (one for one in objects if one["metadata"]["name"].endswith("alertmanager-example"))
    example = (ROOT / "alerts/alertmanager.yaml").read_text()
    assert found["data"]["alertmanager.yaml"].strip() == example.strip()


def test_no_dashboard_asks_for_the_job_that_scrapes(tmp_path: Path) -> None:
    """But for what the rules select: a site may call it otherwise."""
    objects = render(tmp_path, {"dashboards": {"enabled": True}})
    texts = [t for one in objects if one["kind"] == "ConfigMap" for t in one["data"].values()]
    boards = [" ".join(_strings(json.loads(text))) for text in texts if '"uid":"gpunode-' in text]
    assert len(boards) == len(list(FOLDER.glob("*.json")))
    assert not [board for board in boards if re.search(r'[{,]job=~?"(?!\.\*gpunode\.\*")', board)]


PANELS_OF_OTHERS = {"gpunode-fleet": ["Held up", "GPUs held up, by cause"], "gpunode-job": ["Step"]}


def test_the_operator_of_grafana_gets_panels_for_the_dashboards_of_others(tmp_path: Path) -> None:
    shown = {"grafanaOperator": True, "libraryPanels": PANELS_OF_OTHERS}
    found = all_of(render(tmp_path, {"dashboards": shown}), "GrafanaLibraryPanel")
    expected = {}
    for uid, titles in PANELS_OF_OTHERS.items():
        panels = json.loads((FOLDER / f"{uid}.json").read_text())["panels"]
        by_title = {panel["title"]: panel for panel in panels}
        for title in titles:
            name = re.sub("[^a-z0-9]+", "-", f"{uid} {title}".lower())
            own = {key: x for key, x in by_title[title].items() if key not in ("id", "gridPos")}
            expected[name] = {**own, "name": f"gpunode: {title}", "kind": 1, "uid": name}
    assert {one["metadata"]["name"]: json.loads(one["spec"]["json"]) for one in found} == expected
    assert max(map(len, expected)) <= 40, "Grafana's limit for a uid"


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({"libraryPanels": PANELS_OF_OTHERS}, "it takes the Grafana Operator"),
        ({"grafanaOperator": True, "libraryPanels": {"flet": ["a"]}}, "is called flet"),
        (
            {"grafanaOperator": True, "libraryPanels": {"gpunode-job": ["Stpe"]}},
            'gpunode-job has no panel "Stpe"',
        ),
    ],
)
def test_panels_that_cannot_be_given_are_refused(shown: Object, why: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps({"dashboards": shown}))
    ran = helm("template", "gpunode", CHART, f"--values={tmp_path}/values.yaml")
    assert ran.returncode != 0
    assert why in ran.stderr


@pytest.mark.parametrize("operator", [False, True])
def test_dashboards_lead_to_the_pages_that_a_site_names(operator: bool, tmp_path: Path) -> None:
    page, report = "https://gpus.example.org/${node}/?a=1&b=2", "https://gpus.example.org/report"
    shown = {"nodePage": page, "report": report, "grafanaOperator": operator}
    texts = [
        text
        for one in render(tmp_path, {"dashboards": shown})
        if one["metadata"]["name"].endswith("dashboard")
        for text in ([one["spec"]["json"]] if operator else one["data"].values())
    ]
    boards = {board["uid"]: board for board in map(json.loads, texts)}
    added = {uid: link["url"] for uid, board in boards.items() for link in board["links"][1:]}
    assert added == {
        **dict.fromkeys(("gpunode-node", "gpunode-host", "gpunode-gpu"), page),
        **dict.fromkeys(("gpunode-fleet", "gpunode-capacity"), report),
    }
    for uid, board in boards.items():
        own = json.loads((FOLDER / f"{uid}.json").read_text())
        variables = {one["name"] for one in board["templating"]["list"]}
        assert "node" in variables or added.get(uid) != page
        assert {**board, "links": board["links"][:1]} == own, "nothing else changes"


def _strings(one: Any) -> Iterator[str]:
    """Every text in a JSON document."""
    if isinstance(one, str):
        yield one
    elif isinstance(one, dict | list):
        for part in one.values() if isinstance(one, dict) else one:
            yield from _strings(part)


def test_only_who_is_named_reaches_the_port(tmp_path: Path) -> None:
    objects = render(tmp_path, {"networkPolicy": {"enabled": True}})
    policy = the(objects, "NetworkPolicy")["spec"]
    labels = the(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }
    assert policy["egress"] == []
    test = the(objects, "Pod")["metadata"]["labels"]
    assert rule["from"][-1]["podSelector"]["matchLabels"].items() <= test.items()
    everyone = render(tmp_path, {"networkPolicy": {"enabled": True, "from": []}})
    assert "from" not in the(everyone, "NetworkPolicy")["spec"]["ingress"][0]


def test_the_pod_of_helm_test_is_like_the_others_and_none_of_them(tmp_path: Path) -> None:
    """Also where a policy asks of every pod for labels, requests and limits."""
    objects = render(tmp_path, {"commonLabels": {"team": "ml"}})
    test, daemons = the(objects, "Pod"), the(objects, "DaemonSet")
    labels = test["metadata"]["labels"]
    assert labels["team"] == "ml"
    for kind in ("DaemonSet", "Service"):
        selector = the(objects, kind)["spec"]["selector"]
        assert not selector.get("matchLabels", selector).items() <= labels.items()
    pod = daemons["spec"]["template"]["spec"]
    (daemon,) = (one for one in pod["containers"] if one["name"] == "gpunode")
    assert test["spec"]["containers"][0]["resources"] == daemon["resources"]


def test_a_driver_that_no_runtime_injects_is_mounted(tmp_path: Path) -> None:
    library = "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1"
    pod, container = daemon_of(render(tmp_path, {"driver": {"library": library}}))
    (volume,) = (one for one in pod["volumes"] if one["name"] == "driver")
    assert volume["hostPath"] == {"path": library, "type": "File"}
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "driver")
    assert mount["mountPath"].startswith("/usr/local/nvidia/lib64/"), "where the image looks"
    assert container["securityContext"]["privileged"] is True
    assert "allowPrivilegeEscalation" not in container["securityContext"], "the API refuses both"
    assert pod["securityContext"]["runAsUser"] == 65534


@pytest.mark.parametrize("gpus", [0, 2])
def test_helm_test_says_whether_a_pod_answers_and_has_gpus(
    gpus: int, fake: FakeDriver, tmp_path: Path
) -> None:
    fake.write(f"gpus {gpus}\n")
    with watching(fake) as running:
        until(lambda: b"gpunode_gpu_info{" in running.get("/metrics") or not gpus)
        values = {"fullnameOverride": "localhost", "port": running.port}
        pod = the(render(tmp_path, values, "--show-only=templates/tests/scrape.yaml"), "Pod")
        (container,) = pod["spec"]["containers"]
        assert container["command"] == ["python3", "-c"]
        command = [sys.executable, "-c", *container["args"]]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) is bool(gpus)
    assert f"answers, with {gpus} GPUs" in ran.stdout
    assert ("set runtimeClassName" in ran.stderr) is not bool(gpus)
