"""Errors of NVLink 5 (XIDs 144 to 150) in the kernel log: their severity, link and action.

The driver's library tells the number of an XID and no more; only its line in the kernel log says
which link it is and how bad: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.driver.nvidia.xids import NVLINK5_XIDS, UNKNOWN, nvlink_error
from gpunode.metric import Metric, Sample
from gpunode.source import MAX_ITEMS
from gpunode.unread import Unknown, Unread, unnumbered

LABELS = ("bus_id", "xid", "link", "severity", "action")

ERRORS = Metric(
    "gpunode_kernel_log_nvlink_xid_errors_total",
    "counter",
    "Errors of NVLink 5 in the kernel log (XIDs 144-150) by link (-1: the whole GPU), severity "
    "(`fatal`, `nonfatal`) and the action that NVIDIA's catalogue asks for (`unknown` if it has "
    "none); absent until one occurs.",
    LABELS,
)
LAST = Metric(
    "gpunode_kernel_log_last_nvlink_xid_timestamp_seconds",
    "gauge",
    "When the last line with this error of NVLink 5 was read (/dev/kmsg or /var/log).",
    LABELS,
)
METRICS = (ERRORS, LAST)

UNREAD_NVLINK = Unknown(
    "nvlink_xid",
    "the kernel log has an error of NVLink 5 (XIDs 144-150) that NVIDIA's catalogue does not "
    "explain",
)

NUMBERS = frozenset(map(str, NVLINK5_XIDS))


class NvlinkXids:
    """The errors of NVLink 5 of all GPUs of a node."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}
        self.times: dict[tuple[str, ...], float] = {}

    def count(self, bus_id: str, xid: str, text: str, time: float) -> Iterator[Unread]:
        """Count what a line says after ``XID, ``, if it is such an XID."""
        if xid not in NUMBERS:
            return
        error = nvlink_error(int(xid), text)
        if error is None:
            ours = text.partition("name=")[0]  # what follows may be the name of a program
            yield UNREAD_NVLINK.seen(f"XID {xid}, {unnumbered(ours)}")
            return
        if error.action == UNKNOWN:
            yield UNREAD_NVLINK.seen(f"XID {xid}, {error.said}")
        labels = (bus_id, xid, str(error.link), error.severity, error.action)
        if labels not in self.counts and len(self.counts) >= MAX_ITEMS * len(NUMBERS):
            yield UNREAD_NVLINK.seen(f"XID {xid}, one of more kinds than are counted")
            return
        self.counts[labels] = self.counts.get(labels, 0) + 1
        self.times[labels] = time

    def samples(self) -> Iterator[Sample]:
        """What was counted."""
        for labels, count in self.counts.items():
            yield from ERRORS.at(float(count), *labels)
        for labels, time in self.times.items():
            yield from LAST.at(time, *labels)
