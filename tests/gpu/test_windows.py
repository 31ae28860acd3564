"""Windows of real programs, whose every kernel was traced, and windows made up from signatures."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.driver.driver import Activity, Limits, Process
from gpunode.gpu.buffers import PowerWindow
from gpunode.gpu.ledger import STATES, split, stands_still
from gpunode.gpu.window import Window
from tests.cases import with_each
from tests.windows.programs import recorded

H200 = Limits(
    memory_bytes_per_second=4.8e12,
    nvlink_bytes_per_second=478e9,
    pcie_bytes_per_second=63e9,
)
LIMIT = 700.0
RESTING = 0.175 * LIMIT
CLIFF = 0.05
"""The most that a share may change where one reading of a recorded window changes by 1 %."""

STEEP = 0.08
"""The limit for a window made up from signatures, in one of some hundred."""


def window(
    values: dict[str, float],
    watts: list[float],
    busy: float | None = None,
    peers: bool | None = None,
    seconds: float = 2.0,
) -> Window:
    """A window of an H200 that a process holds."""
    return Window(
        seconds=seconds,
        activity=Activity(seconds, values),
        busy=busy,
        power=PowerWindow(tuple((0.02 * place, draw) for place, draw in enumerate(watts))),
        power_limit=LIMIT,
        nvlink=max(values.get("nvlink_receive", 0.0), values.get("nvlink_transmit", 0.0)),
        pcie=max(values.get("pcie_receive", 0.0), values.get("pcie_transmit", 0.0)),
        processes=[Process(1, None, "compute")],
        limits=H200,
        peers=peers,
        resting_power=RESTING,
    )


PROGRAMS = recorded()
WINDOWS = [window for program in PROGRAMS for window in program.windows]


@pytest.mark.parametrize(
    ("use", "close", "near"),
    [("one process", 0.92, 0.98), ("several processes", 0.7, 0.85), ("several GPUs", 0.7, 0.9)],
)
def test_the_ledger_is_right_on_programs_that_were_traced(
    use: str, close: float, near: float
) -> None:
    errors = {p.name: p.error() for p in PROGRAMS if p.use == use}
    assert sum(error <= 0.10 for error in errors.values()) >= near * len(errors), errors
    assert sum(error <= 0.05 for error in errors.values()) >= close * len(errors), errors


def neighbours(seen: Window) -> Iterator[tuple[str, Window]]:
    """The window with one reading changed by 1 %, for each reading."""
    assert seen.activity is not None
    assert seen.power is not None
    assert seen.resting_power is not None
    for factor in (0.99, 1.01):
        for name, value in seen.activity.values.items():
            values = {**seen.activity.values, name: factor * value}
            changed = replace(seen, activity=Activity(seen.seconds, values))
            nvlink = max(values.get("nvlink_receive", 0.0), values.get("nvlink_transmit", 0.0))
            pcie = max(values.get("pcie_receive", 0.0), values.get("pcie_transmit", 0.0))
            yield name, replace(changed, nvlink=nvlink, pcie=pcie)
        if seen.busy is not None:
            yield "busy", replace(seen, busy=factor * seen.busy)
        draws = tuple((time, factor * watts) for time, watts in seen.power.samples)
        yield "power", replace(seen, power=PowerWindow(draws))
        yield "resting power", replace(seen, resting_power=factor * seen.resting_power)


def cliffs(seen: Window, most: float = CLIFF) -> dict[str, dict[str, float]]:
    """What changes by more than ``most`` in a neighbour, by reading."""
    shares = split(seen)
    found = {}
    for name, neighbour in neighbours(seen):
        others = split(neighbour)
        moved = {s: others[s] - shares[s] for s in STATES if abs(others[s] - shares[s]) > most}
        if moved:
            found[name] = moved
    return found


def test_readings_that_differ_by_a_hair_give_shares_that_differ_by_a_hair() -> None:
    for seen in WINDOWS[::6]:
        assert not cliffs(seen), seen


SIGNATURES: dict[str, tuple[dict[str, float], float]] = {
    "compute": ({"graphics": 1, "sm": 0.97, "tensor": 0.9, "dram": 0.17}, 690),
    "elementwise": ({"graphics": 1, "sm": 0.95, "dram": 0.86}, 480),
    "nvlink": (
        {
            "graphics": 1,
            "sm": 0.18,
            "dram": 0.2,
            "nvlink_receive": 250e9,
            "nvlink_transmit": 250e9,
        },
        290,
    ),
    "pcie": ({"graphics": 1, "sm": 0.03, "pcie_receive": 31e9, "pcie_transmit": 34e9}, 141),
    "spinning": ({"graphics": 1, "sm": 0.18, "pcie_receive": 0.6e6, "pcie_transmit": 0.6e6}, 126),
    "barrier": ({"graphics": 1, "sm": 0.0076, "pcie_receive": 1e5, "pcie_transmit": 3e5}, 124),
    "pinned": ({"pcie_receive": 55e9, "pcie_transmit": 3.2e9}, 130),
    "pageable": ({"pcie_receive": 8.7e9, "pcie_transmit": 0.52e9}, 130),
    "results": ({"pcie_receive": 1e5, "pcie_transmit": 2.5e9}, 128),
    "launching": ({"pcie_receive": 90e6, "pcie_transmit": 17e6}, 160),
    "starving": ({"pcie_receive": 1e5, "pcie_transmit": 3e5}, 123),
}


COPYING = {"pinned": 1.0, "pageable": 0.15, "results": 0.11}
"""Share of the time in which copy engines run."""


def mixture(seed: int) -> Window:
    """Some signatures, each for a share of the window, with the draw that goes with them."""
    any_of = random.Random(seed)
    names = any_of.choices(sorted(SIGNATURES), k=any_of.randint(1, 5))
    weights = [any_of.uniform(0.01, 1) for _ in names]
    values: dict[str, float] = defaultdict(float, sm=0.0, tensor=0.0, dram=0.0, graphics=0.0)
    watts: list[float] = []
    for name, weight in zip(names, weights, strict=True):
        share = weight / sum(weights)
        signature, power = SIGNATURES[name]
        for sensor, value in signature.items():
            values[sensor] += share * value * any_of.uniform(0.7, 1.0)
        watts += [power * any_of.uniform(0.97, 1.05)] * round(100 * share)
    smooth = any_of.choice([0.0, 1.0, any_of.random()])
    mean = sum(watts) / len(watts)
    values["graphics"] = min(1.0, values["graphics"])
    copying = sum(
        weight * COPYING.get(name, 0.0) for name, weight in zip(names, weights, strict=True)
    )
    busy = any_of.choice([None, min(1.0, values["graphics"] + copying / sum(weights))])
    return window(
        dict(values),
        [smooth * mean + (1 - smooth) * draw for draw in watts],
        busy,
        any_of.choice([True, False, None]),
    )


PINNED_AND_RESULTS = {"pcie_receive": 18.36e9, "pcie_transmit": 1.8015e9}


def test_few_results_among_many_pinned_copies_are_no_cliff() -> None:
    assert not cliffs(window(PINNED_AND_RESULTS, [160.0] * 33 + [130.0] * 66, 0.33, False))


def test_one_mixture_of_signatures_in_hundreds_stands_at_a_cliff() -> None:
    """Not Hypothesis: what it draws depends on the modules that other tests have imported."""
    seen = [mixture(seed) for seed in range(200)]
    assert sum(bool(cliffs(one, STEEP)) for one in seen) <= 1
    assert not any(cliffs(one, 2 * STEEP) for one in seen)


@given(st.integers(0, 2**32).map(mixture))
def test_a_process_without_a_peer_waits_for_nobody(seen: Window) -> None:
    shares = split(replace(seen, peers=False))
    assert shares["blocked"] == 0
    assert shares["communication"] <= max(0.0, (seen.busy or 0.0) - (seen.share("graphics") or 0.0))


def moving(sensor: str, other: str, full: float) -> list[float]:
    """The share of communication in a collective whose links move tenths of their rate."""
    found = []
    for tenth in range(11):
        values = {"graphics": 1.0, "sm": 0.02, "tensor": 0.0, "dram": 0.0}
        values |= {sensor: full * tenth / 10, other: full * tenth / 10}
        found.append(split(window(values, [126.0] * 100, peers=True))["communication"])
    return found


def test_what_nvlink_moves_at_its_known_rate_is_not_waiting() -> None:
    shares = moving("nvlink_receive", "nvlink_transmit", 250e9)
    assert shares == pytest.approx([tenth / 10 for tenth in range(11)], abs=0.03)


def test_what_pcie_moves_may_be_all_that_a_slower_network_takes() -> None:
    shares = moving("pcie_receive", "pcie_transmit", 31e9)
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert 0.4 < shares[1] < 0.5
    assert shares[10] > 0.95


@with_each(product([1, 4, 24, 32, 64], [126.0, 151.0]))
def test_a_hang_is_one_whatever_the_number_of_channels(sms: int, watts: float) -> None:
    """Of GPUs of one model, one draws a quarter more at rest than another."""
    values = {"graphics": 1.0, "sm": sms / 132, "tensor": 0.0, "dram": 0.0}
    values |= {"pcie_receive": 2e5, "pcie_transmit": 4e5}
    seen = window(values, [watts] * 100, peers=True)
    assert stands_still(seen, split(seen))


@with_each(
    [
        ({"pcie_receive": 2e9, "pcie_transmit": 2e9}, 140.0),  # a slow network
        ({"nvlink_receive": 3e7, "nvlink_transmit": 3e7}, 126.0),  # small messages
        ({"pcie_receive": 60e6, "pcie_transmit": 15e6}, 126.0),  # launches
        ({}, 300.0),  # a kernel that draws
        ({"dram": 0.3}, 126.0),  # a kernel that reads memory
        ({"integer": 0.3}, 151.0),  # a kernel that counts
    ]
)
def test_what_goes_on_slowly_is_no_hang(change: dict[str, float], watts: float) -> None:
    values = {"graphics": 1.0, "sm": 0.05, "tensor": 0.0, "dram": 0.0}
    values |= {"pcie_receive": 2e5, "pcie_transmit": 4e5, **change}
    seen = window(values, [watts] * 100, peers=True)
    assert not stands_still(seen, split(seen))


def test_a_missing_sensor_is_no_evidence_of_a_hang() -> None:
    values = {"graphics": 1.0, "sm": 0.05, "tensor": 0.0, "dram": 0.0}
    seen = window(values, [126.0] * 100, peers=True)
    assert not stands_still(seen, split(seen))
