"""What the 50 Hz power samples add up to: energy, swings and the step period."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import cast

import pytest

from gpunode.driver.driver import Gpu, SampleBuffer
from gpunode.gpu.buffers import PowerBuffer
from gpunode.gpu.rhythm import Rhythm
from tests.cases import with_each

START = 1_795_000_000.0


class PowerSamples:
    """A GPU with nothing but a power buffer, of which ``until`` seconds have been filled."""

    def __init__(self, watts: Callable[[float], float]) -> None:
        self.watts = watts
        self.until = 0.0
        self.shift = 0.0

    def power_samples(self, after: int) -> SampleBuffer:
        newest = round(self.until * 50)
        samples = [
            (round((START + self.shift + n / 50) * 1e6), self.watts(n / 50))
            for n in range(max(0, newest - 119), newest + 1)
        ]
        return SampleBuffer([(time, watts) for time, watts in samples if time > after])


def drained(gpu: PowerSamples, seconds: float, every: float = 2.0) -> tuple[PowerBuffer, Rhythm]:
    """A buffer and a rhythm that have followed the GPU for a while."""
    buffer, rhythm = PowerBuffer(cast(Gpu, gpu)), Rhythm()
    while gpu.until <= seconds:
        power = buffer.drain(700.0)
        assert power is not None
        rhythm.add(power.samples)
        gpu.until += every
    return buffer, rhythm


def square(high: float, low: float, period: float, duty: float) -> Callable[[float], float]:
    # Between two samples, so that rounding decides nothing.
    return lambda time: high if (time + 0.003) % period < duty * period else low


@with_each(product([0.1, 0.2, 0.5, 1.0, 3.0], [0.3, 0.5, 0.8]))
def test_swings_of_a_square_wave_are_counted(period: float, duty: float) -> None:
    buffer, _ = drained(PowerSamples(square(860, 125, period, duty)), 120)
    assert buffer.swings == pytest.approx(120 / period, rel=0.02, abs=1)


@with_each([(690, 60), (300, 40), (125, 5)])
def test_noise_is_not_a_swing(mean: float, noise: float) -> None:
    chance = random.Random(7)
    buffer, rhythm = drained(PowerSamples(lambda _: chance.gauss(mean, noise / 3)), 60)
    assert buffer.swings == 0
    assert rhythm.period() is None


@with_each([0.16, 0.5, 1.3])
def test_the_period_of_a_wave_is_found(period: float) -> None:
    _, rhythm = drained(PowerSamples(square(700, 300, period, 0.7)), 30)
    assert rhythm.period() == pytest.approx(period, rel=0.03)


def test_a_long_period_is_found_on_the_coarse_scale() -> None:
    _, rhythm = drained(PowerSamples(square(700, 300, 8.0, 0.7)), 110)
    assert rhythm.period() == pytest.approx(8.0, rel=0.05)


def test_energy_is_the_integral_of_the_draw() -> None:
    buffer, _ = drained(PowerSamples(square(800, 200, 0.2, 0.5)), 60)
    assert buffer.joules == pytest.approx(500 * 60, rel=0.02)
    assert sum(buffer.share_of_limit.counts) == pytest.approx(60 * 50, abs=1)


def test_a_hole_adds_no_energy() -> None:
    gpu = PowerSamples(lambda _: 500.0)
    buffer, _ = drained(gpu, 10)
    before = buffer.joules
    gpu.until += 60  # the buffer holds the last 2.4 s of that
    buffer.drain(700.0)
    assert buffer.joules - before == pytest.approx(500 * 2.38, abs=11)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_jumps_adds_no_energy_and_is_followed(jump: float) -> None:
    gpu = PowerSamples(lambda _: 500.0)
    buffer, _ = drained(gpu, 10)
    before = buffer.joules
    gpu.shift = jump
    for _ in range(5):
        gpu.until += 2
        buffer.drain(700.0)
    assert 500 * 5 < buffer.joules - before <= 500 * 10.5
