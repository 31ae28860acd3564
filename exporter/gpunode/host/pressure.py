"""Time that tasks on the node waited for CPU, memory and I/O: pressure stall information (PSI).

https://docs.kernel.org/accounting/psi.html
"""

from __future__ import annotations

import errno

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

WAITING = Metric(
    "gpunode_pressure_waiting_seconds_total",
    "counter",
    "Time when at least one task waited for the resource (/proc/pressure/RESOURCE: some).",
    ("resource",),
)
STALLED = Metric(
    "gpunode_pressure_stalled_seconds_total",
    "counter",
    "Time when all non-idle tasks waited for the resource (/proc/pressure/RESOURCE: full).",
    ("resource",),
)

RESOURCES = ("cpu", "io", "memory")
SHARES = {"some": WAITING, "full": STALLED}
"""The metric for each of the kernel's keywords."""


def parse(text: str) -> dict[str, float]:
    """Seconds waited, by keyword, from a pressure file of the node or a cgroup.

    Raises ``ValueError`` if a line is malformed.
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
    """Reads the pressure on the whole node; emits nothing if the kernel lacks PSI."""

    name = "pressure"
    needs = (
        "Linux with pressure stall information: CONFIG_PSI, and psi=1 on the command line of "
        "the kernel where it is off by default"
    )
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
                # For the whole node, full CPU pressure is undefined and always 0.
                if (resource, share) != ("cpu", "full")
            )
        )

    def _seconds(self, resource: str) -> dict[str, float]:
        try:
            return parse(self.node.read_text(f"/proc/pressure/{resource}"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            # Compiled in and off until it is asked for with psi=1, as in RHEL 8.
            # https://docs.kernel.org/admin-guide/kernel-parameters.html
            if error.errno == errno.EOPNOTSUPP:
                return {}
            raise


NODE_SOURCE: NodeSource = Pressure
