"""How a verdict falls: every cause is asked, and one that fails costs no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest

from gpunode import words
from gpunode.gpu import GPU
from gpunode.gpu.ledger import STATES
from gpunode.gpu.units import PCIE_BYTES
from gpunode.jobs import processes as job
from gpunode.loop import complaints
from gpunode.metric import Metric
from gpunode.source import Key
from gpunode.verdict import judge
from gpunode.verdict.case import Case, Evidence
from gpunode.verdict.causes import (
    CAUSES,
    NONE,
    USES,
    allocation,
    communication,
    data,
    host,
    limits,
    serving,
)
from gpunode.verdict.causes.cause import Bounds, Cause, Effect, Explanation, OwnLoss
from gpunode.verdict.facts import Facts, Snapshot
from gpunode.verdict.source import USED
from tests import strict
from tests.verdict.stage import SHORT, Actor, Stage
from tests.verdict.test_causes import GAPS, LAUNCHES, ONE_THREAD, PREPARES

FAMILIES = (data, host, allocation, communication, limits, serving)
AT = ("0", "GPU-0")


def failing(on: str, error: BaseException) -> Callable[[Cause], Cause]:
    """A change of a cause by which its looks fail on one GPU."""

    def broken(cause: Cause) -> Cause:
        looks = (replace(cast(Any, look), look=of(look)) for look in cause.looks)
        return replace(cause, looks=tuple(looks))

    def of(look: Explanation | OwnLoss | Bounds) -> Callable[[Case], Any]:
        def asked(case: Case) -> Any:
            if case.at[0] == on:
                raise error
            return look.look(case)

        return asked

    return broken


@pytest.fixture
def as_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours is logged, and fails no test."""
    monkeypatch.setattr(complaints, "complain", strict.COMPLAIN)


def change(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Cause], Cause], *names: str) -> None:
    """Let some causes be others."""
    for kind in ("EXPLANATIONS", "LOSSES", "BOUNDS"):
        pairs = []
        for cause, look in getattr(judge, kind):
            if cause.name in names:
                other = changed(cause)
                pairs.append((other, other.looks[cause.looks.index(look)]))
            else:
                pairs.append((cause, look))
        monkeypatch.setattr(judge, kind, tuple(pairs))


def failures(stage: Stage) -> dict[str, float]:
    """How often each cause was not looked for."""
    found = (s for s in stage.loop.samples() if s.metric is judge.FAILURES)
    return {sample.labels[0]: cast(float, sample.value) for sample in found}


@pytest.mark.parametrize("error", [KeyError("ours"), LookupError("ours"), SystemExit(1)], ids=repr)
@pytest.mark.usefixtures("as_on_a_node")
def test_a_look_that_raises_costs_its_cause_on_that_gpu(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change(monkeypatch, failing("0", error), "data_loading_cpu")
    stage = Stage(Actor(0, GAPS, PREPARES), Actor(1, GAPS, PREPARES))
    stage.play(30)
    assert stage.causes == ["unexplained", "data_loading_cpu"]
    counted = failures(stage)
    assert counted.pop("data_loading_cpu") >= 10
    assert counted == {}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"verdict, GPU 0: cannot look for data_loading_cpu: {complaints.described(error)}"
    )


@pytest.mark.parametrize("broken", [name for name, cause in CAUSES.items() if cause.looks])
@pytest.mark.usefixtures("as_on_a_node")
def test_whatever_fails_every_gpu_has_a_verdict(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, failing("0", KeyError("ours")), broken)
    stage = Stage(Actor(0, GAPS, PREPARES), Actor(1, LAUNCHES, ONE_THREAD))
    stage.play(20)
    expected = ["data_loading_cpu", "kernel_launch"]
    assert stage.causes == [
        "unexplained" if broken == expected[0] else expected[0],
        expected[1],
    ]


UNDECLARED = Metric("gpunode_undeclared", "gauge", "Used by no cause.", GPU)


def asks_for_another(cause: Cause) -> Cause:
    """The cause with looks that ask for a metric that no cause declares."""

    def look(case: Case) -> Iterator[Evidence]:
        yield case.evidence(UNDECLARED, case.now(UNDECLARED), 0.0, "undeclared")

    return replace(cause, looks=tuple(Explanation(look, 1) for _ in cause.looks))


@pytest.mark.usefixtures("as_on_a_node")
def test_a_metric_that_nobody_declares_costs_the_cause_that_asks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change(monkeypatch, asks_for_another, "shm")
    stage = Stage(Actor(0, GAPS, PREPARES))
    stage.play(10)
    assert stage.causes == ["data_loading_cpu"]
    assert "gpunode_undeclared: asked for but not declared, add it to `uses`" in caplog.text


def test_a_metric_that_nobody_declares_fails_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, asks_for_another, "shm")
    with pytest.raises(LookupError, match="gpunode_undeclared"):
        Stage(Actor(0, GAPS, PREPARES)).play(10)


class RecordedMetrics(Collection[Metric]):
    """Metrics of which it is noted which were asked for."""

    def __init__(self) -> None:
        self.metrics: set[Metric] = set()

    def __contains__(self, metric: object) -> bool:
        self.metrics.add(cast(Metric, metric))
        return True

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)


WORDS = (
    *("data", "compile", "checkpoint", "cpu", "io", "write", "transmit", "receive"),
    *("sw_thermal", "hw_thermal", "hw_power_brake", "sw_power_cap", "tensor", "fp32", "dram"),
    *("waiting", "running", "GPU-0"),
)
"""Values of the last label of a series, of whatever metric."""


def series(metrics: Collection[Metric], amount: float) -> Iterator[tuple[Key, float]]:
    """Series of these metrics, all of the same value."""
    for metric in metrics:
        of_gpu = metric.labels[:2] == GPU
        others = metric.labels[2 if of_gpu else 0 :]
        for word in WORDS if others else ("",):
            yield (metric, (*(AT if of_gpu else ()), *(word for _ in others))), amount


def cases() -> Iterator[Case]:
    """GPUs of which a node tells everything, or everything but one thing or all of one kind."""
    of_jobs = {metric for metric in USED if metric.name.startswith("gpunode_job_")}
    known = [USED, USED - of_jobs, frozenset({PCIE_BYTES}), *(USED - {one} for one in USED)]
    states = ("starved", "copy", "compute", "communication", SHORT)
    amounts = (0.0, 0.3, 1e9)
    kinds = [*product(known[:3], amounts, states), *product(known[3:], amounts[2:], states)]
    for metrics, rate, main in kinds:
        snapshots = tuple(
            Snapshot(at, {key: (value, at) for key, value in series(metrics, rate * at)})
            for at in (1.0, 3.0)
        )
        facts = Facts(snapshots, USED, 3.0)
        shares = dict.fromkeys(STATES, 0.0) | {"starved" if main == SHORT else main: 1.0}
        kind = "training" if main == SHORT else "serving"
        short = float(main == SHORT)
        yield Case(facts, facts, AT, shares, kind, short_gaps=short)


def asked_for(cause: Cause, among: Sequence[Case]) -> set[Metric]:
    """The metrics for which the looks of a cause ask."""
    asked = RecordedMetrics()
    for case in among:
        for look in cause.looks:
            facts = replace(case.facts, metrics=asked)
            view = replace(case, facts=facts, recent=facts)
            if isinstance(look, Explanation):
                look.evidence(view)
            else:
                look.look(view)
        if cause.remedy and cause.remedy.left:
            facts = replace(case.facts, metrics=asked)
            cause.remedy.left(replace(case, facts=facts, recent=facts))
    return asked.metrics


def test_a_cause_declares_what_its_looks_ask_for() -> None:
    among = list(cases())
    asked = {name: asked_for(cause, among) for name, cause in CAUSES.items()}
    assert asked == {name: set(cause.uses) for name, cause in CAUSES.items()}


def test_every_cause_of_a_family_is_in_the_list() -> None:
    defined = [
        thing for family in FAMILIES for thing in vars(family).values() if isinstance(thing, Cause)
    ]
    assert {id(cause) for cause in (NONE, *defined)} == {id(cause) for cause in CAUSES.values()}
    assert len(CAUSES) == 1 + sum(len(family.CAUSES) for family in FAMILIES)


def test_no_two_explanations_have_one_rank() -> None:
    ranks = [explains.rank for _, explains in judge.EXPLANATIONS]
    assert len(set(ranks)) == len(ranks)


def test_a_cause_is_found_by_somebody() -> None:
    """Each has a look, but for what is named where no look finds anything."""
    assert [cause.name for cause in CAUSES.values() if not cause.looks] == ["none"]
    assert USES <= USED


@pytest.fixture(autouse=True)
def _in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(words.CAUSES, MADE_UP.name, words.Words("made up", "made up"))


MADE_UP = Cause(
    name="made_up",
    named_when="made up",
    urgency="fine",
    family="unknown",
)


def evidence(case: Case) -> Iterator[Evidence]:
    yield case.evidence(job.HOST_THREAD, case.now(job.HOST_THREAD), 0.0, "made up")


@pytest.mark.parametrize(("rank", "named"), [(69, "made_up"), (71, "data_loading_cpu")])
def test_of_several_explanations_the_lowest_rank_is_named(
    rank: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up = replace(MADE_UP, looks=(Explanation(evidence, rank),), uses=(job.HOST_THREAD,))
    pairs = [*judge.EXPLANATIONS, (made_up, made_up.looks[0])]
    ordered = sorted(pairs, key=lambda pair: cast(Explanation, pair[1]).rank)
    monkeypatch.setattr(judge, "EXPLANATIONS", tuple(ordered))
    stage = Stage(Actor(0, GAPS, PREPARES))
    stage.play(10)
    assert stage.causes == [named]


@pytest.mark.parametrize(("share", "named"), [(0.39, "data_loading_cpu"), (0.41, "made_up")])
def test_the_largest_loss_is_named(
    share: float, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Effect(share, (Evidence("made_up", share, 0.1, "made up"),))
    made_up = replace(MADE_UP, looks=(OwnLoss(lambda _: found),))
    monkeypatch.setattr(judge, "LOSSES", (*judge.LOSSES, (made_up, made_up.looks[0])))
    stage = Stage(Actor(0, GAPS, PREPARES))
    stage.play(10)
    assert stage.causes == [named]
