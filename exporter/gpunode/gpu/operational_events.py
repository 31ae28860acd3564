"""The GPU Operational Events of one GPU: what a driver from R615 on tells of an error in fields.

https://docs.nvidia.com/deploy/gpu-operational-events/
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from typing import ClassVar

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Gpu, OperationalEvent
from gpunode.gpu import GPU
from gpunode.gpu.sensors import FAILED, Sensors
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import Divided, GpuSource, Reading

log = logging.getLogger(__name__)

EVENTS = Metric(
    "gpunode_gpu_operational_events_total",
    "counter",
    "GPU Operational Events from severity `recoverable` on since the daemon started; `origin` is "
    "`primary`, `secondary`, `propagated`, `recovered`, `before` (the start) or `simulated` "
    "(nvmlEventSetWait_v3, driver R615).",
    (*GPU, "category", "severity", "origin"),
)
EVENT_TIME = Metric(
    "gpunode_gpu_operational_event_timestamp_seconds",
    "gauge",
    "Unix time of a GPU Operational Event, with the XID for the same event, if any; the last 32 "
    "of a GPU.",
    (*GPU, "module", "code", "category", "severity", "origin", "xid", "trace"),
)

MAX_EVENTS = 32
"""The newest events of a GPU that are exported; those of a fault for as long as it lasts."""


class GpuOperationalEvents:
    """Takes the events of one whole GPU."""

    name = "gpu_operational_events"
    needs = "a driver of branch R615 or later"
    divided: ClassVar[Divided] = "board"
    metrics = (EVENTS, EVENT_TIME)
    unknowns = (FAILED,)

    def __init__(self, node: Node, gpu: Gpu, settings: Settings) -> None:
        self.clock = node.clock
        self.gpu = gpu
        self.every = settings.gpu.interval
        self.sensors = Sensors()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._last: deque[tuple[OperationalEvent, float]] = deque(maxlen=MAX_EVENTS)

    def read(self) -> Reading:
        """What has come since the last read; nothing of a driver that has no such events."""
        events = self.sensors.read(self.gpu.operational_events)
        now = self.clock.time()
        for event in events or ():
            self._counts[event.category, event.severity, event.origin] += 1
            self._last.append((event, now))
            log.warning(
                "GPU %s (%s): %s event %#06x of %s, %s%s, trace %d",
                *self.gpu.identity.labels,
                event.severity,
                event.code,
                event.module,
                event.origin,
                "" if event.xid is None else f", XID {event.xid}",
                event.trace,
            )
        return Reading(tuple(self._samples()), unread=self.sensors.unread())

    def _samples(self) -> Iterator[Sample]:
        at = self.gpu.identity.labels
        for of, count in self._counts.items():
            yield from EVENTS.at(float(count), *at, *of)
        told: dict[tuple[str, ...], float] = {}
        for event, when in self._last:
            xid = "" if event.xid is None else str(event.xid)
            what = event.module, f"{event.code:#06x}", event.category, event.severity
            told[(*what, event.origin, xid, f"{event.trace:x}")] = when
        for labels, when in told.items():
            yield from EVENT_TIME.at(when, *at, *labels)


GPU_SOURCE: GpuSource = GpuOperationalEvents
