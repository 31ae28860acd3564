"""What each recorded incident is put down to, and the evidence that is given for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import cast

from gpunode.config.daemon import GpuSettings, HostSettings, Settings
from gpunode.export.exposition import Exposition
from gpunode.loop import Loop
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.reasons import WAITED_FOR
from gpunode.verdict.source import Judgement, Judgements
from tests.cases import with_each
from tests.replay import play, tape

CAUSE: dict[str, tuple[str, ...]] = {
    "idle": ("none", "none"),
    "compute": ("none", "none"),
    "healthy": ("none", "none"),
    "mixed_nop2p": ("none", "none"),
    "memfull": ("memory_capacity", "memory_capacity"),
    "starved": ("unexplained", "unexplained"),
    "starved_mild": ("unexplained", "unexplained"),
    "starved_slow": ("unexplained", "straggler"),
    "comm": ("communication", "communication"),
    "comm_nop2p": ("communication", "communication"),
    "hang": ("stalled_collective", "none"),
    "h200_hang": ("stalled_collective", "stopped"),
    "straggler": ("straggler", "unexplained"),
    "membound": ("memory_bandwidth", "memory_bandwidth"),
    "launch": ("kernel_launch", "kernel_launch"),
    "fp32": ("precision", "precision"),
    "h2d": ("data_loading_copy", "data_loading_copy"),
    "loader_cpu": ("unexplained", "unexplained"),
    "ddp_small": ("kernel_launch", "kernel_launch"),
    "h200_loader_cpu": ("data_loading_cpu",),
    "h200_storage": ("data_loading_storage",),
    "h200_shm": ("shm",),
}
"""By tape, for each of its GPUs. What held the data loading up shows only on the tapes of one H200:
the lab's recorder did not look at processes."""

SETTINGS = Settings(host=HostSettings(interval=5), gpu=GpuSettings(processes_interval=5))
"""As the tapes of one H200 were recorded."""


def judged(name: str) -> tuple[Loop, list[Judgement]]:
    node = tape(name)
    loop = watch(cast(Node, node), SETTINGS)
    play(loop, node)
    (told,) = loop.details(Judgements)
    return loop, sorted(told.detail.verdicts, key=lambda verdict: verdict.gpu)


def names_what_is_exported(loop: Loop, verdicts: Iterable[Judgement]) -> bool:
    """Whether each series that is given as evidence is one of the exposition."""
    exported = Exposition(loop.samples).encode("")[0].decode()
    evidence = [one for verdict in verdicts for one in verdict.evidence]
    return all(f"\n{one.series} " in exported for one in evidence)


@with_each(CAUSE)
def test_an_incident_is_put_down_to_its_cause(incident: str) -> None:
    loop, verdicts = judged(incident)
    assert tuple(verdict.cause for verdict in verdicts) == CAUSE[incident]
    assert all(verdict.evidence for verdict in verdicts if verdict.cause != "none")
    assert names_what_is_exported(loop, verdicts)


def test_one_cause_of_each_gpu_is_exported_as_1() -> None:
    loop, verdicts = judged("straggler")
    values = {
        sample.labels: sample.value
        for sample in loop.samples()
        if sample.metric.name == "gpunode_gpu_bottleneck"
    }
    assert len(values) == len(verdicts) * len(CAUSES)
    assert {labels for labels, value in values.items() if value} == {
        (verdict.gpu, verdict.uuid, verdict.cause) for verdict in verdicts
    }


REAL = Path(__file__).parents[1] / "tapes/real"
"""Recorded on two H200s while the workloads of ``bench/truth`` ran: GPUs and processes."""

ENDED: dict[str, tuple[str, ...]] = {
    "scalar": ("stalled_collective", "unexplained"),
    "stopped": ("stalled_collective", "stopped"),
    "killed": ("stalled_collective", "none"),
    "looping": ("stalled_collective", "host_compute"),
    "serve_fp32": ("no_requests", "precision"),
    "slow_rank": ("straggler", "data_loading_cpu"),
    "serve_stopped": ("stalled_collective", "stopped"),
}
KINDS = {"serve_fp32": ("serving", "training"), "serve_stopped": ("serving", "serving")}
"""What was said of each GPU in the end, where not ``training`` of both."""

STALLED: dict[str, tuple[float, str]] = {
    "scalar": (1795314188.9, "unknown"),
    "stopped": (1795314219.3, "stopped"),
    "killed": (1795314250.7, "gone"),
    "looping": (1795314281.1, "cpu_bound"),
    "serve_stopped": (1795747247.5, "stopped"),
}
"""When the last rank joined no longer, in seconds since the epoch, and why."""


@cache
def courses(name: str) -> tuple[Loop, dict[str, list[tuple[float, str]]], dict[str, float]]:
    """A recording played: the causes of each GPU over time, and when each reason came first."""
    node = TapeNode(REAL / f"{name}.jsonl.gz")
    loop = watch(cast(Node, node), Settings())
    causes: dict[str, list[tuple[float, str]]] = {"0": [], "1": []}
    reasons: dict[str, float] = {}
    for _ in loop.replay(node.clock, node.end):
        for told in loop.details(Judgements):
            for verdict in told.detail.verdicts:
                causes[verdict.gpu].append((node.clock.time(), verdict.cause))
        for sample in loop.samples():
            if sample.metric is WAITED_FOR:
                assert sample.labels[0] == "1"
                reasons.setdefault(sample.labels[2], node.clock.time())
    return loop, causes, reasons


@with_each(ENDED)
def test_real_workloads_end_with_the_right_verdict(name: str) -> None:
    loop, causes, _ = courses(name)
    assert tuple(course[-1][1] for course in causes.values()) == ENDED[name]
    (told,) = loop.details(Judgements)
    kinds = tuple(verdict.workload.kind for verdict in told.detail.verdicts)
    if name != "killed":
        assert kinds == KINDS.get(name, ("training", "training"))
    assert names_what_is_exported(loop, told.detail.verdicts)


def test_ranks_that_wait_for_each_other_by_turns_have_no_straggler() -> None:
    since, _ = STALLED["serve_stopped"]
    _, causes, _ = courses("serve_stopped")
    for course in causes.values():
        assert {cause for at, cause in course[2:] if at < since} == {"host_bound"}


@with_each(STALLED)
def test_a_stall_is_called_one_and_the_gpu_that_is_waited_for_named(name: str) -> None:
    since, reason = STALLED[name]
    _, causes, reasons = courses(name)
    called = [at for at, cause in causes["0"] if cause == "stalled_collective"]
    assert called[0] - since <= 15
    assert {cause for at, cause in causes["0"] if at > called[0]} == {"stalled_collective"}
    assert 0 < reasons[reason] - since <= 20
