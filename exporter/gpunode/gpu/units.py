"""Active time of each unit of one GPU, and bytes over its links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpunode.driver.driver import DIRECTIONS, OCCUPANCY, UNITS, Activity, Gpu, optional
from gpunode.gpu import GPU
from gpunode.metric import Metric, Sample
from gpunode.unread import Unknown, Unread

ACTIVE = Metric(
    "gpunode_gpu_active_seconds_total",
    "counter",
    "Seconds for which a unit of the GPU was active, weighted by the active fraction (GPM 1-13, or "
    "DCGM's profiling fields).",
    (*GPU, "unit"),
)
ACTIVE_WARPS = Metric(
    "gpunode_gpu_sm_occupancy_seconds_total",
    "counter",
    "Integral over time of SM occupancy, resident warps over the maximum (GPM 3, or "
    "DCGM's profiling fields).",
    GPU,
)
PCIE_BYTES = Metric(
    "gpunode_gpu_pcie_bytes_total",
    "counter",
    "Bytes over PCI Express as seen by the GPU, including headers (GPM 20 and 21).",
    (*GPU, "direction"),
)
NVLINK_BYTES = Metric(
    "gpunode_gpu_nvlink_bytes_total",
    "counter",
    "Bytes over all NVLinks (GPM 60 and 61, else NVML fields 138 and 139).",
    (*GPU, "direction"),
)
C2C_BYTES = Metric(
    "gpunode_gpu_c2c_bytes_total",
    "counter",
    "Bytes over the chip-to-chip link to the CPU (GPM 100 and 101).",
    (*GPU, "direction"),
)
METRICS = (ACTIVE, ACTIVE_WARPS, PCIE_BYTES, NVLINK_BYTES, C2C_BYTES)

MOVED = {"pcie": PCIE_BYTES, "nvlink": NVLINK_BYTES, "c2c": C2C_BYTES}
SHARES = {*UNITS, OCCUPANCY}
"""Values that add up to seconds; the others add up to bytes."""

SM_UNITS = SHARES - {"graphics", "dram"}

MIN_GRAPHICS_SHARE = 0.02
"""Share of time with the graphics engine at work from which its SMs must have shown something."""

NO_SM = 1e-6
"""SM share of the graphics engine's time that no kernel can be below: one block on one of 132 SMs
is 0.008. Where the driver divided by a wrong number of cycles, it was 1e-8."""

UNREAD_SMS = Unknown(
    "sm_counters",
    "the counters of a GPU's SMs showed nothing while its graphics engine worked; the time of its "
    "kernels is `unknown`; end other programs that read these counters",
)


def plausible_activity(activity: Activity | None) -> tuple[Activity | None, tuple[Unread, ...]]:
    """The activity, without counters of SMs that cannot be true, and what was left out."""
    if activity is None:
        return None, ()
    graphics, sm = activity.values.get("graphics", 0.0), activity.values.get("sm")
    if sm is None or graphics < MIN_GRAPHICS_SHARE or sm >= NO_SM * graphics:
        return activity, ()
    kept = {name: value for name, value in activity.values.items() if name not in SM_UNITS}
    example = f"sm {sm:.1g} while graphics {graphics:.2f}"
    return replace(activity, values=kept), (UNREAD_SMS.seen(example),)


class Units:
    """Adds up the activity of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.labels = gpu.identity.labels
        self._seconds: dict[str, float] = {}
        self._bytes: dict[str, float] = {}
        self._nvlink_counters: dict[str, float] = {}

    def count(self, activity: Activity) -> None:
        """Add the means of an activity, multiplied by its duration."""
        self._nvlink_counters.clear()  # what they count meanwhile is part of the activity
        for name, value in activity.values.items():
            book = self._seconds if name in SHARES else self._bytes
            book[name] = book.get(name, 0.0) + value * activity.seconds

    def count_nvlinks(self, seconds: float) -> dict[str, float]:
        """Add the increase of the NVLink counters, without GPM; returns bytes per second."""
        rates: dict[str, float] = {}
        for direction, value in (optional(self.gpu.nvlink_bytes) or {}).items():
            name = f"nvlink_{direction}"
            before = self._nvlink_counters.get(name)
            self._nvlink_counters[name] = value
            if before is None or value < before or not seconds:
                continue  # the first read, or a counter that was reset
            rates[name] = (value - before) / seconds
            self._bytes[name] = self._bytes.get(name, 0.0) + value - before
        return rates

    def samples(self) -> Iterator[Sample]:
        """The metrics to export; none for a unit or link that never answered."""
        for unit in UNITS:
            yield from ACTIVE.at(self._seconds.get(unit), *self.labels, unit)
        yield from ACTIVE_WARPS.at(self._seconds.get(OCCUPANCY), *self.labels)
        for link, metric in MOVED.items():
            for direction in DIRECTIONS:
                moved = self._bytes.get(f"{link}_{direction}")
                yield from metric.at(moved, *self.labels, direction)
