"""GPM: the per-unit counters of Hopper and later GPUs.

The mean between two snapshots is exact however far apart they are, so one snapshot per window loses
nothing. Numbers are ``nvmlGpmMetricId_t`` in nvml.h, names the keys of ``driver.Activity``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpunode.driver.driver import Activity, DriverError, Unsupported
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.possible import BYTES_PER_SECOND, Range, possible

PERCENT = 0.01
MEBIBYTE = 1048576.0

SHARES_OF_TIME = 0.0, 1.1
"""A counter that is read a little late may count a little more than all of the time."""


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """One GPM metric: the driver's number, our name, and the factor to base units."""

    id: int
    name: str
    scale: float

    @property
    def within(self) -> Range:
        """What is possible, in base units."""
        return SHARES_OF_TIME if self.scale == PERCENT else BYTES_PER_SECOND


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


class GpmSnapshots:
    """Two buffers for snapshots of one GPU.

    NVML keeps them until they are freed: there is one pair for each life of the library.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._pair: tuple[int, tuple[Any, Any]] | None = None

    def pair(self, generation: int) -> tuple[Any, Any]:
        """Those of this life of the library. Raises ``DriverError``."""
        if self._pair is None or self._pair[0] != generation:
            library = self.device.library
            one, other = (
                library.call("nvmlGpmSampleAlloc", generation=generation) for _ in range(2)
            )
            self._pair = generation, (one, other)
        return self._pair[1]


class GpmCounters:
    """Two alternating snapshots, and the metrics that the driver of this GPU knows.

    One unknown metric makes the whole call fail, so each is tried once on its own.
    """

    def __init__(
        self,
        device: Device,
        snapshots: GpmSnapshots,
        has_nvlink: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        support = device.board.call("nvmlGpmQueryDeviceSupport")
        if not support.isSupportedDevice:
            raise Unsupported(f"GPM: not supported by GPU {device.index}")
        self.device = device
        self.has_nvlink = has_nvlink
        self.monotonic = monotonic
        self.generation = device.generation
        self.previous, self.latest = snapshots.pair(self.generation)
        self.metrics: tuple[GpmMetric, ...] | None = None
        self.request = pynvml.c_nvmlGpmMetricsGet_t()
        self.time = self._snapshot()

    def read(self) -> Activity:
        """The means since the last snapshot; empty if it is too recent, as at the first call."""
        self.previous, self.latest = self.latest, self.previous
        before, self.time = self.time, self._snapshot()
        seconds = self.time - before
        if seconds < 0.1:  # nvml.h: snapshots must be more than 100 ms apart
            return Activity(0.0, {})
        if self.metrics is None:
            self.metrics = tuple(m for m in self._candidates() if self._known(m))
        return Activity(seconds, self._means(self.metrics))

    def _snapshot(self) -> float:
        device, generation = self.device, self.generation
        if device.parent is None:
            device.call("nvmlGpmSampleGet", self.latest, generation=generation)
        else:
            instance = device.call("nvmlDeviceGetGpuInstanceId")
            arguments = instance, self.latest
            device.parent.call("nvmlGpmMigSampleGet", *arguments, generation=generation)
        return self.monotonic()

    def _candidates(self) -> list[GpmMetric]:
        """All metrics but those of links that the GPU lacks, which the driver reports as zero."""
        present = {"nvlink": self.has_nvlink(), "c2c": False}
        try:
            (count,) = self.device.board.fields(pynvml.NVML_FI_DEV_C2C_LINK_COUNT).values()
            present["c2c"] = count > 0
        except Unsupported:
            pass
        return [m for m in METRICS if present.get(m.name.split("_")[0], True)]

    def _known(self, metric: GpmMetric) -> bool:
        try:
            self._fill((metric,))
        except Unsupported:
            return False
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_InvalidArgument):
                return False
            raise  # this failure says nothing about the metric
        return bool(self.request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS)

    def _means(self, metrics: tuple[GpmMetric, ...]) -> dict[str, float]:
        self._fill(metrics)
        answers = zip(metrics, self.request.metrics, strict=False)
        return {
            metric.name: answer.value * metric.scale
            for metric, answer in answers
            if answer.nvmlReturn == pynvml.NVML_SUCCESS
            and possible(answer.value * metric.scale, metric.within) is not None
        }

    def _fill(self, metrics: tuple[GpmMetric, ...]) -> None:
        request = self.request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = self.previous, self.latest
        for place, metric in enumerate(metrics):
            request.metrics[place].metricId = metric.id
        device, generation = self.device, self.generation
        device.library.call("nvmlGpmMetricsGet", request, gpu=device.uuid, generation=generation)
