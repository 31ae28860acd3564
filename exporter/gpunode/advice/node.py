"""The advice for a node: an action, the faults behind it, and whom it harms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpunode.advice import faults, harm
from gpunode.advice.faults import SEVERITIES, NodeFault
from gpunode.advice.safe_text import name
from gpunode.advice.series import NodeSeries
from gpunode.faults.fault import AdvisedAction
from gpunode.gpu import health
from gpunode.host.drained import DRAINED
from gpunode.loop.metrics import UP


@dataclass(frozen=True, slots=True)
class NodeAdvice:
    """The advice for a node; nothing of it has been done."""

    cluster: str
    """Of a node of a fleet; empty of one whose daemon was asked."""

    node: str
    time: float
    action: AdvisedAction
    faults: tuple[NodeFault, ...]
    harm: harm.Harm
    drained: bool
    """Whether no new job comes to the node as it is."""

    not_known: tuple[str, ...]
    blind: bool
    """Whether nothing is known of its GPUs, so that no fault means nothing."""

    minors: Mapping[str, str]
    """By the index of a GPU, the N of its /dev/nvidiaN."""

    @property
    def unfit(self) -> bool:
        """Whether no job should come to the node until somebody has acted."""
        return any(fault.takes_out for fault in self.faults)

    @property
    def drain(self) -> bool:
        """Whether the node is to be drained now: it is unfit, and takes new jobs."""
        return self.unfit and not self.drained

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs for whose faults the action is."""
        return tuple(dict.fromkeys(f.gpu for f in self.faults if f.gpu and f.action is self.action))

    @property
    def gpus_out(self) -> tuple[str, ...]:
        """The GPUs that no new job should get."""
        return tuple(dict.fromkeys(f.gpu for f in self.faults if f.gpu and f.takes_out))

    @property
    def since(self) -> float | None:
        """When the first fault happened that the action is for, if that is known."""
        known = [f.since for f in self.faults if f.action is self.action and f.since is not None]
        return min(known, default=None)


def advice(
    node: NodeSeries,
    fleet_parts: Collection[str] = (),
    since: Mapping[harm.Owned, float] = MappingProxyType({}),
) -> NodeAdvice:
    """The advice for a node, from its faults and whom an action harms."""
    found = faults.find_faults(node, fleet_parts)
    drained = any(one.value for one in node.of(DRAINED.name))
    worst = max(((SEVERITIES.index(f.severity), f.action) for f in found if f.action), default=None)
    action = worst[1] if worst else AdvisedAction.LEAVE
    harmed = harm.assess_harm(node, action, found, since)
    not_known = [_fault_text(fault) for fault in found if fault.not_known]
    blind = not any(True for _ in node.of(health.INFO.name))
    if blind:
        not_known.append(_unseen(node))
    told = dict.fromkeys([*not_known, *harmed.not_known])
    return NodeAdvice(
        name(node.cluster),
        name(node.node),
        node.time,
        action,
        tuple(found),
        harmed,
        drained,
        tuple(told),
        blind,
        {one.label("gpu"): one.label("minor") for one in node.of(health.INFO.name)},
    )


def _fault_text(fault: NodeFault) -> str:
    where = f"GPU {fault.gpu}: " if fault.gpu else ""
    return f"{where}{fault.reason}: {fault.not_known}"


def _unseen(node: NodeSeries) -> str:
    """Why nothing is known of a node's GPUs."""
    if any(one.value == 0.0 for one in node.of("up")):
        return "anything of the node: its exporter does not answer"
    if any(one.value == 0.0 for one in node.of(UP.name, source="gpu")):
        return "its GPUs: the driver lists none"
    return "its GPUs: none is seen"
