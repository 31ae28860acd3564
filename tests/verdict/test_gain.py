"""What mending a cause would give: GPUs of which a scenario says where their time goes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.gpu import activity
from gpunode.gpu.activity import SM_CLOCK, SM_CLOCK_MAX
from gpunode.gpu.health import PCIE_GENERATION, PCIE_WIDTH, THROTTLED
from gpunode.gpu.ledger import STATES
from gpunode.gpu.nvlink import NVLINK_SPEED
from gpunode.gpu.units import ACTIVE, NVLINK_BYTES, PCIE_BYTES
from gpunode.verdict.causes.cause import RESIDUE
from gpunode.verdict.gain import GAIN, MIN_TIME_LEFT, Gain
from tests.cases import with_each
from tests.verdict.stage import HBM, SHORT, Actor, Labelled, Stage
from tests.verdict.test_causes import ONE_THREAD, PREPARES, RESTS

LINK = {PCIE_GENERATION: 5.0, PCIE_WIDTH: 16.0}


def way(**rates: float) -> dict[Labelled, float]:
    """Bytes per second over PCIe."""
    return {(PCIE_BYTES, (direction,)): rate for direction, rate in rates.items()}


FP32: dict[Labelled, float] = {(ACTIVE, ("fp32",)): 0.6, (ACTIVE, ("tensor",)): 0.0}
OVER_PCIE: dict[Labelled, float] = {
    **way(transmit=9e9, receive=9e9),
    (NVLINK_BYTES, ("transmit",)): 0.0,
}
OVER_NVLINK: dict[Labelled, float] = {
    **way(transmit=1e7, receive=1e7),
    (NVLINK_BYTES, ("transmit",)): 90e9,
}


@with_each(
    [
        # Gaps go, whatever their length, but for those that every job has.
        (
            Actor(0, {"compute": 0.4, SHORT: 0.2, "starved": 0.4}, PREPARES),
            "data_loading_cpu",
            (1.0 - RESIDUE) / 0.4,
        ),
        (Actor(0, {"compute": 0.5, SHORT: 0.5}), "kernel_launch", (1.0 - RESIDUE) / 0.5),
        # What is computed on the host goes with its copies.
        (
            Actor(
                0,
                {"compute": 0.4, "starved": 0.3, "copy": 0.3},
                ONE_THREAD,
                way(transmit=5e9, receive=5e9),
            ),
            "host_compute",
            (1.0 - RESIDUE) / 0.4,
        ),
        # Pinned copies are hidden by what is computed, if the link is fast enough for them.
        (
            Actor(0, {"compute": 0.4, "copy": 0.6}, LINK, way(transmit=1e8, receive=5e9)),
            "data_loading_copy",
            (1.0 - RESIDUE) / 0.4,
        ),
        (
            Actor(0, {"compute": 0.4, "copy": 0.6}, LINK, way(transmit=1e8, receive=42.8e9)),
            "data_loading_copy",
            1.0 / 0.8,
        ),
        # Collectives over PCIe take next to nothing over NVLink; those over NVLink can be hidden.
        (
            Actor(0, {"compute": 0.6, "communication": 0.4}, {NVLINK_SPEED: 450e9}, OVER_PCIE),
            "communication",
            1.0 / 0.6,
        ),
        (
            Actor(0, {"compute": 0.7, "communication": 0.3}, {NVLINK_SPEED: 450e9}, OVER_NVLINK),
            "communication",
            1.0 / 0.8,
        ),
        (
            Actor(0, {"compute": 1.0}, rates={**FP32, (ACTIVE, ("dram",)): 0.087}),
            "precision",
            1.0 / (1 / 9 + 8 / 9 / 5.2),
        ),
        (
            Actor(
                0,
                {"compute": 1.0},
                {SM_CLOCK: 1e9, SM_CLOCK_MAX: 2e9},
                {
                    (THROTTLED, ("hw_thermal",)): 0.9,
                    (ACTIVE, ("tensor",)): 0.8 * 0.92,
                    (ACTIVE, ("dram",)): 0.2 * 0.87,
                },
            ),
            "thermal",
            1.0 / 0.6,
        ),
        # Clocks were low in little of the time, whatever they were when they were read.
        (
            Actor(
                0,
                {"compute": 1.0},
                {SM_CLOCK: 1e9, SM_CLOCK_MAX: 2e9},
                {(THROTTLED, ("hw_thermal",)): 0.06},
            ),
            "thermal",
            1.0 / 0.94,
        ),
    ]
)
def test_what_mending_a_cause_would_give(actor: Actor, cause: str, expected: float) -> None:
    stage = Stage(actor)
    stage.play(80)
    verdict = stage.verdict()
    assert verdict.cause == cause
    assert verdict.gain is not None
    assert verdict.gain.estimate == pytest.approx(expected, rel=0.01)
    exported = {s.labels[2:]: s.value for s in stage.loop.samples() if s.metric is GAIN}
    assert exported == {
        (cause, "lower"): verdict.gain.lower,
        (cause, "estimate"): verdict.gain.estimate,
        (cause, "upper"): verdict.gain.upper,
    }


@pytest.mark.parametrize(
    ("rates", "around"),
    [(OVER_PCIE, True), (OVER_NVLINK, False)],
    ids=["over PCI Express", "over NVLinks"],
)
def test_what_goes_around_nvlinks_is_told(rates: dict[Labelled, float], around: bool) -> None:
    states = {"compute": 0.6, "communication": 0.4}
    for links in ({NVLINK_SPEED: 450e9}, {}):
        stage = Stage(Actor(0, states, links, rates))
        stage.play(60)
        told = [one.series for one in stage.verdict().evidence if "NCCL_P2P" in one.meaning]
        assert bool(told) == (around and bool(links))
        assert all(series.startswith("gpunode_gpu_pcie_bytes_total{") for series in told)


@with_each(
    [
        Actor(0, {"compute": 1.0}),
        Actor(0, {HBM: 1.0}, rates={(ACTIVE, ("dram",)): 0.9}),
        Actor(0, {"starved": 1.0}, {activity.STOPPED: 1.0, **RESTS}),
        Actor(0, {"starved": 1.0}, PREPARES),
        Actor(0, {"idle": 1.0}, ONE_THREAD),
        Actor(0, {"starved": 0.6, "compute": 0.4}, RESTS, program="VLLM::EngineCore"),
    ]
)
def test_nothing_is_told_where_there_is_no_speed_to_compare(actor: Actor) -> None:
    stage = Stage(actor)
    stage.play(60)
    assert stage.verdict().gain is None
    assert not [sample for sample in stage.loop.samples() if sample.metric is GAIN]


def test_a_rank_that_is_late_holds_the_others_up_by_its_gaps_or_its_share_of_the_work() -> None:
    """Two ranks: the gaps of one go; of work that one has more of, each gets the mean."""
    waits = Actor(0, {"compute": 0.5, "blocked": 0.5}, peers=True)
    late = Actor(1, {"compute": 0.5, "starved": 0.5}, peers=True)
    stage = Stage(waits, late)
    stage.play(40)
    assert stage.causes[0] == "straggler"
    gaps = stage.verdict(0).gain
    assert gaps is not None
    assert gaps.estimate == pytest.approx(2.0, rel=0.01)
    busy = Stage(
        Actor(0, {"compute": 0.5, "blocked": 0.5}, peers=True),
        Actor(1, {"compute": 1.0}, peers=True),
    )
    busy.play(40)
    work = busy.verdict(0).gain
    assert work is not None
    assert work.estimate == pytest.approx(4 / 3, rel=0.01)


def test_the_interval_is_wider_where_the_windows_differ_more() -> None:
    widths = []
    for noise in (0.0, 0.15):
        chance = random.Random(3)
        actor = Actor(0, {"compute": 0.6, "starved": 0.4}, PREPARES)
        stage = Stage(actor)
        for _ in range(30):
            starved = min(0.9, max(0.0, 0.4 + chance.gauss(0.0, noise)))
            actor.states = {"compute": 1.0 - starved, "starved": starved}
            stage.play(2.0)
        told = stage.verdict().gain
        assert told is not None
        widths.append(told.upper / told.lower)
    assert widths[1] > 1.3 * widths[0]


@given(
    st.dictionaries(st.sampled_from(sorted(STATES)), st.floats(0.01, 1.0), min_size=1),
    st.sampled_from([{}, PREPARES, ONE_THREAD, LINK]),
)
@settings(max_examples=60)
def test_whatever_the_time_goes_to_a_gain_is_within_its_bounds(
    parts: dict[str, float], gauges: dict[object, float]
) -> None:
    states = {state: part / sum(parts.values()) for state, part in parts.items()}
    stage = Stage(Actor(0, states, gauges))  # type: ignore[arg-type]
    stage.play(30)
    told = stage.verdict().gain
    if told is not None:
        assert 1.0 <= told.lower <= told.estimate <= told.upper <= 1.0 / MIN_TIME_LEFT
        assert told.estimate > 1.0


@with_each(
    [
        (Gain(1.24, 1.33, 1.46), "1.3 times as fast (1.2 to 1.5)"),
        (Gain(7.7, 12.0, 15.3), "12 times as fast (7.7 to 15)"),
        (Gain(2.9, 7.9, 25.0), "at least 2.9 times as fast"),
        (Gain(1.04, 2.0, 6.0), ""),
        (Gain(1.0, 1.04, 1.2), ""),
    ]
)
def test_a_gain_in_words(gain: Gain, words: str) -> None:
    assert gain.words == words
