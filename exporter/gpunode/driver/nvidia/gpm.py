"""GPM: the per-unit counters of Hopper and later GPUs.

The mean between two snapshots is exact however far apart they are, so one snapshot per window loses
nothing. To ask for all metrics but one takes 0.05 ms, and for the graphics engine 1.0 to 1.4 ms
(H200, driver 580.159). So it is asked for where another unit does something else than before, else
once in ``MAX_EQUAL`` windows, over all of them: what is told of them adds up to what the driver
counted. Numbers are ``nvmlGpmMetricId_t`` in nvml.h, names the keys of ``driver.Activity``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from gpunode.driver.driver import Activity, DriverError, Unsupported
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.possible import BYTES_PER_SECOND, Range, in_range

PERCENT = 0.01
MEBIBYTE = 1048576.0

SHARES_OF_TIME = 0.0, 1.1
"""A counter that is read a little late may count a little more than all of the time."""

MAX_EQUAL = 3
"""Windows over which the graphics engine is asked for at once, if all units do the same in them."""

TOLERANCE = 0.02
"""By how much of itself a unit's share may differ between windows in which it does the same. What
is told of the graphics engine without asking was then wrong by 0.011 at most, by 0.003 on average
(80 windows of random programs on an H200)."""

ABSOLUTE_TOLERANCE = 1e-4
"""The absolute tolerance, for shares close to zero. A kernel of one block keeps the graphics engine
busy for up to 132 times the share of SMs that it takes (H200)."""

MIN_WINDOW = 1.0
"""Seconds of a window that can be like another: shorter ones are there to tell them apart."""


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


GRAPHICS = GpmMetric(1, "graphics", PERCENT)
METRICS = (
    GRAPHICS,
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

RANGES = {metric.name: metric.within for metric in METRICS}
"""What is possible, by name."""


class Request:
    """What is asked for some metrics, and where the answers come."""

    def __init__(self, metrics: Sequence[GpmMetric]) -> None:
        self.asked = asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(metrics)
        self.answers = tuple(zip(metrics, asked.metrics, strict=False))
        for metric, answer in self.answers:
            answer.metricId = metric.id


class GpmSnapshots:
    """Three buffers for snapshots of one GPU.

    NVML keeps them until they are freed: there is one set for each life of the library.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._kept: tuple[int, tuple[Any, Any, Any]] | None = None

    def of(self, generation: int) -> tuple[Any, Any, Any]:
        """Those of this life of the library. Raises ``DriverError``."""
        if self._kept is None or self._kept[0] != generation:
            library = self.device.library
            one, two, three = (
                library.call("nvmlGpmSampleAlloc", generation=generation) for _ in range(3)
            )
            self._kept = generation, (one, two, three)
        return self._kept[1]


@dataclass(slots=True)
class GraphicsEstimate:
    """An estimate of the graphics engine from the last window in which it was read."""

    mean: float
    """Its mean in that window."""

    values: dict[str, float]
    """The other metrics of that window."""

    work: float
    """Seconds of work estimated since, without a reading."""

    seconds: float = 0.0
    windows: int = 1
    """Seconds of the windows since, and their number with the first."""

    def like(self, values: dict[str, float]) -> bool:
        """Whether the units did in a window what they did in the first."""
        return values.keys() == self.values.keys() and all(
            abs(values[name] - before) <= max(ABSOLUTE_TOLERANCE, TOLERANCE * before)
            for name, before in self.values.items()
            if RANGES[name] == SHARES_OF_TIME
        )

    def add(self, seconds: float) -> None:
        """Estimate a window of that length by the first."""
        self.work += self.mean * seconds
        self.seconds += seconds
        self.windows += 1


class GpmCounters:
    """Snapshots by turns, and the metrics that the driver of this GPU knows.

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
        self.snapshots = snapshots.of(self.generation)
        self.request: Request | None = None
        """For the metrics of every window, once it is known which the driver knows."""

        self.of_graphics: Request | None = None
        self.latest = self.asked = self.snapshots[0]
        """The latest snapshot, and the one at which the graphics engine was last asked for."""

        self.told: GraphicsEstimate | None = None
        self.time = self._take(self.latest)

    def read(self) -> Activity:
        """The means since the last snapshot; empty if it is too recent, as at the first call."""
        told, self.told = self.told, None  # after a read that fails, nothing is known
        before, since = self.latest, self.time
        after = next(s for s in self.snapshots if s is not before and s is not self.asked)
        self.time = self._take(after)
        self.latest = after
        seconds = self.time - since
        if seconds < 0.1:  # nvml.h: snapshots must be more than 100 ms apart
            return Activity(0.0, {})
        if self.request is None:
            known = [m for m in self._candidates() if self._known(m, before)]
            self.of_graphics = Request([GRAPHICS]) if GRAPHICS in known else None
            self.request = Request([m for m in known if m is not GRAPHICS])
        values = self._means(self.request, before)
        if self.of_graphics is not None:
            if told is None:
                self.asked = before
            graphics = self._graphics(self.of_graphics, values, seconds, told)
            values = {**graphics, **values}
        return Activity(seconds, values)

    def _graphics(
        self,
        request: Request,
        values: dict[str, float],
        seconds: float,
        told: GraphicsEstimate | None,
    ) -> dict[str, float]:
        """The graphics engine's mean in a window in which the other metrics had these values.

        Empty if the driver does not tell.
        """
        if told and told.windows < MAX_EQUAL and seconds >= MIN_WINDOW and told.like(values):
            told.add(seconds)
            self.told = told
            return {GRAPHICS.name: told.mean}
        answer = self._means(request, self.asked)
        self.asked = self.latest
        if not answer:
            return {}
        (mean,) = answer.values()
        work = mean * seconds
        if told:
            work += mean * told.seconds - told.work
        here = min(max(1.0, mean), max(values.get("sm", 0.0), work / seconds))
        self.told = GraphicsEstimate(here, values, here * seconds - work)
        return {GRAPHICS.name: here}

    def _take(self, snapshot: Any) -> float:
        device, generation = self.device, self.generation
        if device.parent is None:
            device.call("nvmlGpmSampleGet", snapshot, generation=generation)
        else:
            instance = device.call("nvmlDeviceGetGpuInstanceId")
            arguments = instance, snapshot
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

    def _known(self, metric: GpmMetric, since: Any) -> bool:
        request = Request([metric])
        try:
            self._ask(request, since)
        except Unsupported:
            return False
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_InvalidArgument):
                return False
            raise  # this failure says nothing about the metric
        return bool(request.answers[0][1].nvmlReturn == pynvml.NVML_SUCCESS)

    def _means(self, request: Request, since: Any) -> dict[str, float]:
        """The means from a snapshot to the latest, of those metrics that have one."""
        if not request.answers:
            return {}
        self._ask(request, since)
        return {
            metric.name: mean
            for metric, answer in request.answers
            if answer.nvmlReturn == pynvml.NVML_SUCCESS
            and (mean := in_range(answer.value * metric.scale, metric.within)) is not None
        }

    def _ask(self, request: Request, since: Any) -> None:
        device, generation, asked = self.device, self.generation, request.asked
        asked.sample1, asked.sample2 = since, self.latest
        device.library.call("nvmlGpmMetricsGet", asked, gpu=device.uuid, generation=generation)
