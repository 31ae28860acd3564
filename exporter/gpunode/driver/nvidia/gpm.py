"""GPM: the per-unit counters of Hopper and later GPUs.

The mean between two snapshots is exact however far apart they are, so one snapshot per window loses
nothing. Numbers are ``nvmlGpmMetricId_t`` in nvml.h, names the keys of ``driver.Activity``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.driver.nvidia.possible import Range

PERCENT = 0.01
MEBIBYTE = 1048576.0

SHARES = 0.0, 1.1
"""Of time; a counter that is read a little late may count a little more than all of it."""

RATES = 0.0, 1e14
"""Bytes per second over the links of one GPU."""


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """One GPM metric: the driver's number, our name, and the factor to base units."""

    id: int
    name: str
    scale: float

    @property
    def within(self) -> Range:
        """What is possible, in base units."""
        return SHARES if self.scale == PERCENT else RATES


METRICS = (
    GpmMetric(1, "graphics", PERCENT),
    GpmMetric(2, "sm", PERCENT),
    GpmMetric(3, "occupancy", PERCENT),
    GpmMetric(4, "integer", PERCENT),
    GpmMetric(5, "tensor", PERCENT),
    GpmMetric(6, "tensor_fp64", PERCENT),
    GpmMetric(7, "tensor_half", PERCENT),
    GpmMetric(9, "tensor_integer", PERCENT),
    GpmMetric(10, "dram", PERCENT),
    GpmMetric(11, "fp64", PERCENT),
    GpmMetric(12, "fp32", PERCENT),
    GpmMetric(13, "fp16", PERCENT),
    GpmMetric(20, "pcie_transmit", MEBIBYTE),
    GpmMetric(21, "pcie_receive", MEBIBYTE),
    GpmMetric(60, "nvlink_receive", MEBIBYTE),
    GpmMetric(61, "nvlink_transmit", MEBIBYTE),
    GpmMetric(100, "c2c_transmit", MEBIBYTE),
    GpmMetric(101, "c2c_receive", MEBIBYTE),
)

WITHIN = {metric.name: metric.within for metric in METRICS}
"""What is possible, by name."""
