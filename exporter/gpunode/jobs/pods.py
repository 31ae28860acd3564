"""Which pod holds which GPU: what the kubelet allocated, and what the node's logs are named after.

Neither needs the API server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpunode.gpu.driver import Identity
from gpunode.kubelet import Allocation
from gpunode.metric import Metric
from gpunode.node import Node
from gpunode.source import Absent, Reading, Source

GPU_PODS = Metric(
    "gpunode_kubelet_gpu_pods",
    "gauge",
    "Pods to which the kubelet gave a GPU or a part of one (pod-resources API).",
)

KUBELET = "/var/lib/kubelet"

# /var/log/pods/NAMESPACE_POD_UID, /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log:
# https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-location-node
POD_LOGS = "/var/log/pods"
CONTAINER_LOGS = "/var/log/containers"
CONTAINER_LOG = re.compile(r"[^_]+_[^_]+_(?P<name>.+)-(?P<id>[0-9a-f]{64})\.log")

# https://github.com/GoogleCloudPlatform/container-engine-accelerators
GKE_DEVICE = re.compile(r"nvidia(?P<minor>\d+)(?:/gi(?P<instance>\d+))?(?:/vgpu\d+)?")
# Drivers before 470 named instances so: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
OLD_MIG = re.compile(r"MIG-(?P<parent>GPU-[^/]+)/(?P<instance>\d+)/\d+")
# https://github.com/NVIDIA/k8s-dra-driver-gpu
CLAIMED_DEVICE = re.compile(r"gpu-(?P<minor>\d+)")


def is_of(allocation: Allocation, gpu: Identity) -> bool:
    """Whether an allocated device is this GPU or MIG instance, or a time slice of it."""
    device = allocation.device.partition("::")[0]  # GPU-…::3 is the fourth replica of a shared GPU
    if device == gpu.uuid:
        return True
    minor = gpu.index if gpu.minor is None else gpu.minor
    if match := GKE_DEVICE.fullmatch(device):
        instance = match["instance"] and int(match["instance"])
        return int(match["minor"]) == minor and instance == gpu.gpu_instance
    if match := OLD_MIG.fullmatch(device):
        return match["parent"] == gpu.parent and int(match["instance"]) == gpu.gpu_instance
    if match := CLAIMED_DEVICE.fullmatch(device):
        return int(match["minor"]) == minor and not gpu.mig
    return False


class Pods:
    """Asks the kubelet; what it said last is for the sources of the GPUs' owners."""

    name = "pods"
    device = gpu = ""
    metrics = (GPU_PODS,)

    def __init__(self, node: Node, socket: str, interval: float) -> None:
        self.node = node
        self.socket = socket
        self.every = interval
        self._told: tuple[list[Allocation], float] | None = None
        self._names: dict[str, tuple[str, str]] = {}
        self._containers: dict[str, str] = {}

    def find(self) -> Iterable[Source]:
        """Itself on a node with a kubelet. Raises ``Absent`` where its socket is not there."""
        if not self.socket or not self._exists(KUBELET):
            return ()
        folder, _, name = self.socket.rpartition("/")
        if not self._exists(folder, name):
            raise Absent(
                f"no {self.socket}: which pod holds a GPU is known of running processes alone; "
                f"mount {folder} into this container"
            )
        return (self,)

    def read(self) -> Reading:
        self._told = None
        allocations = self.node.allocations(self.socket)
        self._told = allocations, self.node.clock.monotonic()
        pods = {(allocation.namespace, allocation.pod) for allocation in allocations}
        return Reading(tuple(GPU_PODS.at(float(len(pods)))))

    def holders(self, gpu: Identity) -> list[Allocation] | None:
        """The containers that were given a GPU; None where the kubelet does not tell."""
        told = self._told
        if told is None or self.node.clock.monotonic() - told[1] > 3 * self.every:
            return None
        return [allocation for allocation in told[0] if is_of(allocation, gpu)]

    def name_of(self, pod_uid: str) -> tuple[str, str] | None:
        """Namespace and name of a pod on this node."""
        if pod_uid not in self._names:
            entries = (entry.split("_") for entry in self._list(POD_LOGS))
            self._names = {e[2]: (e[0], e[1]) for e in entries if len(e) == 3}
        return self._names.get(pod_uid)

    def container_of(self, container_id: str) -> str | None:
        """Name of a container on this node."""
        if container_id not in self._containers:
            found = (CONTAINER_LOG.fullmatch(entry) for entry in self._list(CONTAINER_LOGS))
            self._containers = {match["id"]: match["name"] for match in found if match}
        return self._containers.get(container_id)

    def _exists(self, folder: str, name: str = "") -> bool:
        try:
            return name in ["", *self.node.list_directory(folder)]
        except OSError:
            return False

    def _list(self, folder: str) -> list[str]:
        try:
            return self.node.list_directory(folder)
        except OSError:
            return []
