"""What each recorded incident is put down to, and the evidence that is given for it."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.cli import watch
from gpunode.config import RunSettings
from gpunode.exposition import Exposition
from gpunode.jobs.steps import MEDIAN, SINCE_STEP
from gpunode.loop import Loop
from gpunode.source import Reading, Source
from gpunode.tape import TapeNode
from gpunode.verdict import CAUSES, STALLS, TRAINING_STALLED
from tests.replay import TAPES

CAUSE: dict[str, tuple[str, ...]] = {
    "idle": ("none", "none"),
    "compute": ("none", "none"),
    "healthy": ("none", "none"),
    "mixed_nop2p": ("none", "none"),
    "memfull": ("memory_capacity", "memory_capacity"),
    "starved": ("data_loading", "data_loading"),
    "starved_mild": ("data_loading", "data_loading"),
    "starved_slow": ("data_loading", "straggler"),
    "comm": ("communication", "communication"),
    "comm_nop2p": ("communication", "communication"),
    "hang": ("stalled_collective", "none"),
    "straggler": ("straggler", "data_loading"),
    "membound": ("memory_bandwidth", "memory_bandwidth"),
    "launch": ("kernel_launch", "kernel_launch"),
    "fp32": ("precision", "precision"),
    "h2d": ("data_loading_copy", "data_loading_copy"),
    "loader_cpu": ("data_loading", "data_loading"),
    "ddp_small": ("kernel_launch", "kernel_launch"),
    "h200_loader_cpu": ("data_loading_cpu",),
    "h200_storage": ("data_loading_storage",),
    "h200_shm": ("shm",),
}
"""By tape, for each of its GPUs. What held the data loading up shows only on the tapes of one H200:
the lab's recorder did not look at processes."""

SETTINGS = ["--host.interval=5", "--gpu.processes-interval=5"]
"""As the tapes of one H200 were recorded."""


def judged(tape: str) -> tuple[Loop, list[dict[str, Any]]]:
    node = TapeNode(TAPES / f"{tape}.jsonl.gz")
    loop = watch(node, RunSettings(_cli_parse_args=SETTINGS))
    for _ in loop.replay(node.clock, node.end):
        pass
    (verdicts,) = (batch.reading.detail for s, batch in loop.details() if s.name == "verdict")
    return loop, sorted(verdicts["verdicts"], key=lambda verdict: str(verdict["gpu"]))


@pytest.mark.parametrize("tape", CAUSE)
def test_an_incident_is_put_down_to_its_cause(tape: str) -> None:
    _, verdicts = judged(tape)
    assert tuple(verdict["cause"] for verdict in verdicts) == CAUSE[tape]
    for verdict in verdicts:
        if verdict["cause"] != "none":
            assert verdict["evidence"]


def test_one_cause_of_each_gpu_is_exported_as_1() -> None:
    loop, verdicts = judged("straggler")
    values = {
        sample.labels: sample.value
        for sample in loop.samples()
        if sample.metric.name == "gpunode_gpu_bottleneck"
    }
    assert len(values) == len(verdicts) * len(CAUSES)
    assert {labels for labels, value in values.items() if value} == {
        (verdict["gpu"], verdict["uuid"], verdict["cause"]) for verdict in verdicts
    }


def test_evidence_names_series_that_are_exported() -> None:
    for tape in CAUSE:
        loop, verdicts = judged(tape)
        exported = Exposition(loop.samples).encode("")[0].decode()
        for evidence in (each for verdict in verdicts for each in verdict["evidence"]):
            assert f"\n{evidence['series']} " in exported


class Steps:
    """What a training process told before it stopped telling."""

    name = "training_steps"
    device = gpu = ""
    every = 2.0
    metrics = (SINCE_STEP, MEDIAN)

    def __init__(self, since: float, gpus: list[tuple[str, str]]) -> None:
        self.since = since
        self.gpus = gpus

    def find(self) -> list[Source]:
        return [self]

    def read(self) -> Reading:
        return Reading(
            tuple(
                sample
                for gpu in self.gpus
                for sample in (*SINCE_STEP.at(self.since, *gpu), *MEDIAN.at(0.2, *gpu))
            )
        )


@pytest.mark.parametrize(
    ("tape", "since", "causes"),
    [
        ("hang", 40.0, ("collective", "input")),
        ("starved", 40.0, ("input", "input")),
        ("compute", 40.0, ("unknown", "unknown")),
        ("hang", 20.0, (None, None)),
    ],
)
def test_a_training_whose_step_is_overdue_is_stalled_by_what_the_ledger_says(
    tape: str, since: float, causes: tuple[str | None, ...]
) -> None:
    node = TapeNode(TAPES / f"{tape}.jsonl.gz")
    gpus = [(str(gpu.identity.index), gpu.identity.uuid) for gpu in node.gpus()]
    loop = watch(node, RunSettings(_cli_parse_args=SETTINGS))
    loop.finders = [Steps(since, gpus) if f.name == "training_steps" else f for f in loop.finders]
    for _ in loop.replay(node.clock, node.end):
        pass
    found = {
        sample.labels[1:]: sample.value
        for sample in loop.samples()
        if sample.metric is TRAINING_STALLED
    }
    assert len(found) == len(gpus) * len(STALLS)
    stalled = {uuid: cause for (uuid, cause), value in found.items() if value}
    assert tuple(stalled.get(uuid) for _, uuid in gpus) == causes
