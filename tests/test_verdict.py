"""What each recorded incident is put down to, and the evidence that is given for it."""

from __future__ import annotations

from typing import cast

import pytest

from gpunode.config import GpuSettings, HostSettings, Settings
from gpunode.export.exposition import Exposition
from gpunode.jobs.steps import LAST_STEP, MEDIAN
from gpunode.loop import Loop
from gpunode.node.node import Clock, Node
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from gpunode.sources import finders, watch
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.source import STALLS, TRAINING_STALLED, Judged, Judgement, Verdicts
from tests.replay import play, tape

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

SETTINGS = Settings(host=HostSettings(interval=5), gpu=GpuSettings(processes_interval=5))
"""As the tapes of one H200 were recorded."""


def judged(name: str) -> tuple[Loop, list[Judgement]]:
    node = tape(name)
    loop = watch(cast(Node, node), SETTINGS)
    play(loop, node)
    (told,) = loop.details(Judged)
    return loop, sorted(told.detail.verdicts, key=lambda verdict: verdict.gpu)


@pytest.mark.parametrize("incident", CAUSE)
def test_an_incident_is_put_down_to_its_cause(incident: str) -> None:
    _, verdicts = judged(incident)
    assert tuple(verdict.cause for verdict in verdicts) == CAUSE[incident]
    assert all(verdict.evidence for verdict in verdicts if verdict.cause != "none")


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


def test_evidence_names_series_that_are_exported() -> None:
    for incident in CAUSE:
        loop, verdicts = judged(incident)
        exported = Exposition(loop.samples).encode("")[0].decode()
        for evidence in (each for verdict in verdicts for each in verdict.evidence):
            assert f"\n{evidence.series} " in exported


class Steps:
    """What a training process told before it stopped telling."""

    name = "training_steps"
    every = 2.0
    metrics = (LAST_STEP, MEDIAN)

    def __init__(self, clock: Clock, since: float, gpus: list[tuple[str, str]]) -> None:
        self.clock = clock
        self.since = since
        self.gpus = gpus

    def find(self) -> list[tuple[Place, Source]]:
        return [(WHOLE_NODE, self)]

    def read(self) -> Reading:
        return Reading(
            tuple(
                sample
                for gpu in self.gpus
                for sample in (
                    *LAST_STEP.at(self.clock.time() - self.since, *gpu),
                    *MEDIAN.at(0.2, *gpu),
                )
            )
        )


@pytest.mark.parametrize(
    ("incident", "since", "causes"),
    [
        ("hang", 40.0, ("collective", "input")),
        ("starved", 40.0, ("input", "input")),
        ("compute", 40.0, ("unknown", "unknown")),
        ("hang", 20.0, (None, None)),
    ],
)
def test_a_training_whose_step_is_overdue_is_stalled_by_what_the_ledger_says(
    incident: str, since: float, causes: tuple[str | None, ...]
) -> None:
    node = tape(incident)
    gpus = [gpu.identity.labels for driver in node.drivers for gpu in driver.gpus()]
    found_by = [f for f in finders(cast(Node, node), SETTINGS) if f.name != "training_steps"]
    loop = Loop(node.clock, [*found_by, Steps(node.clock, since, gpus)], [Verdicts()])
    play(loop, node)
    found = {
        sample.labels[1:]: sample.value
        for sample in loop.samples()
        if sample.metric is TRAINING_STALLED
    }
    assert len(found) == len(gpus) * len(STALLS)
    stalled = {uuid: cause for (uuid, cause), value in found.items() if value}
    assert tuple(stalled.get(uuid) for _, uuid in gpus) == causes
