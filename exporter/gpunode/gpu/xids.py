"""Counts the XID errors that the driver reports for one GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gpunode.driver.driver import Gpu
from gpunode.driver.nvidia.xids import CODES, UNREAD_XID
from gpunode.driver.vendors import VENDORS
from gpunode.gpu import GPU
from gpunode.gpu.sensors import Sensors
from gpunode.metric import Metric, Sample
from gpunode.node.node import Clock
from gpunode.source import MAX_ITEMS, MORE_XIDS
from gpunode.unread import Unread

log = logging.getLogger(__name__)

XIDS = Metric(
    "gpunode_gpu_xid_errors_total",
    "counter",
    "XID errors since the daemon started (nvmlEventSetWait).",
    (*GPU, "xid"),
)
XID_TIME = Metric(
    "gpunode_gpu_xid_last_timestamp_seconds",
    "gauge",
    "Unix time of the last error with this XID.",
    (*GPU, "xid"),
)
METRICS = (XIDS, XID_TIME)


class Xids:
    """Collects the XID events of one GPU."""

    def __init__(self, gpu: Gpu, clock: Clock, sensors: Sensors) -> None:
        self.gpu = gpu
        self.sensors = sensors
        self.labels = gpu.identity.labels
        self.clock = clock
        self._counts = dict.fromkeys(map(str, VENDORS[gpu.identity.vendor].watched_errors), 0)
        self._times: dict[str, float] = {}
        self._samples: tuple[Sample, ...] = ()
        """What to export since the last event."""

        self._unread: list[Unread] = []

    def samples(self) -> Iterator[Sample]:
        """The counts, with events since the last call; none if the GPU reports no events."""
        events = self.sensors.read(self.gpu.xids)
        if events is None:
            return
        for event in events:
            self._count(event.number)
        if events or not self._samples:
            at = self.labels
            self._samples = (
                *(Sample(XIDS, (*at, xid), float(many)) for xid, many in self._counts.items()),
                *(Sample(XID_TIME, (*at, xid), time) for xid, time in self._times.items()),
            )
        yield from self._samples

    def unread(self) -> tuple[Unread, ...]:
        """XIDs since the last call that the catalogue does not have, or that are one too many."""
        found, self._unread = tuple(self._unread), []
        return found

    def _count(self, number: int) -> None:
        if number not in CODES:
            self._unread.append(UNREAD_XID.seen(f"XID {number}"))
        xid = str(number)
        if xid not in self._counts and len(self._counts) >= MAX_ITEMS:
            self._unread.append(MORE_XIDS.seen(f"XID {xid}, after {MAX_ITEMS} different ones"))
            xid = "other"
        self._counts[xid] = self._counts.get(xid, 0) + 1
        self._times[xid] = self.clock.time()
        log.warning("GPU %s (%s): XID %d", *self.labels, number)
