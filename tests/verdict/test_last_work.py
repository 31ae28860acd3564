"""For how long a job has not worked: on recordings, and as processes come and go."""

from __future__ import annotations

from typing import cast

import pytest

from gpunode.config.daemon import Settings
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from gpunode.verdict.last_work import WORKLESS
from tests.cases import with_each
from tests.replay import tape
from tests.verdict.stage import Actor, Stage
from tests.verdict.test_verdict import REAL, STALLED


def played(node: TapeNode) -> list[tuple[float, dict[str, float]]]:
    """At each moment of a recording, the time and for how long each GPU has not worked."""
    loop = watch(cast(Node, node), Settings())
    course = []
    for _ in loop.replay(node.clock, node.end):
        told = {s.labels[0]: s.value for s in loop.samples() if s.metric is WORKLESS}
        course.append((node.clock.time(), cast(dict[str, float], told)))
    return course


@with_each(STALLED)
def test_from_a_stall_on_it_grows_from_where_the_stall_began(name: str) -> None:
    since, _ = STALLED[name]
    course = played(TapeNode(REAL / f"{name}.jsonl.gz"))
    waiting = [(at, told["0"]) for at, told in course if "0" in told]
    assert all(workless <= 6 for at, workless in waiting if at < since)
    ended, workless = waiting[-1]
    assert ended - workless == pytest.approx(since, abs=4)
    assert workless > 10


@with_each(["healthy", "launch", "comm", "h2d", "membound"])
def test_it_is_short_while_the_job_works(name: str) -> None:
    *_, (_, told) = played(tape(name))
    assert {"0", "1"} == told.keys()
    assert all(workless <= 2.1 for workless in told.values())


@with_each(["hang", "idle", "h200_held", "h200_free"])
def test_a_job_that_was_never_seen_to_work_has_none(name: str) -> None:
    assert not any(told for _, told in played(tape(name)))


IDLE = {"idle": 1.0}
WORK = {"compute": 1.0}


def test_it_is_held_while_the_job_does_nothing() -> None:
    actor = Actor(0)
    stage = Stage(actor)
    stage.play(60)
    for actor.states in (IDLE, {"blocked": 1.0}, {"compute": 0.03, "starved": 0.97}):
        stage.play(600)
    assert stage.workless() == pytest.approx(1800, abs=5)


def test_work_for_one_second_in_eight_counts_every_time() -> None:
    actor = Actor(0)
    stage = Stage(actor)
    ages = []
    for _ in range(10):
        for actor.states, seconds in ((IDLE, 6), ({"compute": 0.5, "idle": 0.5}, 2)):
            stage.play(seconds)
            ages.append(stage.workless())
    assert all(age is not None and age <= 8 for age in ages[2:])


def test_a_gpu_that_is_handed_over_never_shows_what_its_former_tenant_did() -> None:
    actor = Actor(0, processes=((100, 1.0),))
    stage = Stage(actor)
    stage.play(60)
    actor.leave()
    stage.play(6)
    assert stage.workless() is None
    actor.jobs, actor.processes, actor.states = ("other",), ((200, 2.0),), IDLE
    for _ in range(60):
        stage.play(1)
        assert stage.workless() is None
    actor.states = WORK
    stage.play(10)
    actor.states = IDLE
    stage.play(30)
    assert stage.workless() == pytest.approx(30, abs=5)


@with_each(range(10))
def test_what_ran_before_the_first_look_at_a_tenant_is_not_his(after: int) -> None:
    """Whenever the GPU changes hands between the reads of the driver's list of processes."""
    actor = Actor(0, processes=((100, 1.0),))
    stage = Stage(actor)
    stage.play(50 + after)
    actor.processes, actor.states = ((100, 2.0),), IDLE  # with the same PID
    stage.play(6)
    for _ in range(20):
        stage.play(1)
        assert stage.workless() is None


def test_a_job_keeps_it_while_one_of_those_that_worked_stays() -> None:
    first, second, third = (1, 1.0), (2, 2.0), (3, 3.0)
    actor = Actor(0, jobs=("train",) * 3, processes=(first, second))
    stage = Stage(actor)
    stage.play(60)
    actor.states = IDLE
    stage.play(60)
    actor.processes = (second, third)
    stage.play(60)
    assert stage.workless() == pytest.approx(120, abs=5)
    actor.processes = (third,)
    stage.play(10)
    assert stage.workless() is None


def test_a_list_of_processes_that_is_empty_for_a_while_ends_nothing() -> None:
    actor = Actor(0)
    stage = Stage(actor)
    stage.play(60)
    actor.jobs, actor.states = (), IDLE
    stage.play(10)
    actor.jobs = ("train",)
    stage.play(10)
    assert stage.workless() == pytest.approx(20, abs=5)
