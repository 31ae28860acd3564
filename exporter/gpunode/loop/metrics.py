"""The metrics about sources."""

from __future__ import annotations

from gpunode.loop.door import SERIES
from gpunode.metric import Metric
from gpunode.source import Place

SOURCE = ("source", *Place._fields)
"""Labels that identify a source."""

UP = Metric(
    "gpunode_source_up",
    "gauge",
    "Whether the last read of the source succeeded and is not overdue; for `gpu` and `host`, "
    "whether any source was found. Of a GPU, its most frequent source, and each that is not up.",
    SOURCE,
)
LAST_SUCCESS = Metric(
    "gpunode_source_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the last successful read of a source that is not up; absent if there was none.",
    SOURCE,
)
READ_SECONDS = Metric(
    "gpunode_source_read_seconds_total",
    "counter",
    "Time that reads of the source took, over all its devices.",
    ("source",),
)
CPU_SECONDS = Metric(
    "gpunode_source_cpu_seconds_total",
    "counter",
    "CPU time used by reads of the source, over all its devices (CLOCK_THREAD_CPUTIME_ID).",
    ("source",),
)
REST_CPU_SECONDS = Metric(
    "gpunode_rest_cpu_seconds_total",
    "counter",
    "CPU time of this process that no source used: to start (`start`), in the thread of the web "
    "server since (`web`), to look for sources (`finders`), and between all these (`other`). With "
    "that of the sources, it is all of the process.",
    ("part",),
)
LATE = Metric(
    "gpunode_source_late_reads_total",
    "counter",
    "Reads that started more than a tenth of their interval late; absent while there is none.",
    ("source",),
)
SKIPPED = Metric(
    "gpunode_source_skipped_reads_total",
    "counter",
    "Reads skipped because an earlier one was still running when they were due; absent while there "
    "is none.",
    ("source",),
)
DROPPED = Metric(
    "gpunode_source_dropped_series_total",
    "counter",
    f"Series left out of reads of the source: equal to another, or beyond the first {SERIES}; "
    "absent while there is none.",
    ("source",),
)
UNREAD = Metric(
    "gpunode_unread_total",
    "counter",
    "Things that the source met and does not understand: a line of a log counts once, what stays "
    "at each read. docs/unread.md lists every kind (`what`), `gpunode doctor` shows examples.",
    ("source", "what"),
)
REFUSED = Metric(
    "gpunode_refused_total",
    "counter",
    "What a bound left out: things of the node at each read, connections and messages once. "
    "Absent while there is none. docs/unread.md lists every kind (`what`), `gpunode doctor` shows "
    "them.",
    ("source", "what"),
)
METRICS = (
    *(UP, LAST_SUCCESS, READ_SECONDS, CPU_SECONDS, REST_CPU_SECONDS),
    *(LATE, SKIPPED, DROPPED, UNREAD, REFUSED),
)
