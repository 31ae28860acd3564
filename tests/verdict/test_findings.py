"""What a person is told of a node, where that takes more than what is read of it now."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from gpunode.cli.settings.demo import DemoSettings
from gpunode.export.web.node import NodeNow, node
from gpunode.host import pressure
from gpunode.incidents import history
from gpunode.jobs import processes
from gpunode.jobs.owners import NCCL_SETTING
from gpunode.loop.playing import NowPlaying
from gpunode.metric import Metric
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS, STORIES
from gpunode.sources import watch
from tests.cases import with_each
from tests.export.page import scenes
from tests.verdict.stage import SHORT, Actor, Stage
from tests.verdict.test_causes import RESTS


def node_page(story: str, folder: Path = STORIES, seconds: float = 0.0) -> NodeNow:
    """What the page tells at the end of an incident of the demo, or of another folder."""
    tape = TapeNode(folder / f"{story}.jsonl.gz")
    loop = watch(cast(Node, tape), DemoSettings(), NowPlaying(tape))
    for _ in loop.replay(tape.clock, seconds or tape.end):
        pass
    return node(loop)


def test_a_lost_gpu_keeps_its_owner_and_its_rank_and_is_counted_since_it_was_lost() -> None:
    now = node(scenes.lost(60).stage.loop)
    lost = next(gpu for gpu in now.gpus if gpu.does == "not answering")
    other = next(gpu for gpu in now.gpus if gpu is not lost)
    assert len(now.gpus) == 8
    assert lost.name == other.name
    assert lost.owners == other.owners
    assert (lost.ranks, lost.power_watts, lost.states) == (["3"], None, {})
    (finding,) = now.findings
    assert finding.title == f"GPU 3 does not answer: {lost.owners[0]} held it as rank 3"
    assert 40 <= (lost.lasts_seconds or 0.0) <= 60


def test_no_cpu_is_warned_of_where_no_job_is() -> None:
    for scene, warned in ((scenes.idle(10), False), (scenes.at_work(2), True)):
        scene.host.rates[pressure.WAITING, ("cpu",)] = 0.9
        titles = [one.title for one in node(scene.play(120).stage.loop).findings]
        assert any("Past the limit" in title for title in titles) == warned, titles


def test_what_mig_makes_of_a_gpu_is_told_apart_from_gpus() -> None:
    gpus = node(scenes.slices(60).stage.loop).gpus
    assert [gpu.instance for gpu in gpus] == [True] * 7 + [False]


def test_what_a_verdict_says_of_storage_is_not_told_of_the_node_again() -> None:
    now = node_page("storage")
    assert {one.cause for one in now.figures if one.short} == {"data_loading_storage"}
    (finding,) = now.findings
    assert finding.title.endswith("are starved: storage is too slow")


def test_what_a_tape_lacks_is_not_said_of_a_node() -> None:
    (finding,) = node_page("starved", INCIDENTS, seconds=20.0).findings
    assert finding.title.endswith("and what may explain it is not all on the tape")
    assert "doctor" not in finding.remedy


def test_a_gain_that_rounds_to_none_is_not_told() -> None:
    (finding,) = node_page("comm_nop2p", INCIDENTS, seconds=20.0).findings
    assert finding.gain == ""


def test_what_slows_a_gpu_is_told_with_those_that_wait_for_it() -> None:
    now = node_page("throttled")
    (finding,) = now.findings
    waiting = "GPUs 0\N{EN DASH}4, 6 and 7"
    assert finding.title == f"{waiting} wait for GPU 5, which is slowed down by heat"
    assert finding.remedy.startswith("Check fans")
    assert any("throttled" in one.series for one in finding.evidence)
    late = next(gpu for gpu in now.gpus if gpu.label == "5")
    assert late.does == "waited for: slowed down by heat"


def test_the_setting_that_keeps_data_off_nvlink_is_named_with_what_unsets_it() -> None:
    (finding,) = node_page("p2p").findings
    assert finding.title.endswith("while nothing is computed: NCCL_P2P_DISABLE=1 is set")
    assert "`unset NCCL_P2P_DISABLE`" in finding.remedy
    assert any("gpunode_nccl_setting_info" in one.series for one in finding.evidence)


@with_each(
    [
        (2, ("NCCL_P2P_DISABLE", "1"), True),
        (2, ("NCCL_P2P_DISABLE", "0"), False),
        (2, ("NCCL_DEBUG", "1"), False),
        (1, ("NCCL_P2P_DISABLE", "1"), False),  # its data goes to other nodes
    ]
)
def test_a_setting_is_named_where_it_tells_of_the_loss(
    gpus: int, setting: tuple[str, str], named: bool
) -> None:
    states = {"communication": 0.6, "compute": 0.4}
    actors = (Actor(at, states, levels={(NCCL_SETTING, setting): 1.0}) for at in range(gpus))
    stage = Stage(*actors)
    stage.play(60)
    (finding,) = node(stage.loop).findings
    assert ("NCCL_P2P_DISABLE=1" in finding.title) == named, finding


def test_a_gpu_has_been_waited_for_as_long_as_others_wait() -> None:
    scene = scenes.at_work(3)
    scene.play(120)
    for one in scene.actors[:2]:
        scenes.act(one, scenes.WAITING, 300.0)
    *waiting, late = node(scene.play(60).stage.loop).gpus
    assert late.cause == "none", "its own cause would tell of the time before as well"
    assert late.lasts_seconds == max(gpu.lasts_seconds or 0.0 for gpu in waiting)
    assert 50 <= late.lasts_seconds <= 70


@pytest.fixture
def two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the hour that is kept."""
    monkeypatch.setattr(history, "POINTS", 13)


@pytest.mark.usefixtures("two_minutes")
@pytest.mark.parametrize("seconds", [20.0, 200.0])
def test_a_hang_has_lasted_as_long_as_the_finding_says_that_nothing_moved(seconds: float) -> None:
    scene = scenes.at_work(2)
    for one in scene.actors:
        scenes.act(one, scenes.WAITING, 300.0)
    scene.play(60)  # the wait for a slow rank before it is no hang
    scenes.act(scene.actors[0], {"blocked": 1.0}, 128.0)
    scenes.act(scene.actors[1], {"idle": 1.0}, 118.0)
    now = node(scene.play(seconds).stage.loop)
    (still,) = [one for one in now.findings[0].evidence if "blocked_streak" in one.series]
    assert seconds - 4 <= still.value <= seconds
    assert [gpu.lasts_seconds for gpu in now.gpus] == [still.value] * 2
    assert not any(gpu.lasts_longer for gpu in now.gpus)


@pytest.mark.usefixtures("two_minutes")
def test_what_began_before_what_is_kept_has_lasted_longer() -> None:
    scene = scenes.at_work(1)
    scene.play(30)
    scenes.act(scene.actors[0], scenes.STARVED, 290.0)
    (before,) = node(scene.play(90).stage.loop).gpus
    (after,) = node(scene.play(90).stage.loop).gpus
    assert not before.lasts_longer
    assert 70 <= (before.lasts_seconds or 0.0) <= 90
    assert after.lasts_longer
    assert 110 <= (after.lasts_seconds or 0.0) <= 120


def test_a_gpu_that_rests_has_not_rested_while_it_worked() -> None:
    rests, works = Actor(0, jobs=("notebook",)), Actor(1)
    scene = scenes.Scene(rests, works)
    scene.play(120)
    rests.states = {"idle": 1.0}
    idle, other = node(scene.play(60).stage.loop).gpus
    assert idle.cause == other.cause == "none"
    assert 40 <= (idle.lasts_seconds or 0.0) <= 60
    assert other.lasts_seconds is None


def test_what_cannot_be_read_of_a_job_is_not_said_to_explain_nothing() -> None:
    scene = scenes.Scene(scenes.actor(0, {"starved": 1.0}))
    scene.actors[0].levels[processes.UNREADABLE, ("stat",)] = 2.0
    (finding,) = node(scene.play(60).stage.loop).findings
    assert "what may explain it is not all read on this node" in finding.title
    assert any("what they do is not known" in one.meaning for one in finding.evidence)


@pytest.mark.parametrize(
    ("gauges", "does"),
    [
        (RESTS, "at work, with short gaps in which its process sleeps"),
        (
            {**RESTS, processes.LOADER_CPUS: 0.99},
            "at work, with short gaps in which its process waits for a CPU or its data",
        ),
    ],
)
def test_a_gpu_at_work_is_not_said_to_run_nothing(gauges: dict[Metric, float], does: str) -> None:
    stage = Stage(Actor(0, {"compute": 0.8, SHORT: 0.2}, gauges))
    stage.play(60)
    (finding,) = node(stage.loop).findings
    assert finding.title == f"GPU 0 is {does}"


def test_no_more_is_promised_than_mending_what_is_waited_for_gives() -> None:
    cpus = {processes.HOST_CPUS: 1.0}
    late = Actor(0, {"compute": 0.84, SHORT: 0.16}, cpus, peers=True)
    waits = {"compute": 0.3, SHORT: 0.1, "blocked": 0.6}
    stage = Stage(late, *(Actor(at, waits, cpus, peers=True) for at in (1, 2, 3)))
    stage.play(80)
    (finding,) = node(stage.loop).findings
    assert "GPU 0, which is waiting between kernels that are too small" in finding.title
    assert finding.gain.startswith("Without it: 1.1 times as fast")
