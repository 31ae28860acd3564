"""What the node is short of: compute, I/O and communication.

The figures that GPUs wait for, each beside the limit from which the verdicts take it for a cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpunode.config.daemon import Settings
from gpunode.gpu import nvlink, units
from gpunode.host import (
    cpu,
    disk,
    filesystem,
    infiniband,
    lustre,
    memory,
    network,
    nfs,
    node_name,
    pressure,
    shm,
)
from gpunode.metric import Metric
from gpunode.nccl import ras
from gpunode.node.node import Node
from gpunode.source import Reading, Readings
from gpunode.verdict.causes.data import (
    CPU_PRESSURE,
    DISK_BUSY,
    IO_PRESSURE,
    REMOTE,
    REMOTE_LATENCY,
    REMOTE_SHARE,
    SHM_FULL,
)
from gpunode.verdict.facts import Facts, Snapshot

Column = Literal["compute", "io", "communication"]
Unit = Literal["ratio", "seconds", "bytes_per_second", "bytes", "number"]

READ_INTERVAL = 10.0
"""Seconds between reads; most sources of the node are read as often."""

PERIOD = 30.0
"""Seconds over which rates are taken."""


HOST_MEMORY_FULL = 0.95
"""At this share of the node's memory in use, caches not counted, the next job may not fit."""

FILESYSTEM_FREE = 0.1
"""Below this share of free space, a filesystem is nearly full."""

STORAGE = "data_loading_storage"
"""The verdict on GPUs that wait for a disk or a file server."""


@dataclass(frozen=True, slots=True)
class NodeFigure:
    """One figure of the node; ``short`` if it is beyond its limit.

    ``of`` is what there is of it in all, where that is known; ``what`` names the part that has it.
    ``cause`` is the verdict that tells the same of the GPUs that it harms.
    """

    column: Column
    name: str
    value: float
    unit: Unit
    of: float | None = None
    limit: float | None = None
    short: bool = False
    what: str = ""
    remedy: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The figures of the node."""

    node: str
    figures: tuple[NodeFigure, ...]


Look = Callable[[Facts], Iterable[NodeFigure]]


def _largest(found: Iterable[tuple[float, str]]) -> tuple[float, str] | None:
    return max(found, default=None)


def _sum(facts: Facts, metric: Metric) -> float | None:
    """The sum of a gauge over all its series; None without one."""
    found = [facts.now(metric, *labels) or 0.0 for labels in facts.series(metric)]
    return sum(found) if found else None


def _rates(facts: Facts, metric: Metric) -> Iterator[tuple[tuple[str, ...], float]]:
    """The increase per second of every series of a counter that is known."""
    for labels in facts.series(metric):
        rate = facts.rate(metric, *labels)
        if rate is not None:
            yield labels, rate


def _cores(facts: Facts) -> Iterator[NodeFigure]:
    cores, busy = _sum(facts, cpu.CORES), _sum(facts, cpu.BUSY_CORES)
    if cores and busy is not None:
        yield NodeFigure("compute", "CPU cores that are always busy", busy, "number", cores)


def _pressure(
    column: Column, resource: str, name: str, limit: float, remedy: str, cause: str
) -> Look:
    def look(facts: Facts) -> Iterator[NodeFigure]:
        share = facts.rate(pressure.WAITING, resource)
        if share is not None:
            short = share >= limit
            yield NodeFigure(
                *(column, name, min(1.0, share), "ratio", 1.0, limit, short),
                remedy=remedy,
                cause=cause,
            )

    return look


def _memory(facts: Facts) -> Iterator[NodeFigure]:
    size, available = facts.now(memory.SIZE), facts.now(memory.AVAILABLE)
    if size and available is not None:
        used = size - available
        yield NodeFigure(
            "compute",
            "Host memory in use",
            used,
            "bytes",
            size,
            HOST_MEMORY_FULL * size,
            used >= HOST_MEMORY_FULL * size,
            remedy="Raise the job's memory limit or move a job; fewer loader workers need less.",
        )


def _disks(facts: Facts) -> Iterator[NodeFigure]:
    busiest = _largest((rate, labels[0]) for labels, rate in _rates(facts, disk.BUSY))
    if busiest is not None:
        yield NodeFigure(
            "io",
            "Busiest disk",
            min(1.0, busiest[0]),
            "ratio",
            1.0,
            DISK_BUSY,
            busiest[0] >= DISK_BUSY,
            busiest[1],
            "See what reads or writes it (`iotop`). Cache the data, or move it to another disk.",
            STORAGE,
        )
    moved = [rate for _, rate in _rates(facts, disk.BYTES)]
    if moved:
        yield NodeFigure("io", "Disks read and write", sum(moved), "bytes_per_second")


def _servers(facts: Facts) -> Iterator[NodeFigure]:
    slowest: tuple[float, str] | None = None
    for seconds, requests in REMOTE:
        waited: dict[str, float] = {}
        done: dict[str, float] = {}
        for metric, into in ((seconds, waited), (requests, done)):
            for labels, rate in _rates(facts, metric):
                into[labels[0]] = into.get(labels[0], 0.0) + rate
        busy = (
            (w / done[at], at) for at, w in waited.items() if w >= REMOTE_SHARE and done.get(at)
        )
        slowest = _largest([*busy, *([slowest] if slowest else [])])
    if slowest is not None:
        yield NodeFigure(
            "io",
            "Slowest file server, per request",
            slowest[0],
            "seconds",
            None,
            REMOTE_LATENCY,
            slowest[0] >= REMOTE_LATENCY,
            slowest[1],
            "Call who runs the file server; larger files and caching on local disks ask it less.",
            STORAGE,
        )
    moved = [rate for m in (nfs.BYTES, lustre.BYTES) for _, rate in _rates(facts, m)]
    if moved:
        yield NodeFigure("io", "File servers read and written", sum(moved), "bytes_per_second")


def _filesystems(facts: Facts) -> Iterator[NodeFigure]:
    used, size = facts.now(shm.USED), facts.now(shm.SIZE)
    if size and used is not None:
        yield NodeFigure(
            "io",
            "/dev/shm in use",  # noqa: S108 not a file of ours
            used,
            "bytes",
            size,
            SHM_FULL * size,
            used >= SHM_FULL * size,
            remedy="Remove what dead processes left in it.",
            cause="shm",
        )
    taken = []
    for labels in facts.series(filesystem.SIZE):
        total = facts.now(filesystem.SIZE, *labels)
        free = facts.now(filesystem.AVAILABLE, *labels)
        if total and free is not None and labels[0] != "/dev/shm":  # noqa: S108 reported above
            taken.append((1.0 - free / total, labels[0]))
    fullest = _largest(taken)
    if fullest is not None:
        yield NodeFigure(
            "io",
            "Fullest filesystem",
            fullest[0],
            "ratio",
            1.0,
            1.0 - FILESYSTEM_FREE,
            fullest[0] >= 1.0 - FILESYSTEM_FREE,
            fullest[1],
            "Remove old checkpoints and caches, or enlarge it.",
        )


def _links(facts: Facts) -> Iterator[NodeFigure]:
    """NVLinks and RDMA ports that are up; which should be and are not, is a matter of faults."""
    for name, metric in (
        ("NVLinks up", nvlink.NVLINK_UP),
        ("RDMA ports active", infiniband.ACTIVE),
    ):
        states = [facts.now(metric, *labels) for labels in facts.series(metric)]
        if states:
            up = float(sum(map(bool, states)))
            yield NodeFigure("communication", name, up, "number", len(states))


def _traffic(facts: Facts) -> Iterator[NodeFigure]:
    for name, metric in (
        ("NVLink, all GPUs", units.NVLINK_BYTES),
        ("PCIe, all GPUs", units.PCIE_BYTES),
    ):
        moved = [rate for _, rate in _rates(facts, metric)]
        if moved:
            yield NodeFigure("communication", name, sum(moved), "bytes_per_second")
    for name, metric, speed in (
        ("Busiest RDMA port", infiniband.BYTES, infiniband.RATE),
        ("Busiest network interface", network.BYTES, network.SPEED),
    ):
        rates = ((rate, labels) for labels, rate in _rates(facts, metric))
        busiest = max(rates, default=None)
        if busiest is not None:
            at = busiest[1][:-1]
            of = facts.now(speed, *at)
            what = "/".join(at)
            yield NodeFigure("communication", name, busiest[0], "bytes_per_second", of, what=what)


def _nccl(facts: Facts) -> Iterator[NodeFigure]:
    stalled, known = facts.now(ras.STALLED), facts.now(ras.COMMUNICATORS)
    if stalled is not None and known:
        yield NodeFigure(
            "communication",
            "NCCL communicators that stall",
            stalled,
            "number",
            known,
            None,
            stalled > 0,
            remedy="The GPUs above say who is waited for; keep the stacks (`gpunode stacks`), then "
            "restart the job.",
        )


SHORTAGE_CHECKS: tuple[Look, ...] = (
    _cores,
    _pressure(
        "compute",
        "cpu",
        "Time in which tasks wait for a CPU",
        CPU_PRESSURE,
        "Give the job more CPUs, or move the neighbour that takes them.",
        "data_loading_cpu",
    ),
    _memory,
    _pressure(
        "io",
        "io",
        "Time in which tasks wait for storage",
        IO_PRESSURE,
        "Look for the slow disk or file server below.",
        STORAGE,
    ),
    _disks,
    _servers,
    _filesystems,
    _links,
    _traffic,
    _nccl,
)


USED = frozenset(
    {
        *(cpu.CORES, cpu.BUSY_CORES, memory.SIZE, memory.AVAILABLE, pressure.WAITING),
        *(disk.BUSY, disk.BYTES, nfs.BYTES, lustre.BYTES),
        *(metric for pair in REMOTE for metric in pair),
        *(shm.USED, shm.SIZE, filesystem.SIZE, filesystem.AVAILABLE),
        *(nvlink.NVLINK_UP, infiniband.ACTIVE, infiniband.BYTES, infiniband.RATE),
        *(network.BYTES, network.SPEED, units.NVLINK_BYTES, units.PCIE_BYTES),
        *(ras.STALLED, ras.COMMUNICATORS),
    }
)
"""The metrics that the figures rest on; ``Facts`` knows no others."""


class Shortages:
    """Reports what the node is short of."""

    name = "shortages"
    every = READ_INTERVAL
    metrics: tuple[Metric, ...] = ()

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self._history: deque[Snapshot] = deque(maxlen=round(PERIOD / READ_INTERVAL) + 1)

    def read(self, readings: Readings) -> Reading:
        clock = readings.clock
        self._history.append(Snapshot(clock.monotonic(), readings.values(USED)))
        facts = Facts(tuple(self._history), USED, clock.time())
        figures = tuple(figure for look in SHORTAGE_CHECKS for figure in look(facts))
        return Reading((), Shortage(node_name.name(self.node, self.settings), figures))
