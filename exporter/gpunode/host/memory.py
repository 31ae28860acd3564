"""Memory, swap and huge pages of the node.

https://docs.kernel.org/filesystems/proc.html#meminfo
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.kernel import counter
from gpunode.node.node import Node, names_in, text_of
from gpunode.source import NodeSource, Reading

SIZE = Metric(
    "gpunode_memory_size_bytes",
    "gauge",
    "Total memory, without that of GPUs, which Grace has among it (/proc/meminfo).",
)
AVAILABLE = Metric(
    "gpunode_memory_available_bytes",
    "gauge",
    "Memory available to programs without swapping, without that of GPUs (/proc/meminfo).",
)
FREE = Metric(
    "gpunode_memory_free_bytes",
    "gauge",
    "Unused memory, without that of GPUs (/proc/meminfo: MemFree).",
)
CACHED = Metric(
    "gpunode_memory_cached_bytes",
    "gauge",
    "Page cache, including files in /dev/shm (/proc/meminfo: Cached).",
)
DIRTY = Metric(
    "gpunode_memory_dirty_bytes",
    "gauge",
    "Page cache waiting to be written to disk (/proc/meminfo: Dirty).",
)
WRITEBACK = Metric(
    "gpunode_memory_writeback_bytes",
    "gauge",
    "Page cache being written to disk (/proc/meminfo: Writeback).",
)
ANONYMOUS = Metric(
    "gpunode_memory_anonymous_bytes",
    "gauge",
    "Memory of programs that is not backed by a file (/proc/meminfo: AnonPages).",
)
SHARED = Metric(
    "gpunode_memory_shared_bytes",
    "gauge",
    "Shared memory, including files in /dev/shm (/proc/meminfo: Shmem).",
)
SLAB = Metric("gpunode_memory_slab_bytes", "gauge", "Kernel objects (/proc/meminfo: Slab).")
SWAP_SIZE = Metric("gpunode_memory_swap_size_bytes", "gauge", "Total swap space (/proc/meminfo).")
SWAP_FREE = Metric("gpunode_memory_swap_free_bytes", "gauge", "Unused swap space (/proc/meminfo).")
HUGE_PAGES = Metric(
    "gpunode_memory_hugepages_bytes",
    "gauge",
    "Huge pages of the default size, used and free (/proc/meminfo).",
    ("state",),
)
SWAPPED = Metric(
    "gpunode_memory_swapped_bytes_total",
    "counter",
    "Bytes swapped in and out (/proc/vmstat: pswpin, pswpout).",
    ("direction",),
)
MAJOR_FAULTS = Metric(
    "gpunode_memory_major_faults_total",
    "counter",
    "Page faults that required a read from disk (/proc/vmstat: pgmajfault).",
)
OOM_KILLS = Metric(
    "gpunode_memory_oom_kills_total",
    "counter",
    "Processes killed because the node or a cgroup ran out of memory (/proc/vmstat: oom_kill).",
)
NUMA_MISSES = Metric(
    "gpunode_memory_numa_misses_total",
    "counter",
    "Pages allocated off the preferred NUMA node (/proc/vmstat: numa_miss).",
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
PMD_SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
PAGE_SIZES = {size * (size // 8): float(size) for size in (4096, 16384, 65536)}
"""Bytes per page by the bytes that one page of page-table entries maps, which has 8 bytes for each.

Kernels of Grace have pages of 64 KiB, and so 512 MiB here:
https://docs.kernel.org/arch/arm64/hugetlbpage.html and
https://docs.kernel.org/admin-guide/mm/transhuge.html (``hpage_pmd_size``)
"""

GPUS = "/proc/driver/nvidia/gpus"
NODE_OF_GPU = re.compile(r"Node:\s*(\d{1,4})\n")
"""In ``numa_status`` of a GPU whose memory is a NUMA node, as on GH200, GB200 and GB300 by default:
https://developer.nvidia.com/blog/understanding-memory-management-on-hardware-coherent-platforms and
https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/kernel-open/nvidia/nv-procfs.c
"""
NUMA_NODES = "/sys/devices/system/node"


def parse_meminfo(text: str) -> dict[str, float]:
    """Bytes by name; a plain number if there is no unit. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip():
            number, *unit = value.split()
            found[name] = counter(number) * (1024.0 if unit == ["kB"] else 1.0)
    if "MemTotal" not in found:
        raise ValueError("/proc/meminfo: MemTotal is missing")
    return found


def parse_vmstat(text: str, wanted: frozenset[str]) -> dict[str, float]:
    """The wanted counters of /proc/vmstat. Raises ``ValueError``."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in wanted:
            found[name] = counter(value)
    return found


VMSTAT_FIELDS = frozenset({"pswpin", "pswpout", "pgmajfault", "oom_kill", "numa_miss"})


class NodeMemory:
    """Reads the memory of the whole node."""

    name = "memory"
    needs = "/proc of the node: its root at path.rootfs"
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
        self._page: float | None = None
        self._node_of_gpu: dict[str, str] = {}

    def read(self) -> Reading:
        memory = parse_meminfo(self.node.read_text("/proc/meminfo"))
        leave_out(memory, self._gpu_memory())
        counters = parse_vmstat(self.node.read_text("/proc/vmstat"), VMSTAT_FIELDS)
        page = self._page_size(memory)
        return Reading((*_memory_samples(memory), *_counter_samples(counters, page)))

    def _gpu_memory(self) -> Iterator[dict[str, float]]:
        """What the NUMA node of each GPU says of its memory; nodes of CXL are not among them."""
        for gpu in names_in(self.node, GPUS):
            # Once: to ask takes a lock of the driver.
            if gpu not in self._node_of_gpu:
                found = NODE_OF_GPU.match(text_of(self.node, f"{GPUS}/{gpu}/numa_status"))
                if found:
                    self._node_of_gpu[gpu] = found[1]
        for number in set(self._node_of_gpu.values()):
            folder = f"{NUMA_NODES}/node{number}"
            with contextlib.suppress(OSError, ValueError):
                if not self.node.read_text(f"{folder}/cpulist").strip():
                    text = self.node.read_text(f"{folder}/meminfo")
                    yield parse_meminfo(text.replace(f"Node {number} ", ""))

    def _page_size(self, memory: dict[str, float]) -> float | None:
        """Bytes per page; without transparent huge pages, as the default huge page tells."""
        if self._page is None:
            with contextlib.suppress(OSError, ValueError):
                self._page = PAGE_SIZES.get(int(counter(self.node.read_text(PMD_SIZE))))
        if self._page is None:
            self._page = PAGE_SIZES.get(int(memory.get("Hugepagesize", 0)))
        return self._page


def leave_out(memory: dict[str, float], nodes: Iterable[dict[str, float]]) -> None:
    """Subtract NUMA nodes from the memory of the whole node.

    What is available is free or holds files: https://docs.kernel.org/filesystems/proc.html#meminfo
    """
    for node in nodes:
        free = node.get("MemFree", 0.0)
        files = node.get("Active(file)", 0.0) + node.get("Inactive(file)", 0.0)
        parts = {"MemTotal": node["MemTotal"], "MemFree": free, "MemAvailable": free + files}
        for name, part in parts.items():
            if name in memory:
                memory[name] = max(0.0, memory[name] - part)


def _memory_samples(memory: dict[str, float]) -> Iterator[Sample]:
    for name, metric in AMOUNTS.items():
        yield from metric.at(memory.get(name))
    size, total = memory.get("Hugepagesize"), memory.get("HugePages_Total")
    free = memory.get("HugePages_Free")
    if size is not None and total is not None and free is not None:
        yield from HUGE_PAGES.at(free * size, "free")
        yield from HUGE_PAGES.at((total - free) * size, "used")


def _counter_samples(counters: dict[str, float], page: float | None) -> Iterator[Sample]:
    for name, direction in (("pswpin", "in"), ("pswpout", "out")):
        if name in counters and page is not None:
            yield from SWAPPED.at(counters[name] * page, direction)
    yield from MAJOR_FAULTS.at(counters.get("pgmajfault"))
    yield from OOM_KILLS.at(counters.get("oom_kill"))
    yield from NUMA_MISSES.at(counters.get("numa_miss"))


NODE_SOURCE: NodeSource = NodeMemory
