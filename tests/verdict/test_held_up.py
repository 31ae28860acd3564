"""What holds each GPU up, and for how long already: as exported."""

from __future__ import annotations

import pytest

from gpunode.gpu.activity import STOPPED
from gpunode.jobs.owners import ALLOCATED
from gpunode.jobs.steps import SECONDS as PHASES
from gpunode.serving.requests import INFO, STARTING, TOKENLESS
from gpunode.verdict.held_up import HELD_UP, HoldTracker
from tests.verdict.stage import Actor, Stage

Told = dict[int, tuple[str, object]]


def held_up(stage: Stage) -> Told:
    """The cause of each GPU and its seconds."""
    found = (one for one in stage.loop.samples() if one.metric is HELD_UP)
    return {int(one.labels[0]): (one.labels[2], float(f"{one.value}")) for one in found}


def training(count: int = 2) -> list[Actor]:
    return [Actor(index, peers=True, trains=True) for index in range(count)]


def on(*actors: Actor) -> Stage:
    return Stage(*actors, views=[HoldTracker()])


def test_a_gpu_that_works_is_held_up_by_nothing() -> None:
    stage = on(*training())
    stage.play(120)
    assert held_up(stage) == {}


def test_a_stalled_collective_is_as_old_as_its_kernel() -> None:
    first, second = training()
    stage = on(first, second)
    stage.play(60)
    first.block()
    second.block()
    stage.play(60)
    assert held_up(stage) == {
        0: ("stalled_collective", pytest.approx(60, abs=5)),
        1: ("stalled_collective", pytest.approx(60, abs=5)),
    }
    first.states = second.states = {"compute": 1.0}
    stage.play(30)
    assert held_up(stage) == {}


def test_what_comes_and_goes_is_one_and_its_time_goes_on() -> None:
    (one,) = training(1)
    stage = on(one)
    stage.play(60)
    one.states = {"starved": 0.9, "compute": 0.1}
    stage.play(60)
    cause, seconds = held_up(stage)[0]
    assert isinstance(seconds, float)
    one.states = {"compute": 1.0}
    stage.play(4)
    one.states = {"starved": 0.9, "compute": 0.1}
    stage.play(30)
    assert held_up(stage)[0] == (cause, pytest.approx(seconds + 34, abs=5))


def test_a_gpu_that_a_job_has_and_no_process_uses() -> None:
    (one,) = training(1)
    stage = on(one)
    stage.play(60)
    one.leave()
    one.gauges[ALLOCATED] = 1.0
    stage.play(60)
    assert held_up(stage) == {0: ("no_process", pytest.approx(60, abs=8))}


def test_a_stopped_process_is_told_at_once() -> None:
    (one,) = training(1)
    stage = on(one)
    stage.play(60)
    one.states, one.gauges[STOPPED] = {"starved": 1.0}, 1.0
    stage.play(4)
    assert held_up(stage) == {0: ("stopped", pytest.approx(2, abs=2))}


def test_a_process_that_is_stopped_beside_one_that_works_stops_nobody() -> None:
    (one,) = training(1)
    one.jobs = ("train", "train")
    stage = on(one)
    stage.play(60)
    one.gauges[STOPPED] = 1.0
    stage.play(60)
    assert held_up(stage) == {}


def test_a_checkpoint_takes_the_place_of_a_verdict() -> None:
    (one,) = training(1)
    stage = on(one)
    stage.play(60)
    one.states, one.rates = {"starved": 1.0}, {(PHASES, ("checkpoint",)): 1.0}
    stage.play(60)
    assert held_up(stage)[0] == ("checkpoint", pytest.approx(60, abs=10))


def test_a_server_without_tokens_and_one_that_starts() -> None:
    first, second, other = Actor(0), Actor(1), Actor(2)
    stage = on(first, second, other)
    first.levels[TOKENLESS, ("vllm", "m")] = 90.0
    first.levels[INFO, ("vllm", "m", "GPU-0", "")] = 1.0
    second.levels[INFO, ("vllm", "m", "GPU-0", "")] = 1.0
    other.gauges[STARTING] = 40.0
    stage.play(60)
    assert held_up(stage) == {
        0: ("no_tokens", pytest.approx(90, abs=61)),
        1: ("no_tokens", pytest.approx(90, abs=61)),
        2: ("starting", pytest.approx(40, abs=61)),
    }


def test_who_evaluates_while_others_wait_excuses_them() -> None:
    first, second = training()
    stage = on(first, second)
    stage.play(60)
    first.states = {"compute": 1.0}
    second.block()
    stage.play(60)
    assert {cause for cause, _ in held_up(stage).values()} == {"preparing"}


def test_a_server_that_may_wait_for_a_request_is_held_up_by_nothing_yet() -> None:
    """Its first GPU rests and the others spin; where another does not come, it hangs."""
    for late in (0, 2):
        server = [Actor(index, peers=True, program="torchserve") for index in range(4)]
        stage = on(*server)
        stage.play(60)
        for actor in server:
            actor.block()
        server[late].states = {"idle": 1.0}
        stage.play(120)
        hangs = {at for at, (cause, _) in held_up(stage).items() if cause == "stalled_collective"}
        assert hangs == (set() if late == 0 else {0, 1, 3})
