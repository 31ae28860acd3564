"""Errors and warnings in the kernel log, counted by kind.

NVML reports XIDs too, but not those of a GPU that fell off the bus:
https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from gpunode.config import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import MANY, NodeSource, Reading

EVENTS = Metric(
    "gpunode_kernel_log_events_total",
    "counter",
    "Kernel log lines by kind since the daemon started (/dev/kmsg, otherwise a log file in "
    "/var/log).",
    ("kind",),
)
LAST = Metric(
    "gpunode_kernel_log_last_event_timestamp_seconds",
    "gauge",
    "When the last line of this kind was read (/dev/kmsg or /var/log).",
    ("kind",),
)
XIDS = Metric(
    "gpunode_kernel_log_xid_errors_total",
    "counter",
    "XID errors in the kernel log by PCI address (/dev/kmsg or /var/log).",
    ("bus_id", "xid"),
)

KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("xid", r"NVRM: Xid \(PCI:"),
        ("sxid", r"nvidia-nvswitch\d+: SXid"),
        ("nvrm", r"NVRM: .{0,200}(?:[Ee]rror|failed|fallen off|timed? ?out|GSP)"),
        ("oom_kill", r"Out of memory: Kill|Memory cgroup out of memory|oom-kill:"),
        ("bus_error", r"trap: bus error|[Bb]us error|signal 7 |MCE: Killing .{1,200} due to"),
        ("lustre_eviction", r"LustreError: .{0,400}(?:evicted|eviction)|was evicted by"),
        ("lustre", r"LustreError: |Lustre: .{0,300}Connection to .{1,200} was lost"),
        ("nfs", r"nfs: server .{1,200} not responding"),
        ("pcie_aer", r"AER: .{0,80}[Ee]rror|PCIe Bus Error: severity="),
        ("hung_task", r"task .{1,200} blocked for more than \d+ seconds"),
        ("lockup", r"soft lockup - CPU|hard LOCKUP|rcu.{0,40} detected stalls"),
        ("machine_check", r"mce: \[Hardware Error\]|EDAC .{0,80}(?:CE|UE) "),
        ("disk_error", r"I/O error, dev |critical (?:medium|target) error|nvme.{1,40}timeout"),
        ("read_only", r"[Rr]emounting filesystem read-only"),
        ("link_down", r"mlx5_core .{1,200}(?:Link down|port module .{0,60}unplug)"),
    )
)
"""The first pattern that matches a line decides. Wildcards are bounded so that no line is slow to
match."""

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{7,20})\): (\d{1,5})")

LOGS = ("/dev/kmsg", "/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
LONGEST = 4096
"""Characters of a line to match; the kernel writes at most 1,024 per record."""


def kind_of(line: str) -> str | None:
    """The kind of a kernel log line, or None if it is not of interest."""
    return next((kind for kind, pattern in KINDS if pattern.search(line)), None)


class KernelLog:
    """Follows the kernel log, beginning at its end when the daemon starts."""

    name = "kernel_log"
    metrics = (EVENTS, LAST, XIDS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self.path: str | None = None
        self.events = {kind: 0 for kind, _ in KINDS}
        self.times: dict[str, float] = {}
        self.xids: dict[tuple[str, str], int] = {}

    def read(self) -> Reading:
        """Count the lines since the last read. Raises ``OSError`` if no log can be read."""
        for line in self._lines():
            # A line that begins with a space continues the previous record.
            if not line.startswith(" "):
                self._count(line[:LONGEST])
        return Reading(tuple(self._samples()))

    def _lines(self) -> list[str]:
        if self.path is not None:
            return self.node.log_lines(self.path)
        for path in LOGS:
            with contextlib.suppress(OSError):
                lines = self.node.log_lines(path)
                self.path = path
                return lines
        raise OSError(
            f"cannot read any of {', '.join(LOGS)}: /dev/kmsg requires CAP_SYSLOG if "
            "kernel.dmesg_restrict is 1, the files require the group adm",
        )

    def _count(self, line: str) -> None:
        kind = kind_of(line)
        if kind is None:
            return
        self.events[kind] += 1
        self.times[kind] = self.node.clock.time()
        match = XID.search(line)
        if match:
            bus_id = match[1].lower()
            key = bus_id if "." in bus_id else f"{bus_id}.0", match[2]
            if key in self.xids or len(self.xids) < MANY:
                self.xids[key] = self.xids.get(key, 0) + 1

    def _samples(self) -> Iterator[Sample]:
        for kind, count in self.events.items():
            yield from EVENTS.at(float(count), kind)
        for kind, time in self.times.items():
            yield from LAST.at(time, kind)
        for (bus_id, xid), count in self.xids.items():
            yield from XIDS.at(float(count), bus_id, xid)


NODE_SOURCE: NodeSource = KernelLog
