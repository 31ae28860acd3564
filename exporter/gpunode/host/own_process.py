"""The daemon's own process, with the metric names of Prometheus client libraries."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator

import psutil

from gpunode import __version__
from gpunode.metric import Metric, Sample
from gpunode.source import WHOLE_NODE, Place, Reading, Source

BUILD_INFO = Metric(
    "gpunode_build_info",
    "gauge",
    "Always 1; versions of gpunode and Python.",
    ("version", "python"),
)
CPU = Metric("process_cpu_seconds_total", "counter", "CPU time of this process (psutil).")
RESIDENT = Metric(
    "process_resident_memory_bytes", "gauge", "Resident memory of this process (psutil)."
)
VIRTUAL = Metric(
    "process_virtual_memory_bytes", "gauge", "Virtual memory of this process (psutil)."
)
START = Metric("process_start_time_seconds", "gauge", "When this process started (psutil).")
OPEN_FILES = Metric("process_open_fds", "gauge", "Open file descriptors of this process (psutil).")
MAX_FILES = Metric("process_max_fds", "gauge", "Limit on open file descriptors (psutil).")
THREADS = Metric("process_threads", "gauge", "Threads of this process (psutil).")
METRICS = (BUILD_INFO, CPU, RESIDENT, VIRTUAL, START, OPEN_FILES, MAX_FILES, THREADS)


class OwnProcess:
    """Reads this process directly, not through a ``Node``: it is not part of the machine."""

    name = "process"
    every = 10.0
    metrics = METRICS

    def find(self) -> Iterable[tuple[Place, Source]]:
        """Always this source itself."""
        return ((WHOLE_NODE, self),)

    def read(self) -> Reading:
        return Reading(tuple(self._samples()))

    def _samples(self) -> Iterator[Sample]:
        yield from BUILD_INFO.at(1.0, __version__, platform.python_version())
        process = psutil.Process()  # fails where no /proc is mounted
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            yield from CPU.at(times.user + times.system)
            yield from RESIDENT.at(float(memory.rss))
            yield from VIRTUAL.at(float(memory.vms))
            yield from START.at(process.create_time())
            yield from OPEN_FILES.at(float(process.num_fds()))
            yield from MAX_FILES.at(float(process.rlimit(psutil.RLIMIT_NOFILE)[0]))
            yield from THREADS.at(float(process.num_threads()))
