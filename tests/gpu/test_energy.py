"""Energy by state: how a window's is divided, and that the sum is the driver's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.gpu.energy import Energy, divided
from gpunode.gpu.ledger import STATES

RESTING = 120.0
EVERY = 120.0
"""Seconds between reads of the driver's counter."""

WINDOW = 2.0
LIMIT = 700.0


def shares(**states: float) -> dict[str, float]:
    return {**dict.fromkeys(STATES, 0.0), **states}


def test_a_gpu_that_starves_draws_as_one_at_rest_and_the_kernels_the_rest() -> None:
    found = divided(2 * 400.0, 2.0, shares(compute=0.5, starved=0.5), RESTING)
    assert found["starved"] == pytest.approx(RESTING)
    assert found["compute"] == pytest.approx(2 * 400.0 - RESTING)


def test_arithmetic_draws_more_than_memory_traffic_of_the_same_time() -> None:
    found = divided(2 * 500.0, 2.0, shares(compute=0.5, memory=0.5), RESTING)
    assert found["compute"] > found["memory"] > RESTING


def test_a_free_gpu_may_draw_less_than_one_at_rest() -> None:
    assert divided(2 * 80.0, 2.0, shares(free=1.0), RESTING)["free"] == pytest.approx(160.0)


@given(
    joules=st.floats(0.0, 5000.0),
    resting=st.none() | st.floats(1.0, 300.0),
    parts=st.lists(st.floats(0.0, 1.0), min_size=len(STATES), max_size=len(STATES)),
)
def test_the_states_add_up_and_none_is_negative(
    joules: float, resting: float | None, parts: list[float]
) -> None:
    total = sum(parts)
    whole = [part / total for part in parts] if total else [1.0, *[0.0] * (len(parts) - 1)]
    found = divided(joules, 2.0, dict(zip(STATES, whole, strict=True)), resting)
    assert sum(found.values()) == pytest.approx(joules, abs=1e-6)
    assert min(found.values()) >= 0.0


class Played:
    """A GPU whose samples and counter differ by a factor, or of which some samples are missing."""

    def __init__(self, samples: float = 1.0) -> None:
        self.energy = Energy()
        self.samples = samples
        self.counter = 7e6
        self.now = 1000.0
        self.energy.follow(self.counter, self.now, LIMIT)
        self.began = self.counter

    def run(self, seconds: float, watts: float, *, seen: bool = True) -> None:
        before = self.energy.joules.copy()
        for _ in range(round(seconds / WINDOW)):
            joules = watts * WINDOW
            self.counter += joules
            self.now += WINDOW
            sampled = joules * self.samples if seen else 0.0
            self.energy.add(sampled, WINDOW, shares(compute=1.0), RESTING)
        self.energy.follow(self.counter, self.now, LIMIT)
        assert all(self.energy.joules[each] >= before[each] for each in STATES)

    @property
    def error(self) -> float:
        counted = self.counter - self.began
        return sum(self.energy.joules.values()) / counted - 1.0


@pytest.mark.parametrize("samples", [0.9, 1.0, 1.1])
def test_the_sum_is_that_of_the_driver_s_counter(samples: float) -> None:
    gpu = Played(samples)
    for watts in (600.0, 300.0, 650.0, 200.0):
        gpu.run(EVERY, watts)
    assert gpu.error == pytest.approx(0.0, abs=0.01)


def test_samples_that_are_missing_are_made_up_for_by_the_states_of_that_time() -> None:
    gpu = Played()
    gpu.run(EVERY, 600.0)
    gpu.energy.add(20.0, WINDOW, shares(memory=1.0), RESTING)
    gpu.run(EVERY / 2, 600.0, seen=False)
    assert gpu.error == pytest.approx(0.0, abs=0.01)
    assert gpu.energy.joules["memory"] == pytest.approx(600.0 * EVERY / 2, rel=0.01)


def test_a_counter_that_starts_again_adds_and_takes_nothing() -> None:
    gpu = Played()
    gpu.run(EVERY, 600.0)
    before = sum(gpu.energy.joules.values())
    gpu.energy.follow(5.0, gpu.now + 1.0, LIMIT)
    gpu.energy.follow(5.0 + 600.0 * EVERY, gpu.now + 1.0 + EVERY, LIMIT)
    assert sum(gpu.energy.joules.values()) == before


def test_a_counter_that_leaps_is_not_believed() -> None:
    gpu = Played()
    gpu.run(EVERY, 600.0)
    before = sum(gpu.energy.joules.values())
    gpu.energy.follow(gpu.counter + 1e9, gpu.now + EVERY, LIMIT)
    assert sum(gpu.energy.joules.values()) == before
