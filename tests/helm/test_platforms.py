"""What the chart sets on each Kubernetes platform."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from gpunode.cli.platforms import ALL_GPUS, ALL_GPUS_MOUNT, PLATFORMS
from tests.helm.test_chart import CHART, NEWEST, OLDEST, PROFILES, daemon_of, helm, render, the
from tests.needs import ROOT

pytestmark = pytest.mark.integration

NAMES = [one.name for one in PLATFORMS if not one.cannot]
LIBRARY = "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1"


def needs_of(name: str, folder: Path, **values: Any) -> dict[str, Any]:
    """What of a daemon's pod goes by the platform."""
    pod, daemon = daemon_of(render(folder, {"platform": name, **values}))
    return {
        "class": pod.get("runtimeClassName"),
        "driver": [v["hostPath"]["path"] for v in pod["volumes"] if v["name"] == "driver"],
        "privileged": bool(daemon["securityContext"].get("privileged")),
        "asks": ALL_GPUS in pod["volumes"] and ALL_GPUS_MOUNT in daemon["volumeMounts"],
    }


NOTHING: dict[str, Any] = {"class": None, "driver": [], "privileged": False, "asks": False}
NVIDIA = {**NOTHING, "class": "nvidia"}
ASKS = {**NOTHING, "asks": True}
EXPECTED = {
    "": NOTHING,
    **dict.fromkeys(("eks", "aks"), NOTHING),
    **dict.fromkeys(("rke2", "k3s", "talos", "openshift"), NVIDIA),
    **dict.fromkeys(("bottlerocket", "eks-auto"), ASKS),
    "gke": {**NOTHING, "driver": [LIBRARY], "privileged": True},
}


def test_no_platform_is_left_out() -> None:
    assert EXPECTED.keys() == {"", *NAMES}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_pod_gets_what_it_needs_to_see_the_gpus(name: str, tmp_path: Path) -> None:
    assert needs_of(name, tmp_path) == EXPECTED[name]


def test_a_value_of_the_site_wins(tmp_path: Path) -> None:
    assert needs_of("k3s", tmp_path, runtimeClassName="mine")["class"] == "mine"
    library = "/opt/driver/libnvidia-ml.so.1"
    assert needs_of("gke", tmp_path, driver={"library": library})["driver"] == [library]


@pytest.mark.parametrize("profile", PROFILES)
def test_openshift_admits_the_pod_by_the_least_constraint_that_does(
    profile: str, tmp_path: Path
) -> None:
    objects = render(tmp_path, {"platform": "openshift", "profile": profile})
    bound = the(objects, "RoleBinding")
    allowed = "nonroot-v2" if profile == "restricted" else "privileged"
    assert bound["roleRef"]["name"] == f"system:openshift:scc:{allowed}"
    account = the(objects, "ServiceAccount")["metadata"]
    (subject,) = bound["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    for version in (OLDEST, NEWEST):
        assert kubernetes_validate.validate(bound, version, strict=True)


def test_openshift_admits_what_a_site_adds_to_the_least_profile(tmp_path: Path) -> None:
    values = {"platform": "openshift", "profile": "restricted", "hostPort": 9816}
    bound = the(render(tmp_path, values), "RoleBinding")
    assert bound["roleRef"]["name"] == "system:openshift:scc:privileged"


def test_the_annotation_for_the_nri_plugin_is_of_the_container_of_the_daemon(
    tmp_path: Path,
) -> None:
    document = (ROOT / "docs/kubernetes.md").read_text()
    (given,) = re.findall(r"podAnnotations: \{(nvidia[^}]+)\}", document)
    name, device = given.split(": ")
    objects = render(tmp_path, {"podAnnotations": {name: device}})
    _, daemon = daemon_of(objects)
    assert name == f"nvidia.cdi.k8s.io/container.{daemon['name']}"
    found = the(objects, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert found[name] == device


def test_nothing_is_bound_elsewhere(tmp_path: Path) -> None:
    kinds = {one["kind"] for one in render(tmp_path, {"platform": "k3s"})}
    assert "RoleBinding" not in kinds


@pytest.mark.parametrize("one", [one for one in PLATFORMS if one.cannot], ids=lambda one: one.name)
def test_where_the_daemon_would_see_no_gpu_the_chart_says_why(one: Any) -> None:
    refused = helm("template", "gpunode", CHART, f"--set=platform={one.name}")
    assert refused.returncode != 0
    assert one.cannot in refused.stderr
    assert one.source in refused.stderr
