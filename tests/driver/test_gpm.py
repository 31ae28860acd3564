"""The graphics engine, which is dear to ask for: what is told adds up, and changes at once."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pynvml
import pytest

from gpunode.driver.driver import DriverError
from gpunode.driver.nvidia.gpm import MAX_EQUAL, GpmCounters, GpmSnapshots
from tests.cases import with_each

WINDOW = 2.0


@dataclass
class Gpu:
    """A device whose units are at work; a snapshot is a number for what they had done by then."""

    graphics: float = 0.6
    sm: float = 0.5
    now: float = 0.0
    fails: bool = False
    asked: int = 0
    worked: list[float] = field(default_factory=lambda: [0.0, 0.0])
    taken: dict[int, tuple[float, ...]] = field(default_factory=dict)
    generation: int = 1
    index: int = 0
    uuid: str = "GPU-1"
    parent: None = None
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def board(self) -> Gpu:
        return self

    @property
    def library(self) -> Gpu:
        return self

    def pass_by(self, seconds: float = WINDOW) -> None:
        self.now += seconds
        self.worked[0] += self.graphics * seconds
        self.worked[1] += self.sm * seconds

    def fields(self, *_: int) -> dict[tuple[int, int], float]:
        return {(0, 0): 0.0}

    def call(self, function: str, *arguments: Any, **_: Any) -> Any:
        if function == "nvmlGpmQueryDeviceSupport":
            return pynvml.c_nvmlGpmSupport_t(isSupportedDevice=1)
        if function == "nvmlGpmSampleAlloc":
            return ctypes.cast(next(self._numbers), pynvml.c_nvmlGpmSample_t)
        if function == "nvmlGpmSampleGet":
            self.taken[_number(arguments[0])] = self.now, *self.worked
            return None
        assert function == "nvmlGpmMetricsGet"
        return self._fill(arguments[0])

    def _fill(self, request: Any) -> None:
        if self.fails:
            raise DriverError("for a moment")
        before, after = (self.taken[_number(s)] for s in (request.sample1, request.sample2))
        for metric in request.metrics[: request.numMetrics]:
            unit = {1: 0, 2: 1}.get(metric.metricId)
            self.asked += unit == 0
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if unit is None else 0
            if unit is not None:
                worked = after[1 + unit] - before[1 + unit]
                metric.value = 100 * worked / (after[0] - before[0])


def _number(snapshot: Any) -> int:
    return ctypes.cast(snapshot, ctypes.c_void_p).value or 0


def counters(gpu: Gpu) -> GpmCounters:
    """What reads it, with all that is done once behind it."""
    made = GpmCounters(gpu, GpmSnapshots(gpu), lambda: False, lambda: gpu.now)  # type: ignore[arg-type]
    gpu.pass_by()
    made.read()
    gpu.asked = 0
    return made


def graphics_share(gpu: Gpu, of: GpmCounters, seconds: float = WINDOW) -> float:
    gpu.pass_by(seconds)
    activity = of.read()
    assert activity.seconds == pytest.approx(seconds)
    return activity.values["graphics"]


def test_a_steady_gpu_is_asked_once_in_some_windows() -> None:
    gpu = Gpu()
    of = counters(gpu)
    for _ in range(10 * MAX_EQUAL):
        assert graphics_share(gpu, of) == pytest.approx(0.6)
    assert gpu.asked == 10


@pytest.mark.parametrize("change", [{"sm": 0.52}, {"sm": 0.0, "graphics": 0.0}])
def test_a_change_is_told_in_its_window(change: dict[str, float]) -> None:
    gpu = Gpu()
    of = counters(gpu)
    graphics_share(gpu, of)
    gpu.graphics = 0.9
    for name, value in change.items():
        setattr(gpu, name, value)
    assert graphics_share(gpu, of) == pytest.approx(gpu.graphics)


def test_a_kernel_of_one_block_is_a_change() -> None:
    gpu = Gpu(graphics=0.0, sm=0.0)
    of = counters(gpu)
    graphics_share(gpu, of)
    gpu.graphics, gpu.sm = 0.04, 0.04 / 132
    assert graphics_share(gpu, of) == pytest.approx(0.04)


def test_short_windows_are_all_asked_for() -> None:
    gpu = Gpu()
    of = counters(gpu)
    for _ in range(8):
        graphics_share(gpu, of, 0.125)
    assert gpu.asked == 8


@with_each(range(20))
def test_what_is_told_adds_up_to_what_the_driver_counts(seed: int) -> None:
    chance, gpu = random.Random(seed), Gpu()
    of = counters(gpu)
    begin, booked = gpu.worked[0], 0.0
    for _ in range(300):
        if chance.random() < 0.1:
            gpu.sm = chance.random() * 0.8
        gpu.graphics = min(1.0, gpu.sm * chance.uniform(1.1, 1.2))
        booked += graphics_share(gpu, of) * WINDOW
    gpu.sm = 0.9 * gpu.sm  # it is asked for now, if it was not
    booked += graphics_share(gpu, of) * WINDOW
    assert gpu.asked < 250
    assert booked == pytest.approx(gpu.worked[0] - begin, rel=0.002)


@with_each(range(MAX_EQUAL))
def test_after_a_failure_nothing_before_it_counts(at: int) -> None:
    gpu = Gpu()
    of = counters(gpu)
    for _ in range(at):
        graphics_share(gpu, of)
    gpu.fails, gpu.graphics = True, 1.0
    gpu.pass_by()
    with pytest.raises(DriverError):
        of.read()
    gpu.fails, gpu.graphics = False, 0.7
    assert graphics_share(gpu, of) == pytest.approx(0.7)
