"""Which pod holds which GPU, from the kubelet's allocations and the names of the node's log files.

Neither requires the API server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity, Vendor
from gpunode.driver.vendors import VENDORS
from gpunode.metric import Metric
from gpunode.node.kubelet import Allocation
from gpunode.node.node import Node, names_in
from gpunode.source import WHOLE_NODE, Absent, Place, Reading, Source
from gpunode.unread import Unknown, shape

GPU_PODS = Metric(
    "gpunode_kubelet_gpu_pods",
    "gauge",
    "Pods to which the kubelet allocated a GPU or part of one (pod-resources API).",
)

KUBELET = "/var/lib/kubelet"

# /var/log/pods/NAMESPACE_POD_UID, /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log:
# https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-location-node
POD_LOGS = "/var/log/pods"
CONTAINER_LOGS = "/var/log/containers"
CONTAINER_LOG = re.compile(
    r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<name>.+)-(?P<id>[0-9a-f]{64})\.log"
)

Container = tuple[str, str, str]
"""A container by its namespace, pod and name."""

MAX_NAME = 253
"""Characters of a name: the most that Kubernetes allows, and nothing on this node checks.
https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""


LISTED = 1.0
"""Seconds for which a list of containers serves all GPUs: a process comes to a GPU later than that
after its container began."""

GPU_DEVICE = re.compile(r"gpu|/mig-")
"""In what device plugins and drivers for DRA call GPUs; pods have NICs as well."""

DEVICE = Unknown(
    "device",
    "the kubelet names a GPU in a form that does not tell which one it is; no GPU without a known "
    "pod is reported as free meanwhile",
)
WORDS = re.compile(r"[^\W\d_]{2,16}")
"""Words of a device's ID, which a device plugin chooses, and no tenant."""

NO_GPU = Identity(-1, "none", "")
"""None of this node, as a device of a form that is known is another."""


class Pods:
    """Asks the kubelet, and keeps its last answer for the sources of GPU owners."""

    name = "pods"
    needs = (
        "Kubernetes: the kubelet's socket from /var/lib/kubelet/pod-resources, as root or through "
        "`gpunode helper sockets`"
    )
    metrics = (GPU_PODS,)
    unknowns = (DEVICE,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.socket = settings.kubernetes.pod_resources_socket
        self.every = settings.kubernetes.interval
        self._allocated: tuple[list[Allocation], float] | None = None
        self._names: dict[str, tuple[str, str]] = {}
        self._containers: dict[str, Container] = {}
        self._listed = -math.inf

    def find(self) -> Iterable[tuple[Place, Source]]:
        """Itself on a node with a kubelet. Raises ``Absent`` if its socket is missing."""
        if not self.socket:
            return ()
        folder, _, name = self.socket.rpartition("/")
        if self._exists(folder, name) or self._answers():
            return ((WHOLE_NODE, self),)
        if not self._exists(KUBELET):
            return ()
        raise Absent(
            f"no {self.socket}: GPUs without a running process have no known pod; "
            f"mount {folder} into this container"
        )

    def read(self) -> Reading:
        self._allocated = None
        allocations = self.node.allocations(self.socket)
        self._allocated = allocations, self.node.clock.monotonic()
        pods = {(allocation.namespace, allocation.pod) for allocation in allocations}
        strange = dict.fromkeys(
            (one.resource, shape(one.device, WORDS.findall(one.device)))
            for one in allocations
            if all(_is_device(vendor, NO_GPU, one) is None for vendor in VENDORS.values())
        )
        unread = tuple(DEVICE.seen(f"{resource}: {device}") for resource, device in strange)
        return Reading(tuple(GPU_PODS.at(float(len(pods)))), unread=unread)

    def holders(self, gpu: Identity) -> list[Allocation] | None:
        """The containers to which a GPU is allocated.

        None without a recent answer of the kubelet, or if it names a device that may be this one.
        """
        allocated = self._allocated
        if allocated is None or self.node.clock.monotonic() - allocated[1] > 3 * self.every:
            return None
        named = [(a, _is_device(VENDORS[gpu.vendor], gpu, a)) for a in allocated[0]]
        if not any(is_it for _, is_it in named) and any(is_it is None for _, is_it in named):
            return None
        return [
            replace(
                a,
                namespace=a.namespace[:MAX_NAME],
                pod=a.pod[:MAX_NAME],
                container=a.container[:MAX_NAME],
            )
            for a, is_it in named
            if is_it
        ]

    def gpus_of(self, namespace: str, pod: str) -> int:
        """How many GPUs, or parts of one, the kubelet last said that a pod has."""
        allocated = self._allocated[0] if self._allocated else ()
        return len(
            {
                one.device
                for one in allocated
                if (one.namespace, one.pod) == (namespace, pod) and GPU_DEVICE.search(one.resource)
            }
        )

    def gave(self, gpu: Identity) -> bool:
        """Whether a GPU is known to be allocated to a container."""
        return bool(self.holders(gpu))

    def name_of(self, pod_uid: str) -> tuple[str, str] | None:
        """The namespace and name of a pod on this node."""
        if pod_uid not in self._names:
            entries = (entry.split("_") for entry in names_in(self.node, POD_LOGS))
            self._names = {e[2]: (e[0], e[1]) for e in entries if len(e) == 3}
        return self._names.get(pod_uid)

    def container_of(self, container_id: str) -> str | None:
        """The name of a container on this node."""
        if container_id not in self._containers:
            self._list_containers()
        found = self._containers.get(container_id)
        return None if found is None else found[-1]

    def begun(self, container: Container) -> frozenset[str]:
        """The ids that a container of a pod has had: one more for each time it was started.

        The kubelet keeps the latest of those that have ended.
        """
        if self.node.clock.monotonic() - self._listed >= LISTED:
            self._list_containers()
        return frozenset(one for one, of in self._containers.items() if of == container)

    def _list_containers(self) -> None:
        found = map(CONTAINER_LOG.fullmatch, names_in(self.node, CONTAINER_LOGS))
        self._containers = {
            match["id"]: (match["namespace"], match["pod"], match["name"])
            for match in found
            if match
        }
        self._listed = self.node.clock.monotonic()

    def _answers(self) -> bool:
        """Whether there is a kubelet at the socket, which a helper may see though this may not."""
        try:
            self.node.allocations(self.socket)
        except (FileNotFoundError, PermissionError):
            return False
        except OSError:  # one that does not answer is there
            pass
        return True

    def _exists(self, folder: str, name: str = "") -> bool:
        try:
            return name in ["", *self.node.list_directory(folder)]
        except OSError:
            return False


def _is_device(vendor: Vendor, gpu: Identity, allocation: Allocation) -> bool | None:
    """Whether an allocation is of a GPU; None if it may be."""
    if len(allocation.device) > MAX_NAME:
        return None
    return vendor.is_device(gpu, allocation.device)
