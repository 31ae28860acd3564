"""The faults of a node as its daemon tells them, or as Prometheus has them of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from gpunode.advice.series import NodeSeries
from gpunode.faults.fault import AdvisedAction, Location, Part, Severity, meaning
from gpunode.faults.source import START

SEVERITIES: tuple[Severity, ...] = ("info", "ticket", "page")
"""How urgent a fault is under a job, the least first."""

_MEANING_OF_XID = re.compile(r" \(.*\)(?=, )")
"""Left out, as a reason of Slurm has little room."""

FLEET_FAULT = "FleetFault"


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault of a GPU, or of the node where ``gpu`` is empty."""

    reason: str
    action: AdvisedAction
    severity: Severity
    takes_out: bool = False
    """Whether the node is to be drained for it."""

    gpu: str = ""
    uuid: str = ""
    since: float | None = None
    """When it began, in seconds since the epoch; None if nothing tells."""

    not_known: str = ""


def find_faults(node: NodeSeries, fleet_parts: Collection[str] = ()) -> list[NodeFault]:
    """The faults of a node, worst first.

    ``fleet_parts`` are those for which one alert speaks for many nodes of the cluster: no node is
    to be drained for what its neighbours have too. A broken GPU is broken wherever others are.
    """
    found = list(_faults(node, fleet_parts))
    found.sort(key=lambda one: (-SEVERITIES.index(one.severity), -one.action, one.gpu, one.reason))
    return list({(one.gpu, one.reason): one for one in reversed(found)}.values())[::-1]


def _faults(node: NodeSeries, fleet_parts: Collection[str]) -> Iterator[NodeFault]:
    for one in node.of(START.name):
        part = next((known for known in get_args(Part) if known == one.label("part")), None)
        if part is None:
            continue
        where = Location(one.label("gpu"), one.label("uuid"), part, one.label("name"))
        means = meaning(where, one.label("reason"))
        fault = NodeFault(
            *(_MEANING_OF_XID.sub("", means.words), means.action, means.severity, means.unfit),
            *(where.gpu, where.uuid, one.value, means.not_known),
        )
        missing = one.label("reason") == "missing"
        yield _shared(fault) if part in fleet_parts and (not where.gpu or missing) else fault


def _shared(fault: NodeFault) -> NodeFault:
    """What is left of a fault where many nodes have it at once."""
    return replace(
        fault,
        reason=f"{fault.reason}, as many nodes have at once",
        action=AdvisedAction.LEAVE,
        severity="ticket",
        takes_out=False,
        not_known="what the nodes have in common; draining them all helps nobody",
    )
