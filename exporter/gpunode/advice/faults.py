"""The faults of a node, in the words of the rules: from its daemon, or as Prometheus has them.

A daemon knows one moment, so what takes minutes to be sure of is either in its series with a time,
or is told as not known. Prometheus has it recorded (``gpu:gpunode_gpu_fault:level``), and its
alerts say that it lasted; what it remembers of a fault, the advice remembers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from gpunode.advice.actions import OF_ALERTS, AdvisedAction, of_reason
from gpunode.advice.series import NodeSeries, SeriesNow
from gpunode.driver.nvidia.xids import ACTIONS, CODES, OF_HARDWARE, OF_NVLINK5, UNKNOWN
from gpunode.gpu import health, xids
from gpunode.gpu.activity import GpuActivity
from gpunode.host import kernel_log, nvlink_xids, pcie
from gpunode.loop.metrics import LAST_SUCCESS, UP
from gpunode.metric import Metric
from gpunode.verdict.shortages import XID_REMEMBERED

PAGES, TELLS, OF_A_PROGRAM = 2, 1, 0
"""How bad a fault is: a GPU or node that cannot be used, one to look at, a program that failed."""

LEVELS = {"page": PAGES, "ticket": TELLS, "info": OF_A_PROGRAM}
"""By how urgent the catalogue or an alert is."""

SILENT_FROM = 240.0
"""Seconds without an answer after which a GPU does not answer, as after which the rules page."""

FAULT_LEVEL = "gpu:gpunode_gpu_fault:level"
XID_OF_APPLICATION = "gpu:gpunode_gpu_xid_of_application:age"
SPARE = "node:gpunode_node:spare"
"""Nodes of which a page is a ticket, because nobody uses them or they are cordoned."""

ALERTS = "ALERTS"
UNHEALTHY = "GpuUnhealthy"


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault of a GPU, or of the node where ``gpu`` is empty."""

    reason: str
    action: AdvisedAction
    level: int
    gpu: str = ""
    uuid: str = ""
    since: float | None = None
    """When it happened, in seconds since the epoch; None if nothing tells."""

    not_known: str = ""

    @property
    def takes_out(self) -> bool:
        """Whether the node is to be drained for it."""
        return self.level == PAGES and self.action > AdvisedAction.RESTART


def of_daemon(node: NodeSeries) -> list[NodeFault]:
    """The faults that the series of a daemon show at one moment."""
    return _without_repeats([*_xids(node), *_logged(node), *_links(node), *_health(node)])


def of_rules(node: NodeSeries, fleet_faults: Collection[str]) -> list[NodeFault]:
    """The faults that the rules have recorded, as bad as the alerts that fire for them.

    ``fleet_faults`` are those for which one alert speaks for many nodes of the cluster: no node is
    to be drained for what its neighbours have too. A broken GPU is broken wherever others are.
    """
    firing = [one for one in node.of(ALERTS) if one.label("alertstate") == "firing"]
    spare = any(True for _ in node.of(SPARE))
    worst: dict[tuple[str, str], int] = {}
    for one in firing:
        if one.label("alertname") == UNHEALTHY:
            at = one.label("gpu"), one.label("uuid")
            level = PAGES if spare else LEVELS.get(one.label("severity"), TELLS)
            worst[at] = max(worst.get(at, OF_A_PROGRAM), level)
    found = []
    for one in node.of(FAULT_LEVEL):
        gpu, uuid, reason = one.label("gpu"), one.label("uuid"), one.label("reason")
        level = min(int(one.value), worst.get((gpu, uuid), OF_A_PROGRAM))
        action, not_known = of_reason(reason, int(one.value))
        found.append(NodeFault(reason, action, level, gpu, uuid, None, not_known))
    for one in node.of(XID_OF_APPLICATION):
        if _is_number(xid := one.label("xid")):
            found += _of_xid(int(xid), one, node.time - one.value)
    for one in firing:
        asked = OF_ALERTS.get(one.label("alertname"))
        if asked is not None:
            missing = spare and one.label("part") == "gpu"
            level = PAGES if missing else LEVELS.get(one.label("severity"), TELLS)
            part = one.label("part") or one.label("mountpoint")
            said = " ".join(filter(None, (one.label("alertname"), part)))
            action = asked if level == PAGES else AdvisedAction.LEAVE
            found.append(_shared(NodeFault(said, action, level), one.label("fault"), fleet_faults))
    return _without_repeats(found)


def _shared(fault: NodeFault, kind: str, fleet_faults: Collection[str]) -> NodeFault:
    """A fault, or what is left of it where many nodes have it at once."""
    if kind not in fleet_faults:
        return fault
    told = f"{fault.reason}, as many nodes have at once"
    why = "what the nodes have in common; draining them all helps nobody"
    return NodeFault(told, AdvisedAction.LEAVE, TELLS, fault.gpu, fault.uuid, fault.since, why)


def _xids(node: NodeSeries) -> Iterator[NodeFault]:
    """What the driver reported of late."""
    decoded = {(_gpu_at(node, one)[0], one.label("xid")) for one in _recent(node, nvlink_xids.LAST)}
    for one in _recent(node, xids.XID_TIME):
        xid = one.label("xid")
        if _is_number(xid) and not (int(xid) in OF_NVLINK5 and (one.label("gpu"), xid) in decoded):
            yield from _of_xid(int(xid), one, one.value)


def _is_number(xid: str) -> bool:
    """Whether a label is the number of an XID; the exporter also counts ``other``."""
    return re.fullmatch(r"[0-9]{1,9}", xid) is not None


def _of_xid(number: int, one: SeriesNow, since: float) -> list[NodeFault]:
    code = CODES.get(number)
    if code is not None and code.notify == "none":
        return []
    level = LEVELS[code.notify] if code else TELLS
    reason = f"XID {number}: {code.words if code else ACTIONS[''].words}"
    action, not_known = of_reason(reason, level)
    gpu, uuid = one.label("gpu"), one.label("uuid")
    return [NodeFault(reason, action, level, gpu, uuid, since, not_known)]


def _logged(node: NodeSeries) -> Iterator[NodeFault]:
    """What only the kernel log has: it names the GPU by its place on the bus."""
    for one in _recent(node, kernel_log.LAST_XID):
        xid = one.label("xid")
        if _is_number(xid) and int(xid) in OF_HARDWARE:
            yield from (_at_bus(node, one, fault) for fault in _of_xid(int(xid), one, one.value))


def _at_bus(node: NodeSeries, logged: SeriesNow, fault: NodeFault) -> NodeFault:
    """A fault of the GPU that the kernel log names; of the node where no GPU is there any more."""
    gpu, uuid = _gpu_at(node, logged)
    where = f"which GPU was at {logged.label('bus_id')}"
    return replace(fault, gpu=gpu, uuid=uuid, not_known=fault.not_known if gpu else where)


def _links(node: NodeSeries) -> Iterator[NodeFault]:
    """Errors of NVLink 5 that end all programs on the GPU."""
    for one in _recent(node, nvlink_xids.LAST):
        action, severity, link = one.label("action"), one.label("severity"), one.label("link")
        fatal = action == "reset_gpu" or (severity, action) == ("fatal", UNKNOWN)
        if fatal:
            where = "" if link == "-1" else f" on link {link}"
            reason = f"XID {one.label('xid')}{where}: {ACTIONS['RESET_GPU'].words}"
            yield _at_bus(node, one, NodeFault(reason, AdvisedAction.RESET, PAGES, since=one.value))


def _health(node: NodeSeries) -> Iterator[NodeFault]:
    """What the driver says of each GPU as it is."""
    for one in node.of(health.RECOVERY_ACTION.name):
        if one.label("action") != "none":
            yield _of_gpu(one, f"driver advises {one.label('action')}", PAGES)
    for metric, reason in (
        (health.REMAP_PENDING, "row remap pending"),
        (health.REMAP_FAILED, "row remap failed"),
    ):
        for one in node.of(metric.name):
            if one.value:
                yield _of_gpu(one, reason, TELLS)
    for fault, reason in health.MEMORY_FAULTS.items():
        for one in node.of(health.MEMORY_FAULT.name, fault=fault):
            yield _of_gpu(one, reason, TELLS)
    for one in node.of(health.FABRIC_HEALTHY.name):
        if one.value == 0.0:
            reason = f"NVSwitch fabric: {one.label('part')}"
            yield _not_sure(one, reason, "for how long; the rules wait for five minutes")
    yield from _missing(node)
    for one in node.of(UP.name, source=GpuActivity.name):
        if one.value == 0.0 and one.label("gpu"):
            at = {"gpu": one.label("gpu"), "uuid": one.label("uuid")}
            last = next(node.of(LAST_SUCCESS.name, source=GpuActivity.name, **at), None)
            if last is None or node.time - last.value < SILENT_FROM:
                yield _not_sure(one, "does not answer", "for how long; minutes are no fault yet")
            else:
                yield _of_gpu(one, "does not answer", PAGES, last.value)


def _missing(node: NodeSeries) -> Iterator[NodeFault]:
    """GPUs on the PCI bus that the driver does not list; it may list none for want of a driver."""
    seen = {one.label("bus_id") for one in node.of(health.INFO.name)}
    for one in node.of(pcie.INFO.name, kind="gpu") if seen else ():
        if (bus_id := one.label("bus_id")) not in seen:
            reason = f"GPU at {bus_id} missing"
            yield _not_sure(one, reason, "for how long; the driver does not list it")


def _of_gpu(one: SeriesNow, reason: str, level: int, since: float | None = None) -> NodeFault:
    action, not_known = of_reason(reason, level)
    return NodeFault(reason, action, level, one.label("gpu"), one.label("uuid"), since, not_known)


def _not_sure(one: SeriesNow, reason: str, why: str) -> NodeFault:
    gpu, uuid = one.label("gpu"), one.label("uuid")
    return NodeFault(reason, AdvisedAction.LEAVE, TELLS, gpu, uuid, None, why)


def _recent(node: NodeSeries, metric: Metric) -> Iterator[SeriesNow]:
    """The XIDs of a metric that count by when they occurred."""
    return (one for one in node.of(metric.name) if node.time - one.value < XID_REMEMBERED)


def _gpu_at(node: NodeSeries, logged: SeriesNow) -> tuple[str, str]:
    """The GPU at a place on the bus; empty if there is none, or more than one."""
    here = [
        (one.label("gpu"), one.label("uuid"))
        for one in node.of(health.INFO.name, bus_id=logged.label("bus_id"), parent="")
    ]
    return here[0] if len(here) == 1 else ("", "")


def _without_repeats(found: list[NodeFault]) -> list[NodeFault]:
    """Worst first, and each reason once: the driver and the kernel log tell of the same XID."""
    found.sort(key=lambda one: (-one.level, -one.action, one.gpu, one.reason))
    return list({(one.gpu, one.reason): one for one in reversed(found)}.values())[::-1]
