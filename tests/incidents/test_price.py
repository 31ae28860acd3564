"""What an incident costs, of jobs whose truth is known, beside what the ledger says of them."""

from __future__ import annotations

from typing import cast

import pytest

from gpunode.gpu.activity import SECONDS
from gpunode.incidents.incident import Price
from gpunode.incidents.price import COST
from gpunode.jobs.attempts import ENDED
from gpunode.jobs.owners import OWNER
from gpunode.jobs.processes import WRITE_CALL_BYTES
from gpunode.node.node import Node
from gpunode.verdict.restarts import Restarts
from tests.incidents.test_black_box import Box
from tests.machine import OneGpu
from tests.verdict.stage import Actor

GIB = 2.0**30


def job(workload: str, *states: dict[str, float], first: int = 0) -> list[Actor]:
    """The GPUs of a job."""
    return [
        Actor(
            first + index,
            own,
            processes=((100 * (first + index) + 1, 1.0), (100 * (first + index) + 2, 1.0)),
            trains=True,
            jobs=(workload,),
            gauges={WRITE_CALL_BYTES: 0.0, ENDED: 0.0},
            levels={(OWNER, ("ml", "", "", "", "", "pod", workload, "")): 1.0},
        )
        for index, own in enumerate(states)
    ]


def played(*actors: Actor) -> Box:
    return Box(*actors, views=[Restarts(cast(Node, OneGpu()))])


def train(actors: list[Actor]) -> None:
    for actor in actors:
        actor.states = {"compute": 1.0}


def save(box: Box, actors: list[Actor]) -> None:
    actors[0].gauges[WRITE_CALL_BYTES] += GIB
    box.play(10)


def hang(actors: list[Actor]) -> None:
    actors[0].states, actors[1].states = {"blocked": 1.0}, {"idle": 1.0}


def end(actors: list[Actor]) -> None:
    """Its processes are ended; the job keeps its GPUs."""
    for actor in actors:
        actor.was, actor.jobs, actor.states = actor.jobs, (), {"idle": 1.0}  # type: ignore[attr-defined]


def start_again(actors: list[Actor]) -> None:
    for actor in actors:
        actor.jobs, actor.states = actor.was, {"starved": 1.0}  # type: ignore[attr-defined]
        actor.processes = tuple((pid + 10, start + 1e5) for pid, start in actor.processes)
        actor.gauges[ENDED] += 1.0


def ledger(box: Box) -> float:
    """GPU seconds of all states but useful ones, so far."""
    found = (s for s in box.loop.samples() if s.metric is SECONDS)
    return sum(cast(float, s.value) for s in found if s.labels[2] not in ("compute", "free"))


def near(price: Price, waiting: float, starting: float, repeating: float) -> None:
    found = price.waiting, price.starting, price.repeating
    assert found == pytest.approx((waiting, starting, repeating), rel=0.05)


def test_a_hang_costs_its_wait_a_new_start_and_what_is_repeated_and_no_more() -> None:
    actors = job("llm", {"compute": 1.0}, {"compute": 1.0})
    box = played(*actors)
    box.play(600)
    save(box, actors)
    box.play(590)
    before = ledger(box)
    hang(actors)
    box.play(600)
    end(actors)
    box.play(300)
    start_again(actors)
    box.play(400)
    train(actors)
    lost = ledger(box) - before
    box.play(2000)
    (incident,) = box.incidents
    assert incident.price is not None
    assert incident.price.known
    near(incident.price, 2 * 900, 2 * 400, 2 * 600)
    assert incident.price.waiting + incident.price.starting == pytest.approx(lost, rel=0.05)
    total = sum(cast(float, s.value) for s in box.loop.samples() if s.metric is COST)
    assert total in (0.0, pytest.approx(3600 * incident.price.hours))


def test_what_two_jobs_lose_is_in_one_price_each() -> None:
    first = job("llm", {"compute": 1.0}, {"compute": 1.0})
    second = job("vit", {"compute": 1.0}, {"compute": 1.0}, first=2)
    box = played(*first, *second)
    box.play(300)
    before = ledger(box)
    hang(first)
    box.play(200)
    hang(second)
    box.play(400)
    train(first)
    box.play(300)
    train(second)
    lost = ledger(box) - before
    box.play(200)
    prices = [one.price for one in box.incidents]
    assert len(prices) == 2
    for price, seconds in zip(prices, (600, 700), strict=True):
        assert price is not None
        near(price, 2 * seconds, 0, 0)
    assert sum(3600 * price.hours for price in prices if price) == pytest.approx(lost, rel=0.05)


def test_a_job_that_never_comes_back_costs_what_it_held_without_work() -> None:
    actors = job("llm", {"compute": 1.0}, {"compute": 1.0})
    box = played(*actors)
    box.play(300)
    hang(actors)
    box.play(300)
    for actor in actors:
        actor.leave()
        actor.levels = {}
    box.play(900)
    (incident,) = box.incidents
    assert incident.price is not None
    near(incident.price, 2 * 300, 0, 0)


def test_a_job_that_goes_on_without_one_of_its_processes_is_not_away() -> None:
    actors = job("llm", {"compute": 1.0}, {"compute": 1.0})
    box = played(*actors)
    box.play(300)
    actors[1].jobs = ()  # as an evaluation beside the training that has ended
    box.play(300)
    hang(actors)
    box.play(300)
    train(actors)
    box.play(600)
    (incident,) = box.incidents
    assert incident.price is not None
    assert incident.price.known
    near(incident.price, 2 * 300, 0, 0)
