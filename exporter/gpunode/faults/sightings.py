"""What the readings show of the parts of the node: each is well, or has a fault."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpunode.driver.nvidia.xids import CODES, NVLINK5_XIDS, UNKNOWN
from gpunode.faults.fault import Location, Part
from gpunode.gpu import health, nvlink, operational_events, power, xids
from gpunode.gpu.activity import PROCESSES, GpuActivity
from gpunode.host import (
    disk,
    filesystem,
    infiniband,
    kernel_log,
    lustre,
    network,
    nfs,
    nvlink_xids,
    pcie,
    repair,
)
from gpunode.host.drained import DRAINED
from gpunode.metric import Metric
from gpunode.source import Readings, SilentPlace, by_metric

MAX_PARTS = 1024
"""Parts that are remembered: a node of 16 GPUs has some 300 links."""

PROGRAM_ERROR_SECONDS = 900.0
"""Seconds for which an error of a program lasts."""

CONTAINED_SECONDS = 1800.0
"""Seconds for which an error of memory that was contained (XID 94) excuses lost data."""

RECOVERED = ("recovery", "recovery_successful")
"""Kinds of errors of an NVLink: before NVLink 5, and of it."""

CONTAINED = "94"
"""https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"""

SAME_EVENT = 60.0
"""Seconds within which an XID and an operational event with its number are of one error."""

SILENCE_SECONDS = 240.0
"""Seconds without an answer after which a GPU does not answer: a reset takes less."""

MISSING_FROM = 600.0
"""Seconds after which a part is missing that was there: a driver that is loaded anew takes less."""

FABRIC_FROM = 300.0
"""Seconds for which a fabric manager may take to start again."""

UNANSWERED_SECONDS = 120.0
"""Seconds in which a file server answers some request, if it answers any."""

THROTTLED = 0.1
"""Share of the time with lowered clocks from which a GPU is slow for it."""

THROTTLED_SECONDS = 240.0
"""Seconds for which clocks must be low: a test of a generator lowers those of a hall for less."""

PCIE_FROM = 900.0
"""Seconds for which a link must be slow or narrow: it may be while its driver is loaded anew."""

LINK_ERROR_SECONDS = 1800.0
"""Seconds for which uncorrected errors of a PCI Express link last."""

RECOVERY_WINDOW = 3600.0
"""Seconds within which an NVLink that recovers twice does so again and again, and for which that is
told."""

LOCAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs"})
"""Types of filesystems whose inodes and errors are this node's own."""

LEAST_INODES, LEAST_OF_ROOT = 0.001, 0.005
"""Shares of a filesystem's inodes, and of the root's bytes, below which it takes no more files."""

COMMON_SHARE = 0.5
"""At this share of a GPU's links, or of the GPUs, what they do together is not one link's fault."""

LINK_WELL, PORT_WELL, CLOCKS_WELL = 120.0, 300.0, 600.0
"""Seconds for which a link or filesystem, a port, and clocks must be well to be repaired."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen of one part in one respect: ``reason`` is empty where it is well.

    An error that is over in a moment tells when it happened (``since``). It lasts until it is
    repaired, or for ``told_for`` seconds where nothing is to be repaired. What is seen must have
    been so for ``after`` seconds to be a fault, and be well for ``clears`` seconds to be none.
    """

    where: Location
    respect: str
    reason: str = ""
    since: float | None = None
    told_for: float | None = None
    began: float | None = None
    """From when on it is so, where more is known than since when it is seen."""

    after: float = 0.0
    clears: float = 0.0


USED = frozenset(
    {
        *(health.INFO, health.RECOVERY_ACTION, health.REMAP_FAILED, health.REMAP_PENDING),
        *(health.MEMORY_FAULT, health.FABRIC_HEALTHY, health.FABRIC_READY, health.ECC),
        *(
            health.THROTTLED,
            nvlink.NVLINK_UP,
            nvlink.LINK_ERRORS,
            power.DRIVER_ENERGY,
            xids.XID_TIME,
            PROCESSES,
        ),
        operational_events.EVENT_TIME,
        *(kernel_log.LAST_XID, nvlink_xids.LAST, disk.STATE, infiniband.ACTIVE, network.UP),
        *(filesystem.READ_ONLY, filesystem.SIZE, filesystem.AVAILABLE),
        *(filesystem.FILES, filesystem.FILES_FREE, nfs.IN_FLIGHT, nfs.REQUESTS),
        *(
            lustre.IN_FLIGHT,
            lustre.RPCS,
            pcie.INFO,
            pcie.DEGRADED,
            pcie.AER,
            repair.BOOTED,
            repair.REPAIRED,
            DRAINED,
        ),
    }
)
"""The metrics that faults are seen in."""


@dataclass(frozen=True, slots=True)
class NodeValues:
    """The values of series now, and the sources that do not answer."""

    time: float
    values: Mapping[Metric, Mapping[tuple[str, ...], float]]
    silent: tuple[SilentPlace, ...]
    on_bus: Mapping[str, tuple[str, str]]
    """The GPU at each place on the PCI bus, by index and UUID, as last listed."""

    @classmethod
    def of(cls, readings: Readings, on_bus: Mapping[str, tuple[str, str]]) -> NodeValues:
        """What the sources say now."""
        values = by_metric(readings, USED)
        return cls(readings.clock.time(), values, tuple(readings.silent()), on_bus)

    def series(self, metric: Metric) -> Mapping[tuple[str, ...], float]:
        """Every series of a metric."""
        return self.values.get(metric, {})

    def only(self, metric: Metric) -> float | None:
        """The value of a metric that has one series at most."""
        return next(iter(self.series(metric).values()), None)

    def place(self, uuid: str) -> str:
        """Where on the PCI bus a GPU is."""
        return next((bus_id for bus_id, (_, one) in self.on_bus.items() if one == uuid), "")

    def gpu(self, gpu: str, uuid: str, part: Part = "gpu", name: str | None = None) -> Location:
        """A GPU, or its part of this name."""
        return Location(gpu, uuid, part, self.place(uuid) if name is None else name)


@dataclass(slots=True)
class PriorState:
    """Readings from before, which some faults need."""

    well: dict[Location, None] = field(default_factory=dict)
    """Parts that were there and worked: only those can break."""

    counts: dict[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)
    """Counters, each with when it last grew."""

    def works(self, where: Location) -> None:
        """Remember that a part works."""
        _remember(self.well, stable_location(where), None)

    def worked(self, where: Location) -> bool:
        """Whether a part was seen to work."""
        return stable_location(where) in self.well

    def count(self, key: tuple[str, ...], value: float, time: float) -> tuple[float, float]:
        """Remember a counter."""
        _remember(self.counts, key, (value, time))
        return value, time


def stable_location(where: Location) -> Location:
    """A part whatever its GPU is numbered; a place for a GPU, whichever is in it."""
    return where._replace(gpu="", uuid="" if where.part == "gpu" else where.uuid)


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Of too many, as where mounts come and go, what was seen longest ago is forgotten."""
    known.pop(key, None)
    known[key] = value
    while len(known) > MAX_PARTS:
        del known[next(iter(known))]


K = TypeVar("K")
V = TypeVar("V")
Look = Callable[[NodeValues, PriorState], Iterator[Sighting]]


def _node_location(part: Part, name: str) -> Location:
    return Location("", "", part, name)


def xid_events(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """XIDs by the driver, and by the kernel log, which also has those of a GPU that is lost."""
    events = {(gpu, uuid, xid): at for (gpu, uuid, xid), at in seen.series(xids.XID_TIME).items()}
    for (bus_id, xid), at in seen.series(kernel_log.LAST_XID).items():
        gpu, uuid = seen.on_bus.get(bus_id, ("", bus_id))
        events.setdefault((gpu, uuid, xid), at)
    of_driver = operational(seen)
    for event in of_driver:
        if event.xid and event.lasts:
            events.setdefault((event.gpu, event.uuid, event.xid), event.at)
    decoded = {
        (*seen.on_bus.get(bus_id, ("", bus_id)), xid)
        for bus_id, xid, *_ in seen.series(nvlink_xids.LAST)
    }
    for (gpu, uuid, xid), at in events.items():
        number = int(xid) if xid.isdecimal() else None
        if number is None or (number in NVLINK5_XIDS and (gpu, uuid, xid) in decoded):
            continue
        code = CODES.get(number)
        if code is None or code.notify != "none":
            where = seen.gpu(gpu, uuid) if gpu else Location("", "", "gpu", uuid)
            told_for = None if code and code.notify == "page" else PROGRAM_ERROR_SECONDS
            reason = f"xid_{xid}{_propagated(of_driver, uuid, xid, at)}"
            yield Sighting(where, f"xid_{xid}", reason, at, told_for)


def fatal_links(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """Errors of NVLink 5 whose line says that the GPU is to be reset, or that all links go down."""
    of_driver = operational(seen)
    for (bus_id, xid, link, severity, action), at in seen.series(nvlink_xids.LAST).items():
        if action == "reset_gpu" or (severity, action) == ("fatal", UNKNOWN):
            gpu, uuid = seen.on_bus.get(bus_id, ("", ""))
            where = Location(gpu, uuid, "nvlink", "" if link == "-1" else link)
            respect = f"xid_{xid}_fatal"
            reason = f"{respect}{_propagated(of_driver, uuid, xid, at)}"
            yield Sighting(where, respect, reason, at)


@dataclass(frozen=True, slots=True)
class Operational:
    """A GPU Operational Event, and what it is to a node that has others of its trace."""

    gpu: str
    uuid: str
    module: str
    code: str
    severity: str
    xid: str
    at: float
    origin: str
    beside: bool
    """Whether the node has the primary event of its trace."""

    @property
    def lasts(self) -> bool:
        """Whether the error is not a consequence of another, and not repaired."""
        if self.origin == "secondary":
            return not self.beside
        return self.origin in ("primary", "propagated")


def operational(seen: NodeValues) -> list[Operational]:
    """The operational events of the node, each beside the primary of its trace if that is here."""
    told = [
        (dict(zip(operational_events.EVENT_TIME.labels, labels, strict=True)), at)
        for labels, at in seen.series(operational_events.EVENT_TIME).items()
    ]
    primary = {event["trace"] for event, _ in told if event["origin"] == "primary"}
    return [
        Operational(
            *(event["gpu"], event["uuid"], event["module"], event["code"]),
            *(event["severity"], event["xid"], at, event["origin"]),
            event["origin"] != "primary" and event["trace"] in primary,
        )
        for event, at in told
    ]


def operational_faults(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """Operational events without an XID; those with one are faults of ``xid_events``."""
    for event in operational(seen):
        if event.lasts and not event.xid:
            fatal = event.severity == "fatal"
            respect = f"event_{event.module}_{event.code}{'_fatal' if fatal else ''}"
            reason = f"{respect}{'_propagated' if event.beside else ''}"
            where = seen.gpu(event.gpu, event.uuid)
            yield Sighting(
                where, respect, reason, event.at, None if fatal else PROGRAM_ERROR_SECONDS
            )


def _propagated(events: list[Operational], uuid: str, xid: str, at: float) -> str:
    """What marks a fault that came from another of this node: that one is told of already."""
    beside = any(
        event.beside and abs(event.at - at) <= SAME_EVENT
        for event in events
        if (event.uuid, event.xid) == (uuid, xid)
    )
    return "_propagated" if beside else ""


def answers(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """GPUs that do not answer their driver."""
    lost = {
        (one.place.gpu, one.place.uuid)
        for one in seen.silent
        if one.source == GpuActivity.name and one.place.gpu
    }
    known = {(gpu, uuid) for gpu, uuid, *_ in seen.series(PROCESSES)}
    for gpu, uuid in lost | known:
        reason = "no_answer" if (gpu, uuid) in lost else ""
        yield Sighting(seen.gpu(gpu, uuid), "answer", reason, after=SILENCE_SECONDS)


def lost_data(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """Uncorrectable errors of memory; one that was contained has cost one program its data."""
    for (gpu, uuid, kind), count in seen.series(health.ECC).items():
        key = (health.ECC.name, gpu, uuid, kind)
        known = before.counts.get(key)
        before.count(key, count, seen.time)
        if kind != "uncorrected" or known is None or count <= known[0]:
            continue
        contained = seen.series(xids.XID_TIME).get((gpu, uuid, CONTAINED))
        where = seen.gpu(gpu, uuid)
        if contained is not None and seen.time - contained < CONTAINED_SECONDS:
            reason = "memory_lost_data_contained"
            yield Sighting(where, reason, reason, since=seen.time, told_for=CONTAINED_SECONDS)
        else:
            reason = "memory_lost_data"
            yield Sighting(where, reason, reason, since=seen.time)


def driver_advice(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """What the driver asks for; a reset for a row of memory can wait, and so can programs' ends.

    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html#row-remapping
    """
    for gpu, uuid, action in seen.series(health.RECOVERY_ACTION):
        reason = "" if action == "none" else f"driver_advises_{action}"
        if action in ("reset", "drain_and_reset"):
            for_a_row = seen.series(health.REMAP_PENDING).get((gpu, uuid))
            reason = "driver_advises_reset_for_a_row" if for_a_row else reason
        yield Sighting(seen.gpu(gpu, uuid), "advice", reason)


def memory_rows(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """Rows of memory that wait for a reset, or for another GPU."""
    for metric, reason in (
        (health.REMAP_PENDING, "row_remap_pending"),
        (health.REMAP_FAILED, "row_remap_failed"),
    ):
        for (gpu, uuid), there in seen.series(metric).items():
            yield Sighting(seen.gpu(gpu, uuid), reason, reason if there else "")
    worn = {(gpu, uuid): fault for gpu, uuid, fault in seen.series(health.MEMORY_FAULT)}
    for gpu, uuid in {(gpu, uuid) for gpu, uuid, _ in seen.series(health.ECC)} | worn.keys():
        yield Sighting(seen.gpu(gpu, uuid), "memory", worn.get((gpu, uuid), ""))


def fabric(seen: NodeValues, _: PriorState) -> Iterator[Sighting]:
    """Parts of the NVSwitch fabric that are not healthy."""
    for (gpu, uuid, part), healthy in seen.series(health.FABRIC_HEALTHY).items():
        where = seen.gpu(gpu, uuid, "fabric", "")
        reason = "" if healthy else part
        yield Sighting(where, part, reason, after=FABRIC_FROM)
    for (gpu, uuid), ready in seen.series(health.FABRIC_READY).items():
        where, reason = seen.gpu(gpu, uuid, "fabric", ""), "" if ready else "not_joined"
        yield Sighting(where, "joined", reason, after=FABRIC_FROM)


def throttled(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """GPUs whose clocks are lowered by heat or by the power supply."""
    parts: dict[str, Part] = {
        "sw_thermal": "thermal",
        "hw_thermal": "thermal",
        "hw_power_brake": "power",
    }
    for (gpu, uuid, reason), seconds in seen.series(health.THROTTLED).items():
        if reason not in parts:
            continue
        key = (health.THROTTLED.name, gpu, uuid, reason)
        known = before.counts.get(key)
        if known is None or seconds < known[0]:
            before.count(key, seconds, seen.time)
            continue
        grew, passed = seconds - known[0], seen.time - known[1]
        if passed < 60.0 and grew < THROTTLED * 60.0:
            continue
        before.count(key, seconds, seen.time)
        low = reason if grew >= THROTTLED * passed else ""
        where = seen.gpu(gpu, uuid, parts[reason], "")
        yield Sighting(where, reason, low, after=THROTTLED_SECONDS, clears=CLOCKS_WELL)


def links(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """NVLinks and ports that were up and are down: those that never were are not connected."""
    up: list[tuple[Location, float]] = [
        (Location(gpu, uuid, "nvlink", link), value)
        for (gpu, uuid, link), value in seen.series(nvlink.NVLINK_UP).items()
    ]
    for metric in (infiniband.ACTIVE, network.UP):
        up += [
            (_node_location("network", "/".join(at)), v) for at, v in seen.series(metric).items()
        ]
    for where, works in up:
        if works:
            before.works(where)
        if before.worked(where):
            clears = LINK_WELL if where.part == "nvlink" else PORT_WELL
            yield Sighting(where, "link", "" if works else "down", clears=clears)


def recoveries(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """NVLinks that recover twice within an hour while the others of the GPU do not.

    https://github.com/marin-community/marin/issues/9086
    """
    links: dict[tuple[str, str], list[str]] = {}
    for gpu, uuid, link in seen.series(nvlink.NVLINK_UP):
        links.setdefault((gpu, uuid), []).append(link)
    again: dict[tuple[str, str], list[str]] = {}
    for at, each in links.items():
        for link in each:
            errors = seen.series(nvlink.LINK_ERRORS)
            count = sum(errors.get((*at, link, kind), 0.0) for kind in RECOVERED)
            key = (nvlink.LINK_ERRORS.name, *at, link)
            known, grew = before.counts.get(key, (count, -RECOVERY_WINDOW))
            if count > known:
                if count > known + 1 or seen.time - grew < RECOVERY_WINDOW:
                    again.setdefault(at, []).append(link)
                before.count(key, count, seen.time)
            elif key not in before.counts or count < known:
                before.count(key, count, grew)
    if len(again) > 1 and len(again) >= COMMON_SHARE * len(links):
        return
    for at, found in again.items():
        for link in found if len(found) < COMMON_SHARE * len(links[at]) else ():
            where = Location(*at, "nvlink", link)
            yield Sighting(where, "recovers", "recovers", seen.time, told_for=RECOVERY_WINDOW)


def pcie_links(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """PCI Express links that lack lanes or speed, or have uncorrected errors."""
    for (bus_id, _), degraded in seen.series(pcie.DEGRADED).items():
        where = _bus_location(seen, bus_id)
        reason = "degraded" if degraded else ""
        yield Sighting(where, "link", reason, after=PCIE_FROM, clears=LINK_WELL)
    for (bus_id, kind, severity), count in seen.series(pcie.AER).items():
        key = (pcie.AER.name, bus_id, kind, severity)
        known, _ = before.counts.get(key, (count, 0.0))
        before.count(key, count, seen.time)
        if severity != "correctable" and count > known:
            where, reason = _bus_location(seen, bus_id), "uncorrected_errors"
            yield Sighting(where, reason, reason, seen.time, told_for=LINK_ERROR_SECONDS)


def _bus_location(seen: NodeValues, bus_id: str) -> Location:
    gpu, uuid = seen.on_bus.get(bus_id, ("", ""))
    return Location(gpu, uuid, "pcie", bus_id)


def disks(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """Disks that do not work."""
    for (controller,), live in seen.series(disk.STATE).items():
        where = _node_location("disk", controller)
        before.works(where)
        yield Sighting(where, "disk", "" if live else "not_live")


def missing_parts(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """GPUs, disks and RDMA ports that were there and are not, while others of their kind are."""
    listed = {bus_id for _, _, bus_id in whole_gpus(seen)}
    on_bus = {bus_id for bus_id, kind in seen.series(pcie.INFO) if kind == "gpu"}
    for bus_id in listed:
        before.works(Location("", "", "gpu", bus_id))
    there: dict[Part, Collection[str]] = {
        "gpu": listed,
        "disk": {controller for (controller,) in seen.series(disk.STATE)},
        "network": {"/".join(at) for at in seen.series(infiniband.ACTIVE)},
    }
    for where in dict.fromkeys((*before.well, *(Location("", "", "gpu", at) for at in on_bus))):
        present = there.get(where.part)
        if present and not (where.part == "network" and "/" not in where.name):
            if where.part == "gpu":
                where = Location(*seen.on_bus.get(where.name, ("", "")), "gpu", where.name)
            reason = "" if where.name in present else "missing"
            yield Sighting(where, "there", reason, after=MISSING_FROM)


def filesystems(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """Filesystems that could be written to and are read-only or full, or do not answer.

    Those that tenants mount for themselves are theirs, and a volume that pods share is mounted by
    some to be read. Some tell that they have no inodes left and never had any.
    """
    for (mountpoint, fstype), read_only in seen.series(filesystem.READ_ONLY).items():
        if fstype not in LOCAL_FILESYSTEMS and not mountpoint.startswith("/"):
            continue
        where = _node_location("filesystem", mountpoint)
        if not read_only and not fstype.startswith("fuse"):
            before.works(where)
        if before.worked(where):
            reason = "readonly" if read_only else ""
            yield Sighting(where, "writable", reason, clears=LINK_WELL)
    for at, size in seen.series(filesystem.SIZE).items():
        mountpoint, fstype = at
        inodes = seen.series(filesystem.FILES).get(at, 0.0)
        free = seen.series(filesystem.FILES_FREE).get(at, inodes)
        available = seen.series(filesystem.AVAILABLE).get(at, size)
        had_inodes = _node_location("filesystem", f"inodes of {mountpoint}")
        if free > LEAST_INODES * inodes:
            before.works(had_inodes)
        no_inodes = free < LEAST_INODES * inodes and before.worked(had_inodes)
        full = no_inodes or (mountpoint == "/" and available < LEAST_OF_ROOT * size)
        reason = "full" if full else ""
        yield Sighting(_node_location("filesystem", mountpoint), "room", reason, clears=LINK_WELL)
    answered = {mountpoint for mountpoint, _ in seen.series(filesystem.SIZE)}
    silent = {
        one.place.mountpoint
        for one in seen.silent
        if one.source == filesystem.FilesystemSpace.name and one.place.mountpoint
    }
    for mountpoint in answered | silent:
        where = _node_location("filesystem", mountpoint)
        if before.worked(where):
            reason = "unanswering" if mountpoint in silent else ""
            yield Sighting(where, "space", reason, after=60.0, clears=LINK_WELL)


def file_servers(seen: NodeValues, before: PriorState) -> Iterator[Sighting]:
    """File servers that answer none of the requests in flight."""
    for waiting, done in ((nfs.IN_FLIGHT, nfs.REQUESTS), (lustre.IN_FLIGHT, lustre.RPCS)):
        in_flight, completed = (_sum_by_first(seen.series(metric)) for metric in (waiting, done))
        for name, requests in in_flight.items():
            key, count = (done.name, name), completed.get(name, 0.0)
            known = before.counts.get(key)
            if known is None or count != known[0] or not requests:
                known = before.count(key, count, seen.time)
            late = requests > 0 and seen.time - known[1] >= UNANSWERED_SECONDS
            reason = "unanswering" if late else ""
            where = _node_location("filesystem", name)
            yield Sighting(where, "server", reason, began=known[1], clears=LINK_WELL)


def _sum_by_first(series: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (first, *_), value in series.items():
        sums[first] = sums.get(first, 0.0) + value
    return sums


def whole_gpus(seen: NodeValues) -> Iterator[tuple[str, str, str]]:
    """The index, UUID and place of each GPU, without MIG instances."""
    for labels in seen.series(health.INFO):
        found = dict(zip(health.INFO.labels, labels, strict=True))
        if not found["parent"]:
            yield found["gpu"], found["uuid"], found["bus_id"]


CHECKS: Collection[Look] = (
    *(
        xid_events,
        fatal_links,
        operational_faults,
        answers,
        lost_data,
        driver_advice,
        memory_rows,
        fabric,
    ),
    *(throttled, links, recoveries, pcie_links, disks, missing_parts, filesystems, file_servers),
)
