"""CPU time of the whole node, and how many of its cores are busy: few series on any node.

https://docs.kernel.org/filesystems/proc.html#miscellaneous-kernel-statistics-in-proc-stat
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import HERTZ, counter
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

SECONDS = Metric(
    "gpunode_cpu_seconds_total",
    "counter",
    "CPU time of all cores by mode; the rest is idle. `system` includes interrupts; `steal` is "
    "absent until a hypervisor takes time (/proc/stat).",
    ("mode",),
)
CORES = Metric("gpunode_cpu_cores", "gauge", "Online cores by NUMA node (/proc/stat).", ("node",))
BUSY_CORES = Metric(
    "gpunode_cpu_busy_cores",
    "gauge",
    "Cores that were busy for at least 95 % of the time since the last read, by NUMA node.",
    ("node",),
)
THREADS_PER_CORE = Metric(
    "gpunode_cpu_threads_per_core",
    "gauge",
    "CPUs for each physical core: 2 with simultaneous multithreading (SMT), 1 without "
    "(/sys/devices/system/cpu/cpu0/topology/thread_siblings_list).",
)
BUSIEST_CORE = Metric(
    "gpunode_cpu_busiest_core_ratio",
    "gauge",
    "Share of the time since the last read that the busiest core was busy.",
)
RUNNABLE = Metric(
    "gpunode_cpu_runnable_tasks", "gauge", "Tasks running or waiting for a core (/proc/stat)."
)
BLOCKED = Metric("gpunode_cpu_blocked_tasks", "gauge", "Tasks blocked on I/O (/proc/stat).")
SWITCHES = Metric(
    "gpunode_cpu_context_switches_total", "counter", "Context switches on all cores (/proc/stat)."
)

BUSY = 0.95
"""A core with at least this share of busy time counts as busy."""


@dataclass(frozen=True, slots=True)
class Core:
    """Seconds that a core, or all of them, spent in each mode since boot."""

    user: float
    system: float
    iowait: float
    steal: float
    idle: float

    @property
    def busy(self) -> float:
        return self.user + self.system + self.steal


@dataclass(frozen=True, slots=True)
class CpuStat:
    """The contents of /proc/stat."""

    cores: dict[str, Core]
    numbers: dict[str, float]
    all_cores: Core | None = None
    """The counters of all cores, with those that are offline."""


def parse(text: str) -> CpuStat:
    """Parse /proc/stat. Raises ``ValueError`` if it lists no cores."""
    cores, numbers, all_cores = {}, {}, None
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdigit():
            cores[str(int(name[3:]))] = _core(rest)
        elif name == "cpu":
            all_cores = _core(rest)
        elif name in ("procs_running", "procs_blocked", "ctxt"):
            numbers[name] = counter(rest)
    if not cores:
        raise ValueError("/proc/stat: no cores listed")
    return CpuStat(cores, numbers, all_cores)


def _core(fields: str) -> Core:
    ticks = [counter(field) for field in fields.split()[:8]]
    user, nice, system, idle, iowait, irq, softirq, steal = [*ticks, *[0.0] * (8 - len(ticks))]
    return Core(
        user=(user + nice) / HERTZ,
        system=(system + irq + softirq) / HERTZ,
        iowait=iowait / HERTZ,
        steal=steal / HERTZ,
        idle=idle / HERTZ,
    )


def parse_cpu_list(text: str) -> set[str]:
    """The numbers in a list such as ``0-3,8``. Raises ``ValueError``."""
    found: set[str] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not 0 <= begin <= end < MAX_CORES:
            raise ValueError(f"not a CPU list: {text[:80]!r}")
        found.update(map(str, range(begin, end + 1)))
    return found


def threads_per_core(node: Node) -> int | None:
    """CPUs for each physical core, by the first; None if the kernel does not say."""
    try:
        siblings = node.read_text("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
        return len(parse_cpu_list(siblings)) or None
    except (OSError, ValueError):
        return None


MAX_CORES = 8192
"""The largest NR_CPUS that Linux supports on x86_64."""


class Cpu:
    """Reads the cores; their NUMA nodes and SMT are read only once."""

    name = "cpu"
    needs = "/proc of the node: its root at path.rootfs"
    metrics = (
        SECONDS,
        CORES,
        THREADS_PER_CORE,
        BUSY_CORES,
        BUSIEST_CORE,
        RUNNABLE,
        BLOCKED,
        SWITCHES,
    )

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self._before: dict[str, Core] = {}
        self._time = -math.inf
        self._numa: dict[str, str] | None = None
        self._threads_per_core: int | None = None

    def read(self) -> Reading | None:
        """Usage since the last read, or None if that was too recent to compute shares."""
        now = self.node.clock.monotonic()
        if now - self._time < self.every / 2:
            return None
        self._time = now
        stat = parse(self.node.read_text("/proc/stat"))
        if self._numa is None:
            self._numa = self._numa_nodes()
            self._threads_per_core = threads_per_core(self.node)
        busy = {
            cpu: share
            for cpu, core in stat.cores.items()
            if cpu in self._before and (share := _busy_share(self._before[cpu], core)) is not None
        }
        self._before = stat.cores
        return Reading(tuple(self._samples(stat, busy, self._numa)))

    def _samples(
        self, stat: CpuStat, busy: dict[str, float], numa: dict[str, str]
    ) -> Iterator[Sample]:
        if stat.all_cores is not None:
            yield from SECONDS.at(stat.all_cores.user, "user")
            yield from SECONDS.at(stat.all_cores.system, "system")
            yield from SECONDS.at(stat.all_cores.iowait, "iowait")
            yield from SECONDS.at(stat.all_cores.steal or None, "steal")
        nodes = [numa.get(cpu, "0") for cpu in stat.cores]
        for node in sorted(set(nodes)):
            yield from CORES.at(float(nodes.count(node)), node)
            if busy:
                full = sum(s >= BUSY for cpu, s in busy.items() if numa.get(cpu, "0") == node)
                yield from BUSY_CORES.at(float(full), node)
        yield from THREADS_PER_CORE.at(self._threads_per_core)
        yield from BUSIEST_CORE.at(max(busy.values(), default=None))
        yield from RUNNABLE.at(stat.numbers.get("procs_running"))
        yield from BLOCKED.at(stat.numbers.get("procs_blocked"))
        yield from SWITCHES.at(stat.numbers.get("ctxt"))

    def _numa_nodes(self) -> dict[str, str]:
        """The NUMA node of each core; empty if the kernel lists none."""
        folder = "/sys/devices/system/node"
        try:
            names = self.node.list_directory(folder)
        except OSError:
            return {}
        found = {}
        for number in (n[4:] for n in names if n.startswith("node") and n[4:].isdigit()):
            try:
                cpus = parse_cpu_list(self.node.read_text(f"{folder}/node{number}/cpulist"))
            except (OSError, ValueError):
                continue
            found.update(dict.fromkeys(cpus, number))
        return found


def _busy_share(before: Core, after: Core) -> float | None:
    """Share of time a core was busy between two reads; None if its counters did not advance."""
    busy = after.busy - before.busy
    rest = after.idle + after.iowait - before.idle - before.iowait
    # idle and iowait sometimes step back by a few ticks; less than a second counts as zero.
    rest = max(0.0, rest) if rest > -1.0 else -1.0
    return busy / (busy + rest) if busy >= 0 and rest >= 0 and busy + rest > 0 else None


NODE_SOURCE: NodeSource = Cpu
