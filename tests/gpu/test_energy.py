"""Energy by state: exact in sum, whatever the samples miss, and plausible in its division."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import cast

import pytest

from gpunode.driver.driver import DriverError, Gpu, SampleBuffer, Unsupported
from gpunode.gpu.buffers import PowerBuffer
from gpunode.gpu.energy import StateEnergy, divided
from gpunode.gpu.ledger import STATES
from tests.cases import with_each

START = 1_795_000_000.0
REST = 122.0
LIMIT = 700.0


class MeteredGpu:
    """A GPU with a power buffer and an energy counter, which tells ``told`` times the samples."""

    def __init__(self, watts: Callable[[float], float], told: float = 1.0) -> None:
        self.watts = watts
        self.told = told
        self.until = 0.0
        self.shown = 119
        self.counter_from = 0.0
        self.reads = 0

    def power_samples(self, after: int) -> SampleBuffer:
        newest = round(self.until * 50)
        samples = [
            (round((START + n / 50) * 1e6), self.watts(n / 50))
            for n in range(max(0, newest - self.shown), newest + 1)
        ]
        return SampleBuffer([(time, watts) for time, watts in samples if time > after])

    def energy(self) -> float:
        self.reads += 1
        since, until = round(self.counter_from * 50), round(self.until * 50)
        return self.told * sum(self.watts(n / 50) for n in range(since + 1, until + 1)) / 50

    def drawn(self) -> float:
        """The whole energy, though the counter may have been reset."""
        return (
            self.told * sum(self.watts(n / 50) for n in range(1, round(self.until * 50) + 1)) / 50
        )


class Follower:
    """Reads a GPU as its activity does."""

    def __init__(self, gpu: MeteredGpu) -> None:
        self.gpu = gpu
        self.buffer = PowerBuffer(cast(Gpu, gpu))
        self.energy = StateEnergy(cast(Gpu, gpu))
        self.buffer.drain(LIMIT)
        self.energy.begin(gpu.until)

    def follow(self, seconds: float, every: float = 2.0, **shares: float) -> None:
        end = self.gpu.until + seconds
        while self.gpu.until < end - 1e-6:
            self.gpu.until += every
            self.buffer.drain(LIMIT)
            before = dict(self.energy.joules)
            self.energy.count(self.buffer, self.gpu.until, shares or {"compute": 1.0}, REST, LIMIT)
            assert all(self.energy.joules[state] >= joules for state, joules in before.items())

    @property
    def total(self) -> float:
        return sum(self.energy.joules.values())


def square(time: float) -> float:
    return 690.0 if time % 0.5 < 0.3 else 130.0


@with_each(product([0.93, 1.0, 1.06], [20, 130, 600]))
def test_the_states_sum_to_the_energy_counter(told: float, seconds: float) -> None:
    gpu = MeteredGpu(square, told)
    follower = Follower(gpu)
    follower.follow(seconds, compute=0.6, starved=0.4)
    assert follower.total == pytest.approx(gpu.drawn(), rel=0.01)
    assert gpu.reads <= 5 + seconds / 120


def test_a_load_that_begins_at_a_read_of_the_counter_is_counted_right() -> None:
    """The counter has the beginning of the load and the samples, which are late, do not."""

    class Late(MeteredGpu):
        def power_samples(self, after: int) -> SampleBuffer:
            late = 0.2
            buffered = MeteredGpu(lambda t: self.watts(t - late))
            buffered.until = self.until
            return buffered.power_samples(after)

    gpu = Late(lambda time: REST if time < 9.8 else 600.0)
    follower = Follower(gpu)
    follower.follow(50)
    total, drawn = follower.total, gpu.drawn()
    follower.follow(20)
    assert follower.total - total == pytest.approx(gpu.drawn() - drawn, rel=0.005)


def test_what_samples_miss_comes_from_the_counter() -> None:
    gpu = MeteredGpu(lambda _: 500.0)
    follower = Follower(gpu)
    follower.follow(60)
    gpu.shown = 49  # the driver keeps 1 s of each window of 2 s
    follower.follow(600)
    assert follower.total == pytest.approx(gpu.drawn(), rel=0.01)
    assert gpu.reads <= 2 + 660 / 10


def test_a_window_that_comes_late_gets_all_of_its_energy() -> None:
    gpu = MeteredGpu(lambda time: 600.0 if time < 60 else 300.0)
    follower = Follower(gpu)
    follower.follow(60)
    follower.follow(60, every=60, unknown=1.0)
    assert follower.energy.joules["unknown"] == pytest.approx(300 * 60, rel=0.01)
    assert follower.total == pytest.approx(gpu.drawn(), rel=0.01)


def test_a_counter_that_is_reset_takes_nothing_away() -> None:
    gpu = MeteredGpu(square)
    follower = Follower(gpu)
    follower.follow(100)
    gpu.counter_from = gpu.until
    follower.follow(400)
    assert follower.total == pytest.approx(gpu.drawn(), rel=0.01)


def test_without_a_counter_the_samples_are_counted() -> None:
    class Unmetered(MeteredGpu):
        def energy(self) -> float:
            raise Unsupported("energy")

    gpu = Unmetered(square)
    follower = Follower(gpu)
    follower.follow(100)
    assert follower.total == pytest.approx(gpu.drawn(), rel=0.01)


class Failing(MeteredGpu):
    """The driver answers with an error in some of the time."""

    fails: tuple[float, float] = 0.0, 0.0

    def energy(self) -> float:
        if self.fails[0] <= self.until < self.fails[1]:
            raise DriverError("nvmlDeviceGetTotalEnergyConsumption: Unknown Error")
        return super().energy()


@pytest.mark.parametrize("fails", [(0.0, 60.0), (90.0, 250.0)])
def test_a_counter_that_fails_for_a_while_takes_nothing_away(fails: tuple[float, float]) -> None:
    gpu = Failing(square, 1.06)
    gpu.fails = fails
    follower = Follower(gpu)
    follower.follow(fails[1] - 2.0)
    assert follower.energy.counter is None
    before, drawn = (0.0, 0.0) if fails[0] else (follower.total, gpu.drawn())
    follower.follow(600)
    assert follower.total - before == pytest.approx(gpu.drawn() - drawn, rel=0.01)
    assert follower.energy.counter is not None


def test_a_state_that_draws_little_gets_little() -> None:
    """Half of the time at rest, half at work: each gets what it draws alone."""
    found = divided(2 * 386.0, {"compute": 0.5, "starved": 0.5}, 386.0, REST)
    assert found["starved"] == pytest.approx(REST, rel=0.1)
    assert found["compute"] == pytest.approx(650.0, rel=0.02)


@with_each(STATES)
def test_a_state_that_fills_a_window_gets_all_of_it(state: str) -> None:
    for mean in (75.0, 125.0, 690.0):
        assert divided(mean, {state: 1.0}, mean, REST) == {state: pytest.approx(mean)}


def test_no_state_draws_less_than_nothing() -> None:
    found = divided(60.0, {"free": 0.5, "compute": 0.5}, 60.0, REST)
    assert found == {"free": 30.0, "compute": 30.0}
