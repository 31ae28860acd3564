"""Time that tasks of the node waited for CPU, memory and I/O (pressure stall information).

https://docs.kernel.org/accounting/psi.html
"""

from __future__ import annotations

from gpunode.config import Settings
from gpunode.host.counter import counter
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

WAITING = Metric(
    "gpunode_pressure_waiting_seconds_total",
    "counter",
    "Time during which at least one task waited for the resource (/proc/pressure/RESOURCE: some).",
    ("resource",),
)
STALLED = Metric(
    "gpunode_pressure_stalled_seconds_total",
    "counter",
    "Time during which no task could run because all waited for the resource "
    "(/proc/pressure/RESOURCE: full).",
    ("resource",),
)

RESOURCES = ("cpu", "io", "memory")
SHARES = {"some": WAITING, "full": STALLED}
"""The words of the kernel, and the metric of each."""


def parse(text: str) -> dict[str, float]:
    """Seconds waited by share, from a pressure file of the node or of a cgroup.

    Raises ``ValueError`` where a line is not one of such a file.
    """
    found = {}
    for line in text.splitlines():
        share, _, total = line.partition(" ")
        total = total.rpartition(" total=")[2]
        if share not in SHARES or not total:
            raise ValueError(f"not a line of a pressure file: {line[:80]!r}")
        found[share] = counter(total) / 1e6
    return found


class Pressure:
    """Reads the pressure of the whole node; a kernel without PSI has none."""

    name = "pressure"
    metrics = (WAITING, STALLED)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        return Reading(
            tuple(
                Sample(SHARES[share], (resource,), seconds)
                for resource in RESOURCES
                for share, seconds in self._seconds(resource).items()
                # Without a cgroup to look at, no CPU wait is ever full: it is always 0.
                if (resource, share) != ("cpu", "full")
            )
        )

    def _seconds(self, resource: str) -> dict[str, float]:
        try:
            return parse(self.node.read_text(f"/proc/pressure/{resource}"))
        except FileNotFoundError:
            return {}


NODE_SOURCE: NodeSource = Pressure
