"""Recorded incidents: what the daemon says of each against what the workload really did."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from gpunode.config.daemon import Settings
from gpunode.gpu.ledger import STATES
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.sources import watch
from tests.cases import with_each
from tests.replay import activities, replayed, shares
from tests.tapes.truth import TRUTH, errors
from tests.verdict.test_verdict import REAL

TRACE = Path(__file__).parents[3] / "shared/traces/h200x2.jsonl.gz"


@with_each(TRUTH)
def test_every_state_is_within_a_tenth_of_the_truth(incident: str) -> None:
    """Also where the tape begins anew, which is no time that is lost."""
    loop, node = replayed(incident, times=3)
    for truth, activity in zip(TRUTH[incident], activities(loop), strict=True):
        wrong = errors(truth, shares(activity))
        assert max(wrong.values(), key=abs) == pytest.approx(0, abs=0.10), wrong
        assert sum(activity.ledger.values()) == pytest.approx(node.end * 3, rel=0.01)


def test_counters_of_sms_that_cannot_be_true_are_no_reading() -> None:
    """A second program read the GPM counters of two H200s that served in a group."""
    node = TapeNode(REAL / "uncounted.jsonl.gz")
    loop = watch(cast(Node, node), Settings())
    for _ in loop.replay(node.clock, node.end):
        pass
    told = list(loop.samples())
    worked = [each for each in activities(loop) if each.activity and each.activity["graphics"] > 0]
    assert len(worked) == 2
    assert not any("sm" in each.activity for each in worked if each.activity)
    assert all(each.ledger["unknown"] > 3 for each in worked), "no kernel's time is guessed"
    unread = {s.labels: s.value for s in told if s.metric.name == "gpunode_unread_total"}
    assert cast(float, unread["gpu_activity", "sm_counters"]) >= 8


@with_each(["starved", "straggler", "hang", "h2d", "launch", "comm"])
def test_shorter_windows_tell_the_same(incident: str) -> None:
    loop, _ = replayed(incident, interval=1.5)
    for truth, activity in zip(TRUTH[incident], activities(loop), strict=True):
        wrong = errors(truth, shares(activity))
        assert max(wrong.values(), key=abs) == pytest.approx(0, abs=0.10), wrong


def test_a_square_wave_of_load_is_counted_and_timed() -> None:
    loop, node = replayed("h200_square_wave")
    (activity,) = activities(loop)
    assert activity.power_swings == pytest.approx(node.end / 0.2, rel=0.02)
    assert activity.step_period_seconds == pytest.approx(0.2, rel=0.02)
    assert shares(activity)["compute"] == pytest.approx(0.30, abs=0.05)
    assert shares(activity)["starved"] == pytest.approx(0.70, abs=0.05)


def test_four_phases_take_a_quarter_each() -> None:
    loop, _ = replayed("h200_four_phases")
    (activity,) = activities(loop)
    for state, share in (("compute", 0.5), ("copy", 0.25), ("starved", 0.25)):
        assert shares(activity)[state] == pytest.approx(share, abs=0.05), state


@pytest.mark.parametrize(("tape", "state"), [("h200_free", "free"), ("h200_held", "idle")])
def test_a_gpu_without_work_is_free_or_idle(tape: str, state: str) -> None:
    loop, _ = replayed(tape)
    (activity,) = activities(loop)
    assert shares(activity)[state] == pytest.approx(1, abs=0.001)


@with_each(["compute", "healthy", "hang", "membound", "launch"])
def test_a_steady_draw_has_no_period_and_no_swings(incident: str) -> None:
    loop, _ = replayed(incident, times=4)
    found = [(each.step_period_seconds, each.power_swings) for each in activities(loop)]
    assert found == [(None, 0)] * 2


def test_energy_is_the_mean_draw_over_time() -> None:
    loop, node = replayed("compute")
    samples = [s for s in loop.samples() if s.metric.name == "gpunode_gpu_energy_joules_total"]
    by_gpu: dict[str, float] = {}
    for each in samples:
        by_gpu[each.labels[0]] = by_gpu.get(each.labels[0], 0.0) + cast(float, each.value)
    joules = list(by_gpu.values())
    assert len(samples) == 2 * len(STATES)
    # The recorder's last drain came 0.6 s before the end.
    assert joules == pytest.approx([692 * (node.end - 0.6)] * 2, rel=0.03)


@pytest.mark.skipif(not TRACE.exists(), reason=f"the original trace is not here: {TRACE}")
def test_the_committed_tapes_are_what_the_conversion_makes(tmp_path: Path) -> None:
    convert = Path(__file__).parents[1] / "tapes/convert.py"
    subprocess.run([sys.executable, str(convert), str(TRACE), str(tmp_path)], check=True)
    made = sorted(tmp_path.glob("*.gz"))
    assert {path.name for path in made} == {f"{incident}.jsonl.gz" for incident in TRUTH}
    for path in made:
        assert gzip.decompress(path.read_bytes()) == gzip.decompress(
            (INCIDENTS / path.name).read_bytes()
        ), path.name
