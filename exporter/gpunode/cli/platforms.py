"""What the Helm chart needs on the Kubernetes platforms that there are, and which one a node is of.

The chart has the table as ``files/platforms.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.node.node import Node, names_in, text_of

OS_RELEASE = "/etc/os-release"
"""https://www.freedesktop.org/software/systemd/man/latest/os-release.html"""

BOTTLEROCKET = "https://bottlerocket.dev/en/os/1.54.x/api/settings/nvidia-container-runtime"

ALL_GPUS = {"name": "all-gpus", "hostPath": {"path": "/dev/null"}}
ALL_GPUS_MOUNT = {"name": "all-gpus", "mountPath": "/var/run/nvidia-container-devices/all"}
"""How a container without privileges asks for all GPUs where its variables are not heard; see
``visible-devices-as-volume-mounts`` in ``BOTTLEROCKET``."""

KUBELETS = (
    "/var/lib/kubelet/pod-resources",
    "/var/lib/k0s/kubelet/pod-resources",
    "/var/snap/microk8s/common/var/lib/kubelet/pod-resources",
)
"""Where kubelets have the socket that names the pods of GPUs; the first is where most have it."""


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
        marks={"/var/lib/rancher/rke2": ""},
    ),
    Platform(
        "k3s",
        "https://docs.k3s.io/advanced#nvidia-container-runtime",
        runtime_class="nvidia",
        marks={"/var/lib/rancher/k3s": ""},
    ),
    Platform(
        "talos",
        "https://docs.siderolabs.com/talos/v1.12/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu-proprietary",
        runtime_class="nvidia",
        marks={OS_RELEASE: r"^ID=\"?talos\"?$"},
    ),
    Platform(
        "openshift",
        "https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html",
        runtime_class="nvidia",
        constraints=True,
        marks={OS_RELEASE: r"^(ID=\"?rhcos\"?|OPENSHIFT_VERSION=.+)$"},
    ),
    Platform(
        "bottlerocket",
        BOTTLEROCKET,
        extra_volumes=(ALL_GPUS,),
        extra_volume_mounts=(ALL_GPUS_MOUNT,),
        marks={OS_RELEASE: r"^ID=\"?bottlerocket\"?$"},
    ),
    Platform(  # Its nodes are Bottlerocket, and do not say more.
        "eks-auto",
        "https://docs.aws.amazon.com/eks/latest/userguide/automode.html",
        extra_volumes=(ALL_GPUS,),
        extra_volume_mounts=(ALL_GPUS_MOUNT,),
    ),
    Platform(
        "gke",
        "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus",
        driver_library="/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
        marks={"/home/kubernetes/bin": ""},
    ),
    Platform(
        "gke-autopilot",
        "https://cloud.google.com/kubernetes-engine/docs/concepts/autopilot-security",
        cannot=(
            "Autopilot admits no privileged container and no hostPath but /var/log, so a pod "
            "without a GPU of its own gets no driver: use node pools in Standard mode"
        ),
    ),
    Platform(  # The accelerated images of Amazon Linux make NVIDIA's runtime the default.
        "eks",
        "https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-optimized-ami.html",
        marks={"/etc/eks": ""},
    ),
    Platform(  # So do the GPU images of AKS.
        "aks",
        "https://learn.microsoft.com/azure/aks/use-nvidia-gpu",
        marks={"/opt/azure": ""},
    ),
)


def chart_values(node: Node) -> dict[str, str]:
    """The values of the Helm chart that a node needs; none for one that is not of Kubernetes."""
    return dict(_values(node))


def _values(node: Node) -> Iterator[tuple[str, str]]:
    found = next((platform for platform in PLATFORMS if platform.has(node)), None)
    if found:
        yield "platform", found.name
    kubelet = next((path for path in KUBELETS if names_in(node, path)), KUBELETS[0])
    if kubelet != KUBELETS[0]:
        yield "kubeletPath", kubelet
