"""Devices that the kubelet allocated to containers: its pod-resources API on a Unix socket.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpunode.driver.vendors import VENDORS

LIST = "/v1.PodResourcesLister/List"
DEADLINE = 5.0
"""Seconds that the kubelet has to answer."""

MAX_ANSWER_BYTES = 4 << 20
"""Size limit of an answer in bytes, which may take 40 times as many in memory. 200 pods take
0.1 MiB."""

DEVICE_PREFIXES = tuple(prefix for v in VENDORS.values() for prefix in v.device_prefixes)
DEVICE_RESOURCES = tuple(prefix for v in VENDORS.values() for prefix in v.device_resources)
CLAIM_DRIVERS = frozenset(vendor.claim_driver for vendor in VENDORS.values())


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device of a container, as the kubelet names it.

    ``resource`` is the resource of a device plugin (``nvidia.com/gpu``), or the driver of a claim
    in dynamic resource allocation (``gpu.nvidia.com``).
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


class Kubelet:
    """Asks a kubelet over its socket."""

    def __init__(self, path: str, connected: Callable[[str], socket.socket]) -> None:
        self.path = path
        self._connected = connected

    def allocations(self) -> list[Allocation]:
        """The devices of containers whose names look like those of GPUs.

        Raises ``OSError`` without a socket, a listener, or a valid answer in time.
        """
        try:
            with self._connected(self.path) as connection:
                # Imported here, so that only nodes with a kubelet pay for HTTP/2 and protobuf.
                from gpunode.node.kubelet import podresources_pb2 as messages
                from gpunode.node.kubelet.unary import call

                request = messages.ListPodResourcesRequest().SerializeToString()
                content = call(connection, LIST, request, MAX_ANSWER_BYTES, DEADLINE)
        except OSError as error:
            raise _as_os_error(error, self.path) from error
        from google.protobuf.message import DecodeError

        try:
            answer = messages.ListPodResourcesResponse.FromString(content)
        except DecodeError as error:
            raise _as_os_error(error, self.path) from error
        return list(_flattened(answer))


def _as_os_error(error: Exception, socket: str) -> OSError:
    """A failed call as an ``OSError`` with a number, which a tape can store."""
    number = errno.EPROTO
    if isinstance(error, TimeoutError):
        number = errno.ETIMEDOUT
    elif isinstance(error, OSError) and error.errno:
        number = error.errno
    reason = os.strerror(number)
    detail = error.strerror if isinstance(error, OSError) else str(error)
    message = f"{reason} ({detail})" if detail and detail != reason else reason
    return OSError(number, f"the kubelet: {message}", socket)


def _flattened(answer: Any) -> Iterator[Allocation]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            who = pod.namespace, pod.name, container.name
            for devices in container.devices:
                of_gpus = devices.resource_name.startswith(DEVICE_RESOURCES)
                for device in devices.device_ids:
                    if of_gpus or device.startswith(DEVICE_PREFIXES):
                        yield Allocation(*who, devices.resource_name, device)
            for claim in container.dynamic_resources:
                for device in claim.claim_resources:
                    if device.driver_name in CLAIM_DRIVERS:
                        yield Allocation(*who, device.driver_name, device.device_name)
