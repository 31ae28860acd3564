"""A hang from end to end: the ledger, the streak, the verdict, the awaited rank, the overdue step.

The alert is played in ``test_incidents.py``, on real GPUs the same is in ``tests/hardware``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import cast

import pytest

from gpunode.config.daemon import Settings
from gpunode.gpu.activity import BLOCKED_STREAK
from gpunode.holders.census import Census
from gpunode.jobs.steps import LAST_STEP, MEDIAN
from gpunode.loop import Loop
from gpunode.nccl.ras import NcclRas
from gpunode.node.node import Clock, Node
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from gpunode.sources import finders, watch
from gpunode.verdict.overdue import STALLS, TRAINING_STALLED
from gpunode.verdict.source import Judgements, Verdicts
from tests.cases import with_each
from tests.nccl.ras import RasNode, page, rank, ras_server, status
from tests.replay import activities, play, shares, tape

ANSWERS = Path(__file__).with_name("recorded")


def test_the_gpu_that_waits_is_blocked_and_its_streak_grows() -> None:
    node = tape("hang")
    loop = watch(cast(Node, node), Settings())
    play(loop, node)
    waiting, missing = (shares(window) for window in activities(loop))
    assert waiting["blocked"] == pytest.approx(1, abs=0.05)
    assert missing["blocked"] == pytest.approx(0, abs=0.001)
    streaks = {s.labels[0]: s.value for s in loop.samples() if s.metric is BLOCKED_STREAK}
    assert streaks == {"0": pytest.approx(node.end, rel=0.1), "1": 0}
    (judged,) = loop.details(Judgements)
    assert {v.gpu: v.cause for v in judged.detail.verdicts}["0"] == "stalled_collective"


def test_a_rank_that_does_not_join_is_named_at_the_second_look() -> None:
    with ras_server() as server:
        node = RasNode(server.port)
        source = NcclRas(Census(node), Settings())
        server.answer = status([rank(0, 50, os.getpid()), rank(1, 50), rank(9, 50)])
        assert "gpunode_nccl_stalled_communicators 0.0" in page(source)
        node.stepped.now += 10
        server.answer = status([rank(0, 61, os.getpid()), rank(1, 61), rank(9, 60)])
        assert "gpunode_nccl_awaited_rank_info" not in page(source)
        node.stepped.now += 10
        assert page(source) == (
            'gpunode_nccl_awaited_rank_info{communicator="1",host="10.0.0.2",nvml_device="1",'
            'pid="109",rank="9",reason="behind"} 1.0\n'
            'gpunode_nccl_collectives_total{collective="AllReduce",gpu="0",uuid="GPU-aa"} 11.0\n'
            'gpunode_nccl_collectives_total{collective="Broadcast",gpu="0",uuid="GPU-aa"} 0.0\n'
            "gpunode_nccl_communicators 1.0\n"
            "gpunode_nccl_rank_errors 0.0\n"
            'gpunode_nccl_ras_unanswered{reason="ambiguous"} 0.0\n'
            'gpunode_nccl_ras_unanswered{reason="garbled"} 0.0\n'
            'gpunode_nccl_ras_unanswered{reason="no_permission"} 0.0\n'
            "gpunode_nccl_stalled_communicators 1.0"
        )


@pytest.mark.parametrize("form", ["h200x2_hang_ras.txt", "h200x2_hang_ras_json.txt"])
def test_what_nccl_answered_about_a_hang_names_its_rank(form: str) -> None:
    with ras_server() as server:
        node = RasNode(server.port)
        source = NcclRas(Census(node), Settings())
        real = (ANSWERS / form).read_text()
        server.answer = re.sub(r"\b692\b", str(os.getpid()), real)
        page(source)
        node.stepped.now += 10
        found = page(source)
    assert (
        'gpunode_nccl_awaited_rank_info{communicator="6a30ee618137d2d0",host="192.0.2.2",'
        'nvml_device="1",pid="693",rank="1",reason="behind"} 1.0'
    ) in found


def test_what_nccl_answers_about_a_rank_that_is_mute_is_no_json_and_is_read() -> None:
    with ras_server() as server:
        real = (ANSWERS / "h200x2_unresponsive_ras_json.txt").read_text()
        server.answer = re.sub(r"\b620\b", str(os.getpid()), real)
        found = page(NcclRas(Census(RasNode(server.port)), Settings()))
    assert (
        'gpunode_nccl_awaited_rank_info{communicator="2d266c1de2d8f068",host="192.0.2.2",'
        'nvml_device="1",pid="621",rank="1",reason="unresponsive"} 1.0'
    ) in found


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


@with_each(
    [
        ("hang", 40.0, ("collective", "input")),
        ("starved", 40.0, ("input", "input")),
        ("compute", 40.0, ("unknown", "unknown")),
        ("hang", 20.0, (None, None)),
    ]
)
def test_a_training_whose_step_is_overdue_is_stalled_by_what_the_ledger_says(
    incident: str, since: float, causes: tuple[str | None, ...]
) -> None:
    node = tape(incident)
    gpus = [gpu.identity.labels for driver in node.drivers for gpu in driver.gpus()]
    found_by = [f for f in finders(cast(Node, node), Settings()) if f.name != "training_steps"]
    loop = Loop(
        node.clock, [*found_by, Steps(node.clock, since, gpus)], [Verdicts()], find_every=10.0
    )
    play(loop, node)
    found = {
        sample.labels[1:]: sample.value
        for sample in loop.samples()
        if sample.metric is TRAINING_STALLED
    }
    assert len(found) == len(gpus) * len(STALLS)
    stalled = {uuid: cause for (uuid, cause), value in found.items() if value}
    assert tuple(stalled.get(uuid) for _, uuid in gpus) == causes
