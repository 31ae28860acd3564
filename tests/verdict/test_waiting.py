"""Who is waited for: jobs on four GPUs of a node whose ranks do not come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpunode.client.protocol import PHASES
from gpunode.gpu import activity
from gpunode.jobs import processes as job
from gpunode.jobs import steps
from tests.cases import with_each
from tests.verdict.stage import HBM, SHORT, Actor, Stage


def stop(rank: Actor) -> None:
    rank.states, rank.gauges = {"starved": 1.0}, {activity.STOPPED: 1.0}


def wait_for_a_device(rank: Actor) -> None:
    rank.states, rank.gauges = {"starved": 1.0}, {job.BLOCKED: 1.0}


def loop_in_python(rank: Actor) -> None:
    rank.states, rank.gauges = {"starved": 1.0}, {job.HOST_THREAD: 1.0, job.HOST_CPUS: 1.0}


def collect(share: float) -> Callable[[Actor], None]:
    """Collects garbage for a share of the time, which keeps a CPU busy."""

    def collects(rank: Actor) -> None:
        loop_in_python(rank)
        rank.rates = {(steps.GARBAGE, ()): share}

    return collects


def collect_and_be_stuck(rank: Actor) -> None:
    """A finalizer waits for a device."""
    wait_for_a_device(rank)
    rank.rates = {(steps.GARBAGE, ()): 1.0}


def collect_and_compute(rank: Actor) -> None:
    """Collects garbage while its GPU has work."""
    rank.states, rank.rates = {"compute": 0.8, "idle": 0.2}, {(steps.GARBAGE, ()): 0.6}


def sleep(rank: Actor) -> None:
    rank.states, rank.gauges = {"idle": 1.0}, {job.HOST_THREAD: 0.0}


def compute_alone(rank: Actor) -> None:
    rank.states = {"compute": 0.7, HBM: 0.2, SHORT: 0.1}


def say(phase: str) -> Callable[[Actor], None]:
    def report(rank: Actor) -> None:
        rank.states = {"starved": 1.0}
        rank.rates = {(steps.SECONDS, (phase,)): 1.0}

    return report


def write(rank: Actor) -> None:
    rank.states, rank.rates = {"starved": 1.0}, {(job.IO_BYTES, ("write",)): 1e9}


def call(bytes_per_second: float) -> Callable[[Actor], None]:
    def write_calls(rank: Actor) -> None:
        rank.states, rank.rates = {"starved": 1.0}, {(job.WRITE_CALL_BYTES, ()): bytes_per_second}

    return write_calls


def ranks(count: int, name: str = "train", first: int = 0) -> list[Actor]:
    return [
        Actor(first + each, jobs=(name,), world_size=str(count), peers=True)
        for each in range(count)
    ]


def report_steps(*actors: Actor) -> None:
    """Their clients have counters of every phase from the start, as a real one has."""
    for actor in actors:
        actor.rates = {(steps.SECONDS, (p,)): float(p == "step") for p in PHASES}


@with_each(
    [
        (stop, "stopped", "stalled_collective"),
        (wait_for_a_device, "uninterruptible", "stalled_collective"),
        (loop_in_python, "cpu_bound", "stalled_collective"),
        (collect(0.9), "garbage_collection", "stalled_collective"),
        (collect(0.1), "cpu_bound", "stalled_collective"),
        (collect_and_be_stuck, "uninterruptible", "stalled_collective"),
        (sleep, "unknown", "stalled_collective"),
        (Actor.leave, "gone", "stalled_collective"),
        (compute_alone, "evaluating", "straggler"),
        (say("evaluation"), "evaluating", "straggler"),
        (say("checkpoint"), "checkpointing", "straggler"),
        (write, "checkpointing", "straggler"),
        (call(2e7), "checkpointing", "straggler"),  # uploads
        (call(1e5), "unknown", "stalled_collective"),  # logs
    ]
)
def test_the_rank_that_does_not_come_is_named_with_what_it_does(
    happens: Callable[[Actor], None], reason: str, cause: str
) -> None:
    actors = ranks(4)
    stage = Stage(*actors)
    stage.play(30)
    assert stage.waited_for == []
    assert stage.causes == ["none"] * 4
    happens(actors[2])
    for waiting in (0, 1, 3):
        actors[waiting].block()
    stage.play(15)
    assert stage.waited_for == [(2, reason)]
    assert [stage.causes[waiting] for waiting in (0, 1, 3)] == [cause] * 3
    assert any(f'reason="{reason}"' in each.series for each in stage.verdict(0).evidence)
    stage.play(90)
    assert stage.waited_for == [(2, reason)]
    assert [stage.causes[waiting] for waiting in (0, 1, 3)] == [cause] * 3


def test_a_rank_that_collects_between_its_kernels_is_told_of_as_that() -> None:
    """Half of each step it collects; the others wait for it meanwhile."""
    actors = ranks(4)
    stage = Stage(*actors)
    stage.play(30)
    late = actors[2]
    for actor in actors:
        actor.states = {"compute": 0.45, "blocked": 0.55}
    late.states, late.rates = {"compute": 0.5, "idle": 0.5}, {(steps.GARBAGE, ()): 0.5}
    stage.play(30)
    assert stage.waited_for == [(2, "garbage_collection")]
    collect_and_compute(late)
    stage.play(30)
    assert stage.waited_for == [(2, "computing")]


def test_a_collection_that_keeps_the_lock_of_python_is_told_of_once_it_has_ended() -> None:
    actors = ranks(4)
    stage = Stage(*actors)
    late = actors[2]
    late.rates = {(steps.GARBAGE, ()): 0.0}
    stage.play(30)
    loop_in_python(late)
    for waiting in (0, 1, 3):
        actors[waiting].block()
    stage.play(20)
    assert stage.waited_for == [(2, "cpu_bound")], "its client has said nothing yet"
    late.rates = {(steps.GARBAGE, ()): 10.0}
    stage.play(2)
    assert stage.waited_for == [(2, "garbage_collection")]
    late.rates = {(steps.GARBAGE, ()): 0.0}
    stage.play(10)
    assert stage.waited_for == [(2, "cpu_bound")]


def test_nobody_is_waited_for_once_the_late_rank_has_come() -> None:
    actors = ranks(4)
    stage = Stage(*actors)
    stage.play(30)
    loop_in_python(actors[1])
    for waiting in (0, 2, 3):
        actors[waiting].block()
    stage.play(30)
    assert stage.waited_for == [(1, "cpu_bound")]
    for actor in actors:
        actor.states, actor.gauges = {"compute": 1.0}, {}
    stage.play(12)
    assert stage.waited_for == []
    assert stage.causes == ["none"] * 4


def test_two_ranks_may_be_waited_for_at_once() -> None:
    actors = ranks(4)
    stage = Stage(*actors)
    stage.play(30)
    stop(actors[0])
    actors[1].leave()
    actors[2].block()
    actors[3].block()
    stage.play(15)
    assert stage.waited_for == [(0, "stopped"), (1, "gone")]


def test_a_job_is_not_held_up_by_another_on_the_same_node() -> None:
    one, other = ranks(2, "a:29500"), ranks(2, "b:29500", first=2)
    stage = Stage(*one, *other)
    stage.play(30)
    one[0].block()
    stop(one[1])
    sleep(other[0])
    stage.play(30)
    assert stage.waited_for == [(1, "stopped")]
    assert stage.causes[0] == "stalled_collective"
    assert stage.causes[3] == "none"


def test_processes_of_unknown_jobs_do_not_wait_for_each_other() -> None:
    actors = ranks(2, name="")
    stage = Stage(*actors)
    stage.play(30)
    actors[0].block()
    stop(actors[1])
    stage.play(30)
    assert stage.waited_for == []


def test_a_gpu_that_two_jobs_share_waits_for_both() -> None:
    shared, first, second = Actor(0, jobs=("a", "b")), Actor(1, jobs=("a",)), Actor(2, jobs=("b",))
    stage = Stage(shared, first, second)
    stage.play(30)
    shared.block()
    stop(first)
    loop_in_python(second)
    stage.play(15)
    assert stage.waited_for == [(1, "stopped"), (2, "cpu_bound")]
    named = " ".join(each.series for each in stage.verdict(0).evidence)
    assert 'gpu="1"' in named
    assert 'gpu="2"' in named


def test_where_all_wait_the_culprit_is_on_another_node_until_the_job_ends() -> None:
    actors = ranks(4)
    stage = Stage(*actors)
    stage.play(30)
    for actor in actors:
        actor.block()
    stage.play(15)
    assert stage.waited_for == []
    assert stage.causes == ["stalled_collective"] * 4
    for actor in actors:
        actor.leave()
    stage.play(12)
    assert stage.waited_for == []
    for actor in actors[:2]:
        actor.jobs, actor.peers = ("next",), True
        actor.block()
    stage.play(60)
    assert stage.waited_for == []
    assert stage.causes[:2] == ["stalled_collective"] * 2


def test_a_job_that_goes_on_with_fewer_ranks_does_not_wait_for_the_others() -> None:
    actors = ranks(4)
    stage = Stage(*actors)
    stage.play(30)
    actors[3].leave()
    stage.play(120)
    stop(actors[2])
    actors[0].block()
    actors[1].block()
    stage.play(15)
    assert stage.waited_for == [(2, "stopped")]


def test_a_rank_that_spun_until_it_ended_does_not_wait_for_itself() -> None:
    actors = ranks(2)
    stage = Stage(*actors)
    stage.play(30)
    actors[0].block()
    actors[1].block()
    stage.play(30)
    actors[1].leave()
    for _ in range(10):
        stage.play(2)
        assert not any("waited_for" in each.series for each in stage.verdict(1).evidence)
    assert stage.waited_for == [(1, "gone")]


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_a_hang_soon_after_a_phase_of_its_own_is_a_stall_in_time(phase: str) -> None:
    actors = ranks(4)
    report_steps(*actors)
    stage = Stage(*actors)
    stage.play(60)
    say(phase)(actors[0])
    for waiting in actors[1:]:
        waiting.block()
    stage.play(20)
    assert set(stage.causes[1:]) == {"straggler"}
    actors[0].rates = {(steps.SECONDS, (phase,)): 0.0}
    sleep(actors[0])
    stage.play(15)
    assert stage.waited_for == [(0, "unknown")]
    assert set(stage.causes[1:]) == {"stalled_collective"}


@with_each(
    [
        ({"gpm": 1.0, "dcgm": 0.0}, True),
        ({"gpm": 0.0, "dcgm": 1.0}, True),
        ({"gpm": 0.0, "dcgm": 0.0, "utilization": 1.0}, False),
    ]
)
def test_a_hang_that_no_counter_shows_is_told_as_less_certain(
    sensors: dict[str, float], certain: bool
) -> None:
    first, second = ranks(2)
    stage = Stage(first, second)
    first.sensors = sensors
    stage.play(20)
    first.block()
    second.block()
    stage.play(20)
    told = stage.verdict()
    assert told.cause == "stalled_collective"
    assert any("less certain" in one.meaning for one in told.evidence) is not certain
