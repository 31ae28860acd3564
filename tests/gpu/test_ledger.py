"""Where one window goes: a row for every rule, and what holds for any window."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.driver.driver import Activity, Limits, Process, Utilization
from gpunode.gpu.buffers import PowerWindow
from gpunode.gpu.ledger import IDLE_AFTER, STATES, split
from gpunode.gpu.window import Window

RESTING = 122.5
H200 = Limits(
    memory_bytes_per_second=4.8e12,
    nvlink_bytes_per_second=478e9,
    pcie_bytes_per_second=63e9,
)
COUNTERS = {
    "graphics": 0.0,
    "sm": 0.0,
    "tensor": 0.0,
    "dram": 0.0,
    "fp32": 0.0,
    "integer": 0.0,
    "pcie_transmit": 0.0,
    "pcie_receive": 0.0,
}


def steady(watts: float) -> PowerWindow:
    return PowerWindow(tuple((place * 0.02, watts) for place in range(100)))


def swinging(low_share: float, high: float = 700.0, low: float = 125.0) -> PowerWindow:
    """Draw that alternates ten times in the window."""
    return PowerWindow(
        tuple((n * 0.02, low if n % 10 < 10 * low_share else high) for n in range(100))
    )


def window(power: PowerWindow | None = None, **seen: Any) -> Window:
    counters = {name: seen.pop(name) for name in list(seen) if name in COUNTERS}
    moved = max(counters.get("pcie_transmit", 0.0), counters.get("pcie_receive", 0.0))
    return Window(
        **{
            "seconds": 2.0,
            "activity": Activity(2.0, {**COUNTERS, **counters}),
            "power": power,
            "power_limit": 700.0,
            "resting_power": RESTING,
            "pcie": moved,
            "processes": held_by(1),
            "limits": H200,
            **seen,
        }
    )


def held_by(processes: int) -> list[Process]:
    return [Process(pid, None, "compute") for pid in range(processes)]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            window(steady(690), graphics=0.98, sm=0.95, tensor=0.92, dram=0.17),
            {"compute": 0.98, "starved": 0.02},
            id="matrix products",
        ),
        pytest.param(
            window(steady(616), graphics=0.98, sm=0.95, fp32=0.75, dram=0.05),
            {"compute": 0.98, "starved": 0.02},
            id="single precision",
        ),
        pytest.param(
            window(steady(486), graphics=0.99, sm=0.96, dram=0.86),
            {"compute": 0.99, "starved": 0.01},
            id="elementwise",
        ),
        pytest.param(
            window(steady(295), graphics=0.97, sm=0.17, dram=0.25, nvlink=286e9),
            {"communication": 0.97, "starved": 0.03},
            id="all-reduce over NVLink",
        ),
        pytest.param(
            window(
                steady(141),
                graphics=0.98,
                sm=0.03,
                dram=0.01,
                pcie_receive=31e9,
                pcie_transmit=34e9,
            ),
            {"communication": 0.98, "starved": 0.02},
            id="all-reduce over PCIe",
        ),
        pytest.param(
            window(steady(126), graphics=0.99, sm=0.18),
            {"blocked": 0.99, "starved": 0.01},
            id="a collective that a peer never joins",
        ),
        pytest.param(
            window(steady(125), graphics=1.0, sm=0.0076, pcie_transmit=0.3e6, pcie_receive=0.1e6),
            {"blocked": 1.0},
            id="a barrier",
        ),
        pytest.param(
            window(steady(125), graphics=1.0, sm=0.0076, pcie_transmit=0.3e6, peers=False),
            {"compute": 1.0},
            id="one small kernel of a process that has no peer",
        ),
        pytest.param(
            window(steady(156), graphics=0.76, sm=0.1, tensor=0.024, dram=0.002, peers=False),
            {"compute": 0.76, "starved": 0.24},
            id="an LSTM of a process that has no peer",
        ),
        pytest.param(
            window(steady(130), busy=1.0, pcie_receive=55e9, pcie_transmit=3.2e9, dram=0.01),
            {"copy": 1.0},
            id="copies to the device",
        ),
        pytest.param(
            window(
                steady(132),
                graphics=0.07,
                sm=0.06,
                dram=0.02,
                tensor=0.01,
                busy=0.21,
                pcie_receive=8.1e9,
                pcie_transmit=0.48e9,
                peers=False,
            ),
            {"copy": 0.16, "compute": 0.07, "starved": 0.77},
            id="copies from memory that is not pinned",
        ),
        pytest.param(
            window(steady(124), graphics=0.19, sm=0.0003, pcie_transmit=20e6, pcie_receive=150e6),
            {"starved": 0.92, "compute": 0.08},
            id="tiny kernels one by one",
        ),
        pytest.param(
            window(steady(270), graphics=0.46, sm=0.34, dram=0.26, tensor=0.017, peers=False),
            {"compute": 0.46, "starved": 0.54},
            id="small kernels one by one",
        ),
        pytest.param(
            window(
                steady(175),
                graphics=0.27,
                sm=0.08,
                dram=0.026,
                tensor=0.003,
                nvlink=6.3e9,
                peers=True,
            ),
            {"starved": 0.73, "blocked": 0.17, "compute": 0.08, "communication": 0.02},
            id="FSDP that its CPUs hold up",
        ),
        pytest.param(
            window(swinging(0.7), graphics=0.26, sm=0.22, tensor=0.21, dram=0.05),
            {"compute": 0.26, "starved": 0.74},
            id="waiting for data between steps",
        ),
        pytest.param(
            window(swinging(0.8), graphics=0.99, sm=0.355, tensor=0.182, dram=0.052, nvlink=2e9),
            {"compute": 0.21, "blocked": 0.77, "starved": 0.01},
            id="waiting for a straggler between steps",
        ),
        pytest.param(
            window(steady(400), graphics=0.95, sm=0.5, dram=0.5, tensor=0.05, peers=False),
            {"compute": 0.95, "starved": 0.05},
            id="decoding with half of the SMs is not waiting",
        ),
        pytest.param(
            window(steady(250), graphics=0.95, sm=0.25, dram=0.15, tensor=0.01, peers=False),
            {"compute": 0.95, "starved": 0.05},
            id="decoding with a quarter of the SMs is not waiting",
        ),
        pytest.param(window(steady(79), processes=[]), {"free": 1.0}, id="no process"),
        pytest.param(
            window(steady(79), processes=[Process(1, 4e6, "graphics")]), {"free": 1.0}, id="Xorg"
        ),
        pytest.param(
            window(steady(122), quiet_for=IDLE_AFTER + 2), {"idle": 1.0}, id="held and unused"
        ),
        pytest.param(
            window(steady(122), quiet_for=1.0), {"starved": 1.0}, id="a pause of a job at work"
        ),
        pytest.param(
            window(steady(690), busy=1.0, utilization=Utilization(1.0, 0.2)),
            {"unknown": 1.0},
            id="counters that stand still while utilisation is 100 %",
        ),
        pytest.param(
            window(steady(690), activity=Activity(2.0, {})),
            {"unknown": 1.0},
            id="counters that do not answer",
        ),
        pytest.param(
            window(None, activity=None, busy=None), {"unknown": 1.0}, id="no sensor at all"
        ),
        pytest.param(
            window(steady(690), activity=None, busy=0.99, utilization=Utilization(0.99, 0.3)),
            {"compute": 0.99, "unknown": 0.01},
            id="without GPM, at full power",
        ),
        pytest.param(
            window(steady(480), activity=None, busy=0.99, utilization=Utilization(0.99, 1.0)),
            {"compute": 0.99, "unknown": 0.01},
            id="without GPM, memory accessed all the time",
        ),
        pytest.param(
            window(steady(126), activity=None, busy=1.0, utilization=Utilization(1.0, 0.0)),
            {"blocked": 1.0},
            id="without GPM, busy with nothing",
        ),
        pytest.param(
            window(steady(200), activity=None, busy=0.5, utilization=Utilization(0.5, 0.1)),
            {"unknown": 0.5, "starved": 0.5},
            id="without GPM, anything else",
        ),
        pytest.param(
            window(
                steady(124),
                graphics=0.05,
                sm=0.004,
                pcie_receive=40e6,
                pcie_transmit=36e6,
                peers=True,
            ),
            {"blocked": 0.05, "starved": 0.95},
            id="peers that exchange a little over PCIe, which are no commands",
        ),
        pytest.param(
            window(
                steady(128),
                graphics=0.15,
                sm=0.022,
                pcie_receive=1.2e9,
                pcie_transmit=1.3e9,
                peers=True,
            ),
            {"starved": 0.86, "communication": 0.04, "blocked": 0.1},
            id="peers whose exchange over PCIe hides the commands",
        ),
        pytest.param(
            window(
                steady(290),
                graphics=1.0,
                sm=0.48,
                dram=0.02,
                nvlink=207e6,
                pcie_receive=66e6,
                pcie_transmit=9e6,
                peers=True,
            ),
            {"compute": 0.59, "blocked": 0.36, "starved": 0.05},
            id="short waits between work, which the draw does not show",
        ),
        pytest.param(
            window(
                steady(130),
                graphics=0.5,
                sm=0.04,
                dram=0.0,
                nvlink=0.4e6,
                pcie_receive=3e6,
                pcie_transmit=0.4e6,
                peers=True,
            ),
            {"blocked": 0.5, "starved": 0.5},
            id="peers that wait in barriers",
        ),
        pytest.param(
            window(steady(150), graphics=1.0, sm=0.97, integer=0.98, peers=True),
            {"compute": 1.0},
            id="a loop of integers that touches nothing",
        ),
        pytest.param(
            window(
                steady(150),
                activity=Activity(
                    2.0,
                    {**COUNTERS, "graphics": 0.95, "sm": 0.03, "pcie_receive": 50e9},
                    "gpm",
                ),
                pcie=50e9,
                busy=0.95,
                peers=True,
            ),
            {"communication": 0.91, "blocked": 0.04, "starved": 0.05},
            id="a kernel that a peer writes to over PCIe",
        ),
    ],
)
def test_a_window_goes_to(seen: Window, expected: dict[str, float]) -> None:
    everywhere = {**dict.fromkeys(STATES, 0.0), **expected}
    assert split(seen) == pytest.approx(everywhere, abs=0.025)


share = st.floats(0, 1)
maybe = st.none() | share
rate = st.none() | st.floats(0, 1e12)
counters = st.dictionaries(st.sampled_from([*COUNTERS, "fp64", "fp16"]), st.floats(0, 1.5))
powers = st.none() | st.lists(st.tuples(share, st.floats(0, 1500)), max_size=30).map(
    lambda samples: PowerWindow(tuple(samples))
)
windows = st.builds(
    Window,
    seconds=st.floats(0.1, 10),
    activity=st.none() | counters.map(lambda values: Activity(2.0, values)),
    busy=maybe,
    utilization=st.none() | st.builds(Utilization, gpu=share, memory=share),
    power=powers,
    power_limit=st.none() | st.floats(1, 1000),
    nvlink=rate,
    pcie=rate,
    peers=st.sampled_from([True, False, None]),
    resting_power=st.none() | st.floats(50, 200),
    processes=st.none() | st.integers(0, 9).map(held_by),
    given=st.booleans(),
    quiet_for=st.floats(0, math.inf),
    limits=st.just(H200) | st.just(Limits()),
)


@pytest.mark.parametrize(
    ("busy", "copied"),
    [
        pytest.param(0.6, 0.0, id="a kernel of cuDNN that reads what the host has"),
        pytest.param(0.7, 0.1, id="copies from memory that is not pinned"),
        pytest.param(None, 0.0, id="the buffer of utilisation was not read"),
    ],
)
def test_what_no_copy_engine_moved_while_no_kernel_ran_is_no_copy(
    busy: float | None, copied: float
) -> None:
    """Readings of a recurrent network on an H200; with engines, those of a copy beside."""
    seen = window(
        steady(235),
        graphics=0.6,
        sm=0.5,
        dram=0.2,
        busy=busy,
        pcie_receive=5.75e9,
        pcie_transmit=0.39e9,
        peers=False,
    )
    assert split(seen)["copy"] == pytest.approx(copied, abs=0.02)


@given(windows)
def test_shares_are_shares(seen: Window) -> None:
    shares = split(seen)
    assert shares.keys() == STATES.keys()
    assert all(share >= -1e-9 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1)


@given(windows)
def test_time_in_which_something_ran_is_never_called_unused(seen: Window) -> None:
    """Idle and free take at most what neither a kernel nor a copy can have taken."""
    shares = split(seen)
    busy = seen.busy if seen.activity is None else seen.share("graphics")
    unused = shares["idle"] + shares["free"]
    assert busy is None or unused <= 1 - busy + 1e-9


@given(windows)
def test_a_gpu_that_a_job_has_is_never_free(seen: Window) -> None:
    """What a job has and no process uses is idle, not starved: nothing runs that could be."""
    shares = split(replace(seen, given=True))
    without = split(replace(seen, given=False))
    assert shares["free"] == 0
    assert shares["idle"] == pytest.approx(without["idle"] + without["free"])


@given(windows)
def test_without_a_sensor_nothing_is_guessed(seen: Window) -> None:
    seen = replace(seen, activity=None, busy=None)
    shares = split(seen)
    unused = "idle" if seen.given else "free"
    assert shares[unused if seen.empty else "unknown"] == 1
