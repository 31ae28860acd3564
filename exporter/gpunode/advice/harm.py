"""Who holds GPUs that an action takes away, if it is done now."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpunode.advice.faults import NodeFault
from gpunode.advice.safe_text import name
from gpunode.advice.series import NodeSeries, SeriesSample
from gpunode.faults.fault import AdvisedAction
from gpunode.gpu import health, nvlink
from gpunode.gpu.activity import PROCESSES
from gpunode.holders.owner import Owner
from gpunode.jobs.owners import ALLOCATED, OWNER, OWNER_LABELS, PROCESS

RESET_ALONE = 8.0
"""Compute capability from which on a GPU with NVLinks is reset without its neighbours: Ampere.
Before, all GPUs that NVLink connects are reset together. With NVSwitches, Ampere needs a running
Fabric Manager for it, and Hopper does not (--gpu-reset).
https://docs.nvidia.com/deploy/nvidia-smi/index.html"""

Owned = tuple[str, ...]
"""Whose a GPU is: the values of the labels of an owner."""


@dataclass(frozen=True, slots=True)
class AffectedHolder:
    """A holder of GPUs. Every name is fit to be handed over; a field that is unknown is empty."""

    owner: Owner
    gpus: tuple[str, ...]
    """All that it holds on the node: a job that loses one loses its work on the others."""

    world_size: int | None
    """The ranks of its job on all nodes; None if its processes do not say."""

    since: float | None
    """Since when it holds them, in seconds since the epoch; None where only a daemon was asked."""

    @property
    def words(self) -> str:
        """The holder in one word."""
        who = self.owner
        pod = "/".join(filter(None, (who.owner_namespace, who.owner_pod)))
        job = f"Slurm-job-{who.slurm_job}" if who.slurm_job else ""
        return pod or "/".join(filter(None, (job, who.user))) or who.owner_container


@dataclass(frozen=True, slots=True)
class Harm:
    """Who is harmed, and what is not known about it."""

    harmed: tuple[AffectedHolder, ...]
    gpus: tuple[str, ...]
    """The GPUs that have to be free of processes, by their indices."""

    not_known: tuple[str, ...]


def assess_harm(
    node: NodeSeries,
    action: AdvisedAction,
    faults: Collection[NodeFault],
    since: Mapping[Owned, float],
) -> Harm:
    """Who is harmed by an action for these faults; ``since``: when each owner was first seen."""
    gpus, not_known = _taken(node, action, faults)
    holders: dict[Owned, set[str]] = {}
    for one in node.of(OWNER.name):
        holders.setdefault(_owned(one.labels), set()).add(one.label("gpu"))
    holders.pop(("",) * len(OWNER_LABELS), None)
    held = set().union(*holders.values()) if holders else set()
    harmed = [
        AffectedHolder(
            Owner(*map(_printable_name, owned)),
            gpus=_ordered(at),
            world_size=_world(node, owned),
            since=since.get(owned),
        )
        for owned, at in sorted(holders.items())
        if at & gpus
    ]
    unseen = _ordered(gpus - held - _free(node))
    if unseen:
        not_known.append(f"who holds GPU {', '.join(unseen)}, if anybody does")
    return Harm(tuple(harmed), _ordered(gpus), tuple(not_known))


def _taken(
    node: NodeSeries, action: AdvisedAction, faults: Collection[NodeFault]
) -> tuple[set[str], list[str]]:
    """The GPUs that an action takes from their holders, and what is not known of it."""
    every = {one.label("gpu") for one in (*node.of(health.INFO.name), *node.of(OWNER.name))}
    every |= {fault.gpu for fault in faults if fault.gpu}
    if action is AdvisedAction.LEAVE:
        return set(), []
    its = {fault.gpu for fault in faults if fault.gpu and fault.action is action}
    if action is AdvisedAction.RESTART:
        return its, []
    if action is not AdvisedAction.RESET:
        return every, []
    capabilities = {
        one.label("gpu"): one.label("compute_capability") for one in node.of(health.INFO.name)
    }
    linked = any(True for _ in node.of(nvlink.NVLINK_UP.name))
    known = [_number(capabilities.get(gpu, "")) for gpu in its]
    if None in known:
        return every, ["whether the GPU can be reset without the others: its model is not known"]
    if linked and any(one is not None and one < RESET_ALONE for one in known):
        return every, []
    return its, []


def _free(node: NodeSeries) -> set[str]:
    """The GPUs on which no process is, and which nobody was given."""
    taken = {one.label("gpu") for one in node.of(ALLOCATED.name) if one.value}
    idle = {one.label("gpu") for one in node.of(PROCESSES.name) if one.value == 0.0}
    busy = {one.label("gpu") for one in node.of(PROCESSES.name) if one.value > 0.0}
    return idle - busy - taken


def _world(node: NodeSeries, owned: Owned) -> int | None:
    """The most ranks that a process of an owner says its job has."""
    sizes = [
        int(size)
        for one in node.of(PROCESS.name)
        if _owned(one.labels) == owned
        and re.fullmatch(r"[0-9]{1,9}", size := one.label("world_size"))
    ]
    return max(sizes, default=None)


def _owned(labels: Mapping[str, str]) -> Owned:
    return tuple(labels.get(label, "") for label in OWNER_LABELS)


def _printable_name(text: str) -> str:
    return name(text) if text else ""


def _ordered(gpus: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(gpus, key=lambda gpu: (len(gpu), gpu)))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def owners(found: Iterable[SeriesSample]) -> dict[Owned, float]:
    """The owners in an answer about when each was first seen, with the earliest time."""
    first: dict[Owned, float] = {}
    for one in found:
        owned = _owned(one.labels)
        first[owned] = min(first.get(owned, one.value), one.value)
    return first
