"""How long a verdict stands: noise does not change it, and what really changes is told soon."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.jobs import processes as job
from gpunode.verdict.source import READ_INTERVAL
from gpunode.verdict.standing import HOLD_SECONDS
from tests.cases import with_each
from tests.verdict.stage import HBM, SHORT, Actor, Stage
from tests.verdict.test_causes import PREPARES, RESTS

BORDERS: list[dict[str, float]] = [
    {"blocked": 0.16, SHORT: 0.17, "compute": 0.67},
    {"blocked": 0.17, SHORT: 0.16, "compute": 0.67},
    {SHORT: 0.15, "compute": 0.85},
    {"starved": 0.1, "compute": 0.9},
    {"blocked": 0.1, "compute": 0.9},
    {"communication": 0.25, "blocked": 0.25, "compute": 0.5},
    {"starved": 0.3, SHORT: 0.3, "compute": 0.4},
    {"starved": 0.2, SHORT: 0.2, "blocked": 0.2, "compute": 0.4},
    {HBM: 0.5, "compute": 0.5},
]
"""Shares of steady jobs for which two or more causes are equally good."""


def noisy(shares: dict[str, float], noise: float, chance: random.Random) -> dict[str, float]:
    """Shares of one window of a steady job."""
    drawn = {state: max(0.001, share + chance.gauss(0.0, noise)) for state, share in shares.items()}
    return {state: share / sum(drawn.values()) for state, share in drawn.items()}


def course(
    shares: dict[str, float], noise: float, seed: int, seconds: float = 240.0
) -> list[tuple[float, str]]:
    """The verdicts on a steady job, and when each took the place of another."""
    chance = random.Random(seed)
    actor = Actor(0, shares, peers=True)
    stage = Stage(actor)
    changes: list[tuple[float, str]] = []
    for at in range(round(seconds / READ_INTERVAL)):
        actor.states = noisy(shares, noise, chance)
        stage.play(READ_INTERVAL)
        if at * READ_INTERVAL >= 4 and (not changes or stage.causes[0] != changes[-1][1]):
            changes.append((at * READ_INTERVAL, stage.causes[0]))
    return changes


def closest(changes: list[tuple[float, str]]) -> float:
    """The least time between two changes; what is said first is none."""
    return min((b - a for (a, _), (b, _) in pairwise(changes[1:])), default=float("inf"))


@given(st.sampled_from(BORDERS), st.floats(0.0, 0.06), st.integers(0, 1 << 20))
@settings(max_examples=10)
def test_the_verdict_on_a_steady_job_changes_at_most_once_in_half_a_minute(
    shares: dict[str, float], noise: float, seed: int
) -> None:
    assert closest(course(shares, noise, seed)) >= HOLD_SECONDS


@with_each([(4, 4), (8, 4), (6, 6)])
def test_a_job_that_does_two_things_in_turn_keeps_its_verdict(works: int, waits: int) -> None:
    """A loader that empties its buffer, then fills it again; a checkpoint every few seconds."""
    actor = Actor(0, peers=True)
    stage = Stage(actor)
    changes: list[tuple[float, str]] = []
    for at in range(0, 300, 2):
        does = SHORT if at % (works + waits) < works else "starved"
        actor.states = {"compute": 0.4, does: 0.6}
        stage.play(READ_INTERVAL)
        if at >= 60 and (not changes or stage.causes[0] != changes[-1][1]):
            changes.append((at, stage.causes[0]))
    assert closest(changes) >= HOLD_SECONDS


@with_each(
    [
        ({"compute": 1.0}, {"compute": 0.6, "starved": 0.4}, "unexplained", 8),
        ({"compute": 1.0}, {"compute": 0.7, SHORT: 0.3}, "kernel_launch", 10),
        ({"compute": 1.0}, {"blocked": 0.3, "compute": 0.7}, "straggler", 8),
        ({SHORT: 0.5, "compute": 0.5}, {"starved": 0.5, "compute": 0.5}, "unexplained", 10),
        ({"blocked": 0.5, "compute": 0.5}, {"compute": 1.0}, "none", 12),
        ({"starved": 0.5, "compute": 0.5}, {"compute": 1.0}, "none", 12),
        ({"starved": 1.0}, {"idle": 1.0}, "unexplained", 2),
        ({"compute": 1.0}, {"blocked": 1.0}, "stalled_collective", 10),
        ({"compute": 0.8, SHORT: 0.2}, {"compute": 0.6, "copy": 0.4}, "data_loading_copy", 10),
    ]
)
def test_what_really_changes_is_told_a_window_or_two_later_at_most(
    before: dict[str, float], after: dict[str, float], cause: str, within: float
) -> None:
    chance = random.Random(7)
    actor = Actor(0, before, peers=True)
    stage = Stage(actor)
    for _ in range(40):
        actor.states = noisy(before, 0.03, chance)
        stage.play(READ_INTERVAL)
    told = 0.0
    while told < 40 and (told == 0 or stage.causes != [cause]):
        actor.states = noisy(after, 0.03, chance)
        stage.play(READ_INTERVAL)
        told += READ_INTERVAL
    assert stage.causes == [cause]
    assert told <= within


def test_a_new_job_is_judged_afresh() -> None:
    """What was said of the job before does not stand for the next, though it is much the same."""
    actor = Actor(0, {SHORT: 0.17, "blocked": 0.16, "compute": 0.67}, peers=True)
    stage = Stage(actor)
    stage.play(20)
    assert stage.causes == ["kernel_launch"]
    actor.states = {SHORT: 0.16, "blocked": 0.19, "compute": 0.65}
    stage.play(14)
    assert stage.causes == ["kernel_launch"]
    actor.processes = ((8, 1.0), (9, 1.0))
    stage.play(6)
    assert stage.causes == ["straggler"]


def test_a_gpu_whose_kind_of_work_becomes_known_is_judged_afresh() -> None:
    """A rank that waits for its peers' connections looks like a server until it trains."""
    actor = Actor(0, {"starved": 0.9, "compute": 0.1}, dict(RESTS), listens=True)
    stage = Stage(actor)
    stage.play(10)
    assert stage.causes == ["no_requests"]
    actor.trains = True
    stage.play(READ_INTERVAL)
    assert stage.causes == ["unexplained"]


def test_a_loss_that_is_a_little_larger_for_long_is_named() -> None:
    actor = Actor(0, {SHORT: 0.2, "blocked": 0.1, "compute": 0.7}, peers=True)
    stage = Stage(actor)
    stage.play(60)
    assert stage.causes == ["kernel_launch"]
    actor.states = {SHORT: 0.2, "blocked": 0.24, "compute": 0.56}
    stage.play(30)
    assert stage.causes == ["kernel_launch"]
    stage.play(15)
    assert stage.causes == ["straggler"]


def test_an_explanation_that_comes_later_than_the_loss_is_told_when_it_comes() -> None:
    actor = Actor(0, {"compute": 1.0})
    stage = Stage(actor)
    stage.play(60)
    actor.states = {"compute": 0.4, "starved": 0.6}
    stage.play(8)
    assert stage.causes == ["unexplained"]
    actor.gauges = dict(PREPARES)
    stage.play(READ_INTERVAL * 3)
    assert stage.causes == ["data_loading_cpu"]


def test_evidence_of_a_verdict_that_stands_is_kept_up_to_date() -> None:
    actor = Actor(0, {"compute": 0.4, "starved": 0.6}, dict(PREPARES))
    stage = Stage(actor)
    stage.play(60)
    actor.gauges = {**PREPARES, job.LOADER_CPUS: 0.9}
    stage.play(10)
    assert 0.9 in [evidence.value for evidence in stage.verdict().evidence]


def test_a_cause_at_its_limit_in_bursts_is_named_for_as_long_as_its_loss_is_the_same() -> None:
    actor = Actor(0, {"starved": 0.5, "compute": 0.5}, rates={(job.PRESSURE_WAITING, ("io",)): 0.4})
    stage = Stage(actor)
    stage.play(60)
    assert stage.causes == ["data_loading_storage"]
    for _ in range(4):
        actor.rates = {(job.PRESSURE_WAITING, ("io",)): 0.0}
        stage.play(120)
        assert stage.causes == ["data_loading_storage"]
        actor.rates = {(job.PRESSURE_WAITING, ("io",)): 0.4}
        stage.play(30)
    actor.rates = {(job.PRESSURE_WAITING, ("io",)): 0.0}
    stage.play(400)
    assert stage.causes == ["unexplained"], "five minutes without any evidence"
    actor.states, actor.rates = {"compute": 1.0}, {}
    stage.play(60)
    assert stage.causes == ["none"]


def test_what_a_job_does_while_it_starts_is_no_cause_of_what_it_lacks_later() -> None:
    actor = Actor(0, {"starved": 1.0}, {job.HOST_THREAD: 1.0, job.HOST_CPUS: 1.0})
    stage = Stage(actor)
    stage.play(12)
    named = stage.causes
    actor.gauges = {job.HOST_THREAD: 0.0, job.HOST_CPUS: 0.0}
    stage.play(90)
    assert (named, stage.causes) == (["host_compute"], ["unexplained"])
