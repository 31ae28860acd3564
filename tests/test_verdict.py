"""What each recorded incident is put down to, and the evidence that is given for it."""

from __future__ import annotations

from typing import cast

import pytest

from gpunode.config import GpuSettings, HostSettings, Settings
from gpunode.export.exposition import Exposition
from gpunode.loop import Loop
from gpunode.node.node import Node
from gpunode.sources import watch
from gpunode.verdict.causes import CAUSES
from gpunode.verdict.source import Judged, Judgement
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
