"""Advice in the formats of those who act on it: Slurm, Kubernetes, NVSentinel, and plain JSON.

Whatever a tenant named is in it as ``clean.py`` lets it through, in every format: what is JSON here
may be a word of a shell at the next step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from gpunode.advice.faults import NodeFault
from gpunode.advice.harm import AffectedHolder
from gpunode.advice.node import NodeAdvice
from gpunode.advice.safe_text import name, sentence
from gpunode.faults.fault import AdvisedAction

MAX_REASON_BYTES = 255
"""Bytes of a reason that slurmdbd keeps: ``tinytext`` of its node_event_table."""

MAX_MESSAGE = 1024
"""Characters in the message of a condition or health event; neither format sets a limit."""

MAX_TIMESTAMP = 253402300799.0
"""The end of the year 9999: what can be written, whatever the clock of a node says."""

MAX_HOLDERS = 4
"""Holders that a text names; JSON has them all."""

CONDITION = "GpunodeUnhealthy"
CONDITION_REASONS = {
    AdvisedAction.LEAVE: "NothingAdvised",
    AdvisedAction.RESTART: "NothingAdvised",
    AdvisedAction.DRAIN: "NodeNeedsDrain",
    AdvisedAction.RESET: "GpuNeedsReset",
    AdvisedAction.CONTACT: "GpuNeedsVendor",
    AdvisedAction.REBOOT: "NodeNeedsReboot",
}
"""A reason is one CamelCase word, as of node-problem-detector.
https://github.com/kubernetes/node-problem-detector/blob/master/pkg/types/types.go"""

RECOMMENDED = {
    AdvisedAction.LEAVE: "NONE",
    AdvisedAction.RESTART: "RESTART_APP",
    AdvisedAction.DRAIN: "CONTACT_SUPPORT",
    AdvisedAction.RESET: "COMPONENT_RESET",
    AdvisedAction.CONTACT: "CONTACT_SUPPORT",
    AdvisedAction.REBOOT: "RESTART_BM",
}
"""The names of NVSentinel's RecommendedAction. It has none for a drain, which it does for each
event that is fatal (data-models/protobufs/health_event.proto).
https://github.com/NVIDIA/NVSentinel"""


def summary(one: NodeAdvice, longest: int) -> str:
    """The advice in one line, the most important first: ``sinfo`` shows 20 characters."""
    if not one.faults:
        known = f", not known {one.not_known[0]}" if one.not_known else ""
        return sentence(f"gpunode leave{known}", longest)
    about = [fault for fault in one.faults if fault.action is one.action]
    if one.action is AdvisedAction.RESET:
        parts = [f"gpunode reset GPU {' and '.join(one.gpus) or 'unknown'}"]
    else:
        parts = [f"gpunode {one.action.words}"]
    named = one.action is AdvisedAction.RESET and len(one.gpus) == 1
    parts += dict.fromkeys(fault.reason if named else _fault_reason(fault) for fault in about)
    if one.harm.harmed:
        holders = [harmed.words for harmed in one.harm.harmed[:MAX_HOLDERS]]
        more = len(one.harm.harmed) - len(holders)
        parts.append(f"harms {' and '.join(holders)}{f' and {more} more' if more else ''}")
    if one.not_known:
        parts.append(f"not known {one.not_known[0]}")
    return sentence(", ".join(parts), longest)


def slurm_reason(advice: Sequence[NodeAdvice], of_one: bool) -> str:
    """What follows ``reason=``, for nodes that are to be drained: a line each, empty for none.

    Where it is not of one node alone, the line begins with the name of the node.
    """
    lines = [
        summary(one, MAX_REASON_BYTES) if of_one else f"{one.node} {summary(one, MAX_REASON_BYTES)}"
        for one in advice
        if one.drain
    ]
    return "".join(f"{line}\n" for line in lines)


def node_condition(advice: Sequence[NodeAdvice], of_one: bool) -> str:
    """A Node with the condition, or a List of them."""
    nodes = [_node(one) for one in advice]
    if of_one:
        return _json(nodes[0])
    return _json({"apiVersion": "v1", "kind": "List", "items": nodes})


def health_event(advice: Sequence[NodeAdvice], of_one: bool) -> str:  # noqa: ARG001 always a list
    """NVSentinel's HealthEvents, as protobuf's JSON; it is to store them and do nothing."""
    events = [event for one in advice for event in _events(one)]
    return _json({"version": 1, "events": events})


def as_json(advice: Sequence[NodeAdvice], of_one: bool) -> str:
    """Everything that is known, of one node or as a list of nodes."""
    nodes = [_as_dict(one) for one in advice]
    return _json(nodes[0] if of_one else nodes)


def device_taint(advice: Sequence[NodeAdvice], of_one: bool) -> str:  # noqa: ARG001 always a list
    """DeviceTaintRules for the GPUs that no pod should be given, as devices of NVIDIA's DRA driver.

    They keep new pods away and harm none that runs; whom ``NoExecute`` would end stands beside it.
    https://kubernetes.io/docs/concepts/resource-management/dynamic-resource-allocation/device-taints/
    """
    rules = [rule for one in advice for rule in _taints(one)]
    return _json({"apiVersion": "v1", "kind": "List", "items": rules})


FORMATS: dict[str, Callable[[Sequence[NodeAdvice], bool], str]] = {
    "json": as_json,
    "slurm-reason": slurm_reason,
    "node-condition": node_condition,
    "health-event": health_event,
    "device-taint": device_taint,
}

TAINT = "gpunode/unhealthy"
DRA_DRIVER = "gpu.nvidia.com"
"""It calls a GPU after the N of /dev/nvidiaN, in a pool with the node's name.
https://github.com/NVIDIA/k8s-dra-driver-gpu"""

MAX_OBJECT_NAME = 253
"""Characters of an object's name."""


def _node(one: NodeAdvice) -> dict[str, Any]:
    status = "True" if one.unfit else "Unknown" if one.blind else "False"
    reason = "NothingKnown" if status == "Unknown" else CONDITION_REASONS[one.action]
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": reason if status != "False" else CONDITION_REASONS[AdvisedAction.LEAVE],
        "message": summary(one, MAX_MESSAGE),
        "lastHeartbeatTime": moment(one.time),
    }
    if one.unfit and one.since is not None:
        condition["lastTransitionTime"] = moment(one.since)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": one.node},
        "status": {"conditions": [condition]},
    }


def _taints(one: NodeAdvice) -> Iterable[dict[str, Any]]:
    """A rule for each GPU that takes its node out and of which the device is known."""
    harmed = {
        gpu: " and ".join(held.words for held in one.harm.harmed if gpu in held.gpus)
        for gpu in one.gpus_out
    }
    for gpu in one.gpus_out:
        faults = [fault for fault in one.faults if fault.gpu == gpu and fault.takes_out]
        minor = one.minors.get(gpu, "")
        if not minor.isdecimal():
            continue
        device = f"gpu-{int(minor)}"
        called = re.sub(r"[^a-z0-9.-]", "-", f"gpunode-{one.node}-{device}".lower())
        evidence = "; ".join(dict.fromkeys(fault.reason for fault in faults))
        rule: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": called[-MAX_OBJECT_NAME:].strip("-."),
                "annotations": {
                    "gpunode/evidence": sentence(evidence, MAX_MESSAGE),
                    "gpunode/advised": max(fault.action for fault in faults).words,
                    "gpunode/harmed-if-evicted": sentence(harmed[gpu] or "nobody", MAX_MESSAGE),
                },
            },
            "spec": {
                "deviceSelector": {"driver": DRA_DRIVER, "pool": one.node, "device": device},
                "taint": {
                    "key": TAINT,
                    "value": CONDITION_REASONS[max(fault.action for fault in faults)],
                    "effect": "NoSchedule",
                },
            },
        }
        yield rule


def _events(one: NodeAdvice) -> Iterable[dict[str, Any]]:
    """An event for each fault; without a fault, one that says that the node is healthy."""
    if not one.faults and not one.blind:
        yield _event(one, "GPU", NO_FAULT, {"isHealthy": True})
    for fault in one.faults:
        harmed = " ".join(harmed.words for harmed in one.harm.harmed)
        metadata = {"harmedIfDoneNow": harmed} if fault.action is one.action and harmed else {}
        if fault.not_known:
            metadata["notKnown"] = sentence(fault.not_known, MAX_MESSAGE)
        fields: dict[str, Any] = {
            "isFatal": fault.takes_out,
            "errorCode": _codes(fault),
            "metadata": metadata,
        }
        if fault.gpu:
            fields["entitiesImpacted"] = [
                {"entityType": "GPU", "entityValue": name(fault.gpu)},
                *(
                    [{"entityType": "GPU_UUID", "entityValue": name(fault.uuid)}]
                    if fault.uuid
                    else []
                ),
            ]
        yield _event(one, "GPU" if fault.gpu else "Node", fault, fields)


NO_FAULT = NodeFault("no fault is known", AdvisedAction.LEAVE, "info")


def _event(
    one: NodeAdvice, component: str, fault: NodeFault, fields: dict[str, Any]
) -> dict[str, Any]:
    return {
        "version": 1,
        "agent": "gpunode",
        "componentClass": component,
        "checkName": CONDITION,
        "isFatal": False,
        "isHealthy": False,
        "message": sentence(_fault_reason(fault), MAX_MESSAGE),
        "recommendedAction": RECOMMENDED[fault.action],
        "generatedTimestamp": moment(one.time if fault.since is None else fault.since),
        "nodeName": one.node,
        "processingStrategy": "STORE_ONLY",
        **fields,
    }


def _as_dict(one: NodeAdvice) -> dict[str, Any]:
    return {
        **({"cluster": one.cluster} if one.cluster else {}),
        "node": one.node,
        "time": moment(one.time),
        "action": one.action.name.lower(),
        "says": summary(one, MAX_MESSAGE),
        "drain": one.drain,
        "drained": one.drained,
        "faults": [
            {
                "reason": sentence(fault.reason, MAX_MESSAGE),
                "action": fault.action.name.lower(),
                "takes_node_out": fault.takes_out,
                "gpu": name(fault.gpu) if fault.gpu else None,
                "uuid": name(fault.uuid) if fault.uuid else None,
                "since": _moment(fault.since),
            }
            for fault in one.faults
        ],
        "gpus_to_be_free": list(one.harm.gpus),
        "harmed_if_done_now": [_holder(harmed) for harmed in one.harm.harmed],
        "not_known": [sentence(why, MAX_MESSAGE) for why in one.not_known],
    }


def _holder(harmed: AffectedHolder) -> dict[str, Any]:
    return {
        "namespace": harmed.owner.owner_namespace or None,
        "pod": harmed.owner.owner_pod or None,
        "container": harmed.owner.owner_container or None,
        "slurm_job": harmed.owner.slurm_job or None,
        "user": harmed.owner.user or None,
        "gpus": list(harmed.gpus),
        "world_size": harmed.world_size,
        "since": _moment(harmed.since),
    }


def _fault_reason(fault: NodeFault) -> str:
    return f"GPU {fault.gpu} {fault.reason}" if fault.gpu else fault.reason


def _codes(fault: NodeFault) -> list[str]:
    """The number of an XID."""
    found = re.match(r"XID ([0-9]{1,9})\b", fault.reason)
    return [found[1]] if found else []


def moment(time: float) -> str:
    """A time as Kubernetes and protobuf write it, in UTC and full seconds."""
    return datetime.fromtimestamp(min(max(time, 0.0), MAX_TIMESTAMP), timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def _moment(time: float | None) -> str | None:
    return None if time is None else moment(time)


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"
