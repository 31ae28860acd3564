"""What a person is told of a node, where that takes more than what is read of it now."""

from __future__ import annotations

from gpunode.export.web.node import node
from gpunode.host import pressure
from tests.export.page import scenes


def test_a_lost_gpu_keeps_its_owner_and_its_rank_and_is_counted() -> None:
    now = node(scenes.lost(60).stage.loop)
    lost = next(gpu for gpu in now.gpus if gpu.does == "not answering")
    other = next(gpu for gpu in now.gpus if gpu is not lost)
    assert len(now.gpus) == 8
    assert lost.name == other.name
    assert lost.owners == other.owners
    assert (lost.ranks, lost.power_watts, lost.states) == (["3"], None, {})
    (finding,) = now.findings
    assert finding.title == f"GPU 3 does not answer: {lost.owners[0]} held it as rank 3"


def test_no_cpu_is_warned_of_where_no_job_is() -> None:
    for scene, warned in ((scenes.idle(10), False), (scenes.at_work(2), True)):
        scene.host.rates[pressure.WAITING, ("cpu",)] = 0.9
        titles = [one.title for one in node(scene.play(120).stage.loop).findings]
        assert any("Past the limit" in title for title in titles) == warned, titles


def test_what_mig_makes_of_a_gpu_is_told_apart_from_gpus() -> None:
    gpus = node(scenes.slices(60).stage.loop).gpus
    assert [gpu.instance for gpu in gpus] == [True] * 7 + [False]
