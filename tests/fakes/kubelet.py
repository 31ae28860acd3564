"""A kubelet: a real gRPC server on a Unix socket that answers pod-resources as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from gpunode.node.kubelet import podresources_pb2 as messages

Pods = dict[tuple[str, str, str], list[tuple[str, str]]]
"""By namespace, pod and container: resource and device id of every device."""


class FakeKubelet:
    """What ``List`` answers: ``pods``, or ``raw`` bytes; ``hang`` keeps it from answering."""

    def __init__(self) -> None:
        self.pods: Pods = {}
        self.claims: Pods = {}
        self.raw: bytes | None = None
        self.hang = False
        self.calls = 0
        self.release = threading.Event()

    def list(self, _: Any, __: grpc.ServicerContext) -> bytes:
        self.calls += 1
        if self.hang:
            self.release.wait(30)
        if self.raw is not None:
            return self.raw
        answer = messages.ListPodResourcesResponse()
        for given, devices in ((self.pods, True), (self.claims, False)):
            for (namespace, pod, container), held in given.items():
                entry = answer.pod_resources.add(name=pod, namespace=namespace)
                place = entry.containers.add(name=container)
                for resource, device in held:
                    if devices:
                        place.devices.add(resource_name=resource, device_ids=[device])
                    else:
                        claim = place.dynamic_resources.add(claim_name="claim")
                        claim.claim_resources.add(driver_name=resource, device_name=device)
        return answer.SerializeToString()


@contextmanager
def kubelet(socket: Path) -> Iterator[FakeKubelet]:
    """Serve on a socket for as long as the block lasts."""
    fake = FakeKubelet()
    handler = grpc.unary_unary_rpc_method_handler(
        fake.list, request_deserializer=messages.ListPodResourcesRequest.FromString
    )
    methods = {"List": handler}
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),)
    )
    socket.parent.mkdir(parents=True, exist_ok=True)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield fake
    finally:
        fake.release.set()
        server.stop(None).wait()
