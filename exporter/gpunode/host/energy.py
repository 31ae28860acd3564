"""Energy of processors and memory, which the processors measure (RAPL).

https://docs.kernel.org/power/powercap/powercap.html; AMD's processors appear under the same names:
https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/drivers/powercap/intel_rapl_msr.c
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.metric import Metric
from gpunode.node.kernel import counter
from gpunode.node.node import Node, names_in
from gpunode.source import NodeSource, Reading, bounded, limit
from gpunode.unread import Unknown, Unread, shape

ENERGY = Metric(
    "gpunode_cpu_energy_joules_total",
    "counter",
    "Energy since the daemon started, by processor: `package`, `dram` (not part of it), or "
    "`psys` (the whole board) (/sys/class/powercap/intel-rapl:*/energy_uj).",
    ("package", "domain"),
)
DOMAIN = Unknown(
    "energy_domain", "the processors measure the energy of a part whose name is not known"
)

FOLDER = "/sys/class/powercap"
ZONE = re.compile(r"intel-rapl:(?P<package>\d{1,3})(?::\d{1,3})?")
PACKAGE = re.compile(r"package-(?P<number>\d{1,3}(?:-die-\d{1,3})?)")
PACKAGE_PARTS = frozenset({"core", "uncore"})
"""Parts of a package that its own energy includes."""

MORE_ZONES = limit("energy_zones")
MAX_WATTS = 5000.0
"""More than a processor with its memory draws: a larger step back is a reset, not a wrap."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A folder whose energy is read, and the labels of its series."""

    folder: str
    package: str
    domain: str


class Energy:
    """Adds up the counters, each of which starts again at 0 after some minutes under load."""

    name = "cpu_energy"
    needs = (
        "an Intel or AMD processor that measures its energy, not in a virtual machine, and root or "
        "DAC_READ_SEARCH: since CVE-2020-8694 only root may read energy_uj"
    )
    metrics = (ENERGY,)
    unknowns = (DOMAIN, MORE_ZONES)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self._totals: dict[Zone, float] = {}
        self._before: dict[Zone, tuple[float, float]] = {}

    def read(self) -> Reading:
        unread: list[Unread] = []
        samples = [
            sample
            for zone in self._zones(unread)
            if (total := self._total(zone)) is not None
            for sample in ENERGY.at(total, zone.package, zone.domain)
        ]
        return Reading(tuple(samples), None, tuple(unread))

    def _zones(self, unread: list[Unread]) -> Iterator[Zone]:
        """The zones to read; those of unknown name, or too many, are added to ``unread``."""
        found = [name for name in names_in(self.node, FOLDER) if ZONE.fullmatch(name)]
        listed, left_out = bounded(found, MORE_ZONES)
        unread += left_out
        names = {}
        for zone in listed:
            try:
                names[zone] = self.node.read_text(f"{FOLDER}/{zone}/name").strip()
            except OSError:
                continue
        for zone, name in names.items():
            # The names of a processor's parts do not say of which processor they are.
            parent = PACKAGE.fullmatch(names.get(zone.rpartition(":")[0], ""))
            if own := PACKAGE.fullmatch(name):
                yield Zone(f"{FOLDER}/{zone}", own["number"], "package")
            elif name == "dram" and parent:
                yield Zone(f"{FOLDER}/{zone}", parent["number"], "dram")
            elif name == "psys":
                yield Zone(f"{FOLDER}/{zone}", "", "psys")
            elif name not in PACKAGE_PARTS:
                unread.append(DOMAIN.seen(shape(name)))

    def _total(self, zone: Zone) -> float | None:
        """Joules since the first read; None if they may not be read."""
        try:
            now = counter(self.node.read_text(f"{zone.folder}/energy_uj")) / 1e6
            full = counter(self.node.read_text(f"{zone.folder}/max_energy_range_uj")) / 1e6
        except (OSError, ValueError):
            self._before.pop(zone, None)
            return None
        time = self.node.clock.monotonic()
        before, at = self._before.get(zone, (now, time))
        self._before[zone] = now, time
        gained = now - before if now >= before else now - before + full
        if not 0 <= gained <= MAX_WATTS * (time - at):
            gained = 0.0  # the counter was reset
        self._totals[zone] = self._totals.get(zone, 0.0) + gained
        return self._totals[zone]


NODE_SOURCE: NodeSource = Energy
