"""Time that tasks of the node waited for CPU, memory and I/O (pressure stall information).

https://docs.kernel.org/accounting/psi.html
"""

from __future__ import annotations

from gpunode.host.counter import counter
from gpunode.metric import Metric, Sample
from gpunode.node import Node
from gpunode.source import Reading

PRESSURE = Metric(
    "gpunode_pressure_seconds_total",
    "counter",
    "Time during which some or all tasks that had work waited for a resource "
    "(/proc/pressure/RESOURCE).",
    ("resource", "share"),
)

RESOURCES = ("cpu", "io", "memory")
SHARES = ("some", "full")


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
    device = gpu = ""
    metrics = (PRESSURE,)

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.every = interval

    def read(self) -> Reading:
        return Reading(
            tuple(
                Sample(PRESSURE, (resource, share), seconds)
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
