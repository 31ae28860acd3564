"""Memory, swap and huge pages of the node.

https://docs.kernel.org/filesystems/proc.html#meminfo
"""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.config import Settings
from gpunode.host.counter import counter
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading

SIZE = Metric("gpunode_memory_size_bytes", "gauge", "Memory of the node (/proc/meminfo).")
AVAILABLE = Metric(
    "gpunode_memory_available_bytes",
    "gauge",
    "Memory that programs can still get without swapping (/proc/meminfo).",
)
FREE = Metric(
    "gpunode_memory_free_bytes", "gauge", "Memory that nothing uses (/proc/meminfo: MemFree)."
)
CACHED = Metric(
    "gpunode_memory_cached_bytes",
    "gauge",
    "Contents of files, those in /dev/shm included (/proc/meminfo: Cached).",
)
DIRTY = Metric(
    "gpunode_memory_dirty_bytes",
    "gauge",
    "Contents of files that are yet to be written to a disk (/proc/meminfo: Dirty).",
)
WRITEBACK = Metric(
    "gpunode_memory_writeback_bytes",
    "gauge",
    "Contents of files that are being written to a disk (/proc/meminfo: Writeback).",
)
ANONYMOUS = Metric(
    "gpunode_memory_anonymous_bytes",
    "gauge",
    "Memory of programs that no file backs (/proc/meminfo: AnonPages).",
)
SHARED = Metric(
    "gpunode_memory_shared_bytes",
    "gauge",
    "Shared memory, files in /dev/shm included (/proc/meminfo: Shmem).",
)
SLAB = Metric("gpunode_memory_slab_bytes", "gauge", "Objects of the kernel (/proc/meminfo: Slab).")
SWAP_SIZE = Metric("gpunode_memory_swap_size_bytes", "gauge", "Swap space (/proc/meminfo).")
SWAP_FREE = Metric("gpunode_memory_swap_free_bytes", "gauge", "Swap not in use (/proc/meminfo).")
HUGE_PAGES = Metric(
    "gpunode_memory_hugepages_bytes",
    "gauge",
    "Huge pages of the default size that are set aside, used or not (/proc/meminfo).",
    ("state",),
)
SWAPPED = Metric(
    "gpunode_memory_swapped_bytes_total",
    "counter",
    "Bytes that went to swap and came back (/proc/vmstat: pswpin, pswpout).",
    ("direction",),
)
MAJOR_FAULTS = Metric(
    "gpunode_memory_major_faults_total",
    "counter",
    "Page faults that had to read from a disk (/proc/vmstat: pgmajfault).",
)
OOM_KILLS = Metric(
    "gpunode_memory_oom_kills_total",
    "counter",
    "Processes killed for want of memory, of the node or of a cgroup (/proc/vmstat: oom_kill).",
)
NUMA_MISSES = Metric(
    "gpunode_memory_numa_misses_total",
    "counter",
    "Pages that were not to be had on the NUMA node they were wanted on (/proc/vmstat: numa_miss).",
)

AMOUNTS = {
    "MemTotal": SIZE,
    "MemAvailable": AVAILABLE,
    "SwapTotal": SWAP_SIZE,
    "SwapFree": SWAP_FREE,
    "MemFree": FREE,
    "Cached": CACHED,
    "Dirty": DIRTY,
    "Writeback": WRITEBACK,
    "AnonPages": ANONYMOUS,
    "Shmem": SHARED,
    "Slab": SLAB,
}
PAGE = 4096.0
"""Bytes that swap is counted in: the page of x86_64, and of arm64 as it is usually built."""


def parse_meminfo(text: str) -> dict[str, float]:
    """Bytes by name, and numbers of pages where there is no unit. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip():
            number, *unit = value.split()
            found[name] = counter(number) * (1024.0 if unit == ["kB"] else 1.0)
    if "MemTotal" not in found:
        raise ValueError("/proc/meminfo: no MemTotal in it")
    return found


def parse_vmstat(text: str, wanted: frozenset[str]) -> dict[str, float]:
    """The wanted ones of many counters. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in wanted:
            found[name] = counter(value)
    return found


WANTED = frozenset({"pswpin", "pswpout", "pgmajfault", "oom_kill", "numa_miss"})


class Memory:
    """Reads the memory of the whole node."""

    name = "memory"
    metrics = (
        *AMOUNTS.values(),
        HUGE_PAGES,
        SWAPPED,
        MAJOR_FAULTS,
        OOM_KILLS,
        NUMA_MISSES,
    )

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval

    def read(self) -> Reading:
        memory = parse_meminfo(self.node.read_text("/proc/meminfo"))
        counters = parse_vmstat(self.node.read_text("/proc/vmstat"), WANTED)
        return Reading((*_memory_samples(memory), *_counter_samples(counters)))


def _memory_samples(memory: dict[str, float]) -> Iterator[Sample]:
    for name, metric in AMOUNTS.items():
        yield from metric.at(memory.get(name))
    size, total = memory.get("Hugepagesize"), memory.get("HugePages_Total")
    free = memory.get("HugePages_Free")
    if size is not None and total is not None and free is not None:
        yield from HUGE_PAGES.at(free * size, "free")
        yield from HUGE_PAGES.at((total - free) * size, "used")


def _counter_samples(counters: dict[str, float]) -> Iterator[Sample]:
    for name, direction in (("pswpin", "in"), ("pswpout", "out")):
        if name in counters:
            yield from SWAPPED.at(counters[name] * PAGE, direction)
    yield from MAJOR_FAULTS.at(counters.get("pgmajfault"))
    yield from OOM_KILLS.at(counters.get("oom_kill"))
    yield from NUMA_MISSES.at(counters.get("numa_miss"))


NODE_SOURCE: NodeSource = Memory
