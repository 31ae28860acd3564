"""What the Helm chart needs on the Kubernetes platforms that there are, and which one a node is of.

The chart has the table as ``files/platforms.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.host import mounts
from gpunode.node.node import Node, names_in, text_of

OS_RELEASE = "/etc/os-release"
"""https://www.freedesktop.org/software/systemd/man/latest/os-release.html"""

BOTTLEROCKET = "https://bottlerocket.dev/en/os/1.54.x/api/settings/nvidia-container-runtime"

ALL_GPUS = {"name": "all-gpus", "hostPath": {"path": "/dev/null"}}
ALL_GPUS_MOUNT = {"name": "all-gpus", "mountPath": "/var/run/nvidia-container-devices/all"}
"""How a container without privileges asks for all GPUs where its variables are not heard; see
``visible-devices-as-volume-mounts`` in ``BOTTLEROCKET``."""

KUBELETS = (
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
)
"""The folders of kubelets; the first is that of most."""

SOCKET = "pod-resources"
"""The folder in a kubelet's with the socket that names the pods of GPUs."""

PLAIN = re.compile(r"(?:/[\w.-]+)+")
"""A path without characters that a terminal or YAML interprets."""

NAME_OF_NODE = "/proc/sys/kernel/hostname"


@dataclass(frozen=True, slots=True)
class Platform:
    """A way to run Kubernetes, with the values that the chart needs there."""

    name: str
    source: str
    """The document that says so."""

    runtime_class: str = ""
    driver_library: str = ""
    extra_volumes: tuple[Mapping[str, object], ...] = ()
    extra_volume_mounts: tuple[Mapping[str, object], ...] = ()
    constraints: bool = False
    """Whether a pod is admitted by OpenShift's security context constraints."""

    cannot: str = ""
    """Why the daemon cannot see a GPU there."""

    limits: str = ""
    """What does not work there, and why."""

    limits_source: str = ""
    """The document that says so of the limits, where it is another."""

    marks: Mapping[str, str] = field(default_factory=dict)
    """A pattern for each file by which a node is known, or an empty one for a folder."""

    def has(self, node: Node) -> bool:
        """Whether a node is of this platform."""
        return any(
            re.search(pattern, text_of(node, path), re.MULTILINE) is not None
            if pattern
            else bool(names_in(node, path))
            for path, pattern in self.marks.items()
        )


PLATFORMS = (
    # Distributions before clouds: either may run on the machines of the other.
    Platform(
        "rke2",
        "https://docs.rke2.io/advanced#deploy-nvidia-operator",
        runtime_class="nvidia",
        limits=(
            "RKE2 brings no driver: where neither the node's system nor the GPU operator has "
            "one, there is no GPU to see"
        ),
        limits_source="https://docs.rke2.io/add-ons/gpu_operators",
        marks={"/var/lib/rancher/rke2": ""},
    ),
    Platform(
        "k3s",
        "https://docs.k3s.io/advanced#nvidia-container-runtime",
        runtime_class="nvidia",
        limits=(
            "K3s looks for NVIDIA's runtime when it starts: where that was installed later, "
            "no pod of the class starts until K3s is restarted"
        ),
        limits_source="https://docs.k3s.io/advanced#alternative-container-runtime-support",
        marks={"/var/lib/rancher/k3s": ""},
    ),
    Platform(
        "talos",
        "https://docs.siderolabs.com/talos/v1.12/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu-proprietary",
        runtime_class="nvidia",
        limits=(
            "every namespace but kube-system enforces Pod Security baseline: without the "
            "label pod-security.kubernetes.io/enforce=privileged only the profile restricted "
            "is admitted"
        ),
        limits_source="https://docs.siderolabs.com/kubernetes-guides/security/pod-security",
        marks={OS_RELEASE: r"^ID=\"?talos\"?$"},
    ),
    Platform(
        "openshift",
        "https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html",
        runtime_class="nvidia",
        constraints=True,
        limits=(
            "the platform's Prometheus scrapes no project of a user and evaluates no rule of "
            "it until monitoring for user-defined projects is enabled"
        ),
        limits_source="https://docs.redhat.com/en/documentation/openshift_container_platform/4.17/html/monitoring/managing-metrics",
        marks={OS_RELEASE: r"^(ID=\"?rhcos\"?|OPENSHIFT_VERSION=.+)$"},
    ),
    Platform(
        "bottlerocket",
        BOTTLEROCKET,
        extra_volumes=(ALL_GPUS,),
        extra_volume_mounts=(ALL_GPUS_MOUNT,),
        limits=(
            "with the setting visible-devices-as-volume-mounts = false, which is true by "
            "default, no pod sees a GPU that it did not request"
        ),
        marks={OS_RELEASE: r"^ID=\"?bottlerocket\"?$"},
    ),
    Platform(  # Its nodes are Bottlerocket, and do not say more.
        "eks-auto",
        "https://docs.aws.amazon.com/eks/latest/userguide/automode.html",
        extra_volumes=(ALL_GPUS,),
        extra_volume_mounts=(ALL_GPUS_MOUNT,),
        limits=(
            "a node is replaced within 21 days, and neither SSH nor SSM leads to it: "
            "incidents in a folder of the node go with it"
        ),
    ),
    Platform(
        "gke-autopilot",
        "https://cloud.google.com/kubernetes-engine/docs/concepts/autopilot-security",
        cannot=(
            "Autopilot admits no privileged container and no hostPath but /var/log, so a pod "
            "without a GPU of its own gets no driver: use node pools in Standard mode"
        ),
        # Its nodes have names of gk3-CLUSTER-…, those of Standard mode of gke-CLUSTER-…
        marks={NAME_OF_NODE: "^gk3-"},
    ),
    Platform(
        "gke",
        "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus",
        driver_library="/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
        limits=(
            "the container gets the devices by being privileged: only a namespace with the "
            "level privileged of Pod Security admits it, whatever the profile"
        ),
        marks={"/home/kubernetes/bin": ""},
    ),
    Platform(  # The accelerated images of Amazon Linux make NVIDIA's runtime the default.
        "eks",
        "https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-optimized-ami.html",
        limits="no pod of a DaemonSet runs on Fargate",
        limits_source="https://docs.aws.amazon.com/eks/latest/userguide/fargate.html",
        marks={"/etc/eks": ""},
    ),
    Platform(  # So do the GPU images of AKS.
        "aks",
        "https://learn.microsoft.com/azure/aks/use-nvidia-gpu",
        limits=(
            "node pools made with --gpu-driver none have no driver until the GPU operator "
            "brings one, and then need runtimeClassName: nvidia"
        ),
        limits_source="https://learn.microsoft.com/azure/aks/nvidia-gpu-operator",
        marks={"/opt/azure": ""},
    ),
)


def chart_values(node: Node) -> dict[str, str]:
    """The values of the Helm chart that a node needs; none for one that is not of Kubernetes.

    Those that follow from the platform are among them.
    """
    return dict(_values(node))


def _values(node: Node) -> Iterator[tuple[str, str]]:
    if found := _platform(node):
        yield "platform", found.name
        if found.runtime_class:
            yield "runtimeClassName", found.runtime_class
        if found.driver_library:
            yield "driver.library", found.driver_library
    kubelet, *others = _kubelets(node) or KUBELETS[:1]
    if kubelet != KUBELETS[0] and not others:
        yield "kubeletPath", f"{kubelet}/{SOCKET}"


def chart_limits(node: Node) -> Iterator[str]:
    """What the chart cannot do on a node, or this user cannot tell of it, in a sentence each."""
    if found := _platform(node):
        if found.cannot:
            yield f"The chart refuses {found.name}: {found.cannot} ({found.source})"
        if found.limits:
            yield f"On {found.name}, {found.limits} ({found.limits_source or found.source})"
    kubelets = _kubelets(node)
    if len(kubelets) > 1:
        yield (
            f"kubeletPath is not known: this user may look into none of {', '.join(kubelets)}; "
            "ask again as root"
        )


def _platform(node: Node) -> Platform | None:
    return next((platform for platform in PLATFORMS if platform.has(node)), None)


def _kubelets(node: Node) -> list[str]:
    """The folder of the kubelet; several where nothing tells which, none where there is none.

    Only root may look into it. What it mounts for pods is told to anybody.
    """
    try:
        found = mounts.kubelets(mounts.parse(mounts.read_as_node(node, "mountinfo")))
    except OSError:
        found = set()
    plain = sorted(filter(PLAIN.fullmatch, found))
    there = [folder for folder in KUBELETS if folder in plain] or plain
    there = there or [folder for folder in KUBELETS if names_in(node, f"{folder}/{SOCKET}")]
    return there[:1] or [folder for folder in KUBELETS if _is_closed(node, folder)]


def _is_closed(node: Node, folder: str) -> bool:
    """Whether a folder is there and shut to this user."""
    try:
        node.list_directory(f"{folder}/{SOCKET}")
    except PermissionError:
        return True
    except OSError:
        pass
    return False
