"""Incidents: what begins one, what is kept of it, and what that takes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from gpunode.cli.mcp import HEARD_AFTER, incident_claims
from gpunode.config.daemon import IncidentSettings, Settings, StacksSettings
from gpunode.export.incident_page import page
from gpunode.export.web.app import create_app
from gpunode.export.web.guard import TrustedApplication
from gpunode.gpu import xids
from gpunode.incidents import black_box, overheard
from gpunode.incidents.black_box import BlackBox
from gpunode.incidents.history import History
from gpunode.incidents.incident import Incident, Kind, parse
from gpunode.incidents.signs import IncidentSign, Signs
from gpunode.jobs import processes, steps
from gpunode.loop import Loop
from gpunode.node.node import KeptLines, Node, SteppedClock
from gpunode.node.rolling_tape import RollingTape
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS
from gpunode.source import View
from gpunode.sources import watch
from gpunode.verdict.facts import At
from gpunode.verdict.findings import NodeStatus
from gpunode.verdict.held_up import HoldTracker
from gpunode.verdict.looking import Looking
from gpunode.verdict.source import Judgements
from gpunode.verdict.where import StackLook
from tests.machine import MACHINES, Machine
from tests.verdict.stage import Actor, Stage
from tests.verdict.test_where import IN_LOCK, StackNode, actors, node

HERE = "http://localhost:9816"


class PlayedIncident:
    """A recorded incident, played through the whole daemon with a black box."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.tape = TapeNode(INCIDENTS / f"{name}.jsonl.gz")
        asked = IncidentSettings(**settings)
        self.box = BlackBox(cast(Node, self.tape), asked, code=False)
        self.loop: Loop = watch(self.box.node, Settings(), self.box)

    def play(self, times: float) -> None:
        for _ in self.loop.replay(self.tape.clock, self.tape.end * times):
            pass


def get(loop: Loop, path: str) -> Any:
    """An answer of the API to root on this node."""
    return TestClient(TrustedApplication(create_app(lambda: loop))).get(path)


@pytest.fixture(scope="module")
def hang() -> PlayedIncident:
    played = PlayedIncident("h200_hang")
    played.play(1.0)
    return played


def test_a_hang_is_one_incident_that_says_who_waits_for_whom(hang: PlayedIncident) -> None:
    (brief,) = get(hang.loop, "/api/v1/incidents").json()
    assert brief["kind"] == "stall"
    assert brief["gpus"] == ["0", "1"]
    assert brief["title"].startswith("GPU 0 hangs: it waits for GPU 1, whose process is stopped")
    found = parse(get(hang.loop, f"/api/v1/incidents/{brief['id']}").content)
    assert [(late.at[0], late.reason) for late in found.waits] == [("1", "stopped")]
    assert {one.pid for one in found.processes} == {2709, 2711}
    assert "kill -CONT 2711" in found.remedy
    assert any(one.series.startswith("gpunode_gpu_blocked_streak") for one in found.evidence)
    assert any(moment.time < found.brief.began for moment in found.moments)
    assert any("hanging in a collective" in moment.text for moment in found.moments)
    assert found.times
    assert all(gpu.states for gpu in found.history)


def test_its_tape_is_played_to_the_same_verdict(hang: PlayedIncident, tmp_path: Path) -> None:
    (kept,) = hang.box.kept
    path = tmp_path / "incident.jsonl.gz"
    path.write_bytes(get(hang.loop, f"/api/v1/incidents/{kept.brief.id}/tape").content)
    tape = TapeNode(path)
    loop = watch(cast(Node, tape), Settings())
    for _ in loop.replay(tape.clock, tape.end):
        pass
    (told,) = loop.details(Judgements)
    assert {one.gpu: one.cause for one in told.detail.verdicts} == {
        "0": "stalled_collective",
        "1": "stopped",
    }
    assert kept.brief.title[:40] in tape.comment


def test_the_same_answer_for_who_takes_no_gzip(hang: PlayedIncident) -> None:
    path = f"/api/v1/incidents/{hang.box.kept[0].brief.id}"
    client = TestClient(TrustedApplication(create_app(lambda: hang.loop)))
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert parse(plain.content) == parse(client.get(path).content)


def test_an_incident_that_is_not_kept_is_not_found(hang: PlayedIncident) -> None:
    for tail in ("x", "20261122T043125Z-stall-9", "20261122T043125Z-stall-9/tape"):
        assert get(hang.loop, f"/api/v1/incidents/{tail}").status_code == 404


def test_strangers_read_no_incident_whatever_their_address(hang: PlayedIncident) -> None:
    """Nothing tells surely what a proxy on the node passes on."""
    for tail in ("", "/{id}", "/{id}/tape"):
        path = f"/api/v1/incidents{tail}".format(id=hang.box.kept[0].brief.id)
        for client in ("10.1.2.3", "127.0.0.1", "::1"):
            asks = TestClient(create_app(lambda: hang.loop), base_url=HERE, client=(client, 1))
            answer = asks.get(path)
            assert answer.status_code == 403, (path, client)
            assert "--web.config.file" in answer.json()["detail"]


def test_a_healthy_run_is_no_incident() -> None:
    played = PlayedIncident("healthy")
    played.play(1.0)
    assert not played.box.kept


class Box(Stage):
    """A stage with a black box."""

    def __init__(
        self, *actors: Actor, views: Sequence[View] = (), code: bool = False, **settings: Any
    ) -> None:
        super().__init__(*actors, views=[HoldTracker(), *views, History(), cast(Any, self)])
        node = Machine(Path("/nowhere"))
        node.clock = self.clock
        self.box = BlackBox(cast(Node, node), IncidentSettings(**settings), code=code)

    name, every, metrics = BlackBox.name, BlackBox.every, BlackBox.metrics

    def read(self, readings: Any) -> Any:
        return self.box.read(readings)

    @property
    def incidents(self) -> list[Incident]:
        """The incidents, the oldest first."""
        return [parse(gzip.decompress(one.packed)) for one in reversed(self.box.kept)]

    @property
    def kinds(self) -> list[Kind]:
        return [one.brief.kind for one in self.incidents]


class LostStates(dict[str, float]):
    """The states of a GPU that does not answer."""

    def items(self) -> Any:
        raise OSError(5, "GPU is lost")


def lose(actor: Actor) -> None:
    actor.states = LostStates()


def kill(actor: Actor) -> None:
    actor.rates[processes.MEMORY_EVENTS, ("oom_kill",)] = 0.02


def fail(actor: Actor) -> None:
    actor.rates[xids.XIDS, ("31",)] = 0.02


def restart(actor: Actor) -> None:
    ((pid, start),) = actor.processes[:1]
    actor.processes = ((pid + 1, start + 100.0), (0, 0.0))


def slow_down(actor: Actor) -> None:
    actor.gauges |= {steps.MEDIAN: 2.0, steps.BASELINE: 1.0}


BEGINNINGS: dict[Kind, Callable[[Actor], None]] = {
    "gpu_lost": lose,
    "out_of_memory": kill,
    "xid": fail,
    "slow": slow_down,
    "crash_loop": restart,
}


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_each_kind_begins_with_its_sign_and_not_before(kind: Kind) -> None:
    actor = Actor(0, gauges={steps.MEDIAN: 1.0, steps.BASELINE: 1.0})
    if kind == "xid":
        actor.rates = {(xids.XIDS, ("31",)): 0.0}
    if kind == "out_of_memory":
        actor.rates = {(processes.MEMORY_EVENTS, ("oom_kill",)): 0.0}
    box = Box(actor, Actor(1))
    box.play(60)
    assert box.kinds == []
    for _ in range(4):
        BEGINNINGS[kind](actor)
        box.play(50)
    (found,) = box.incidents
    assert found.brief.kind == kind
    assert found.brief.gpus == ("0",)
    assert "GPU 0" in found.brief.title


def test_a_training_that_was_always_slow_has_not_become_so() -> None:
    box = Box(Actor(0, gauges={steps.MEDIAN: 2.0, steps.BASELINE: 1.0}))
    box.play(120)
    assert box.kinds == []


def test_an_xid_that_ends_no_program_begins_nothing() -> None:
    box = Box(Actor(0, rates={(xids.XIDS, ("154",)): 0.1}))
    box.play(120)
    assert box.kinds == []


def hung() -> tuple[Box, Actor, Actor]:
    """Two ranks, of which one does not come."""
    first = Actor(0, {"blocked": 1.0}, processes=((10, 1.0), (11, 1.0)), trains=True)
    late = Actor(1, {"idle": 1.0}, processes=((20, 1.0), (21, 1.0)), trains=True)
    return Box(first, late), first, late


@pytest.mark.parametrize("set_by", [-3600.0, 86_400.0 * 365])
def test_an_incident_lasted_as_long_as_it_did_though_the_clock_was_set(set_by: float) -> None:
    box, first, late = hung()
    box.play(60)
    box.clock.epoch += set_by
    box.play(60)
    first.states = late.states = {"compute": 1.0}
    box.play(400)
    (found,) = box.incidents
    assert found.brief.over is not None
    assert 100 <= found.brief.over - found.brief.began <= 140


class Ends(Machine):
    """A node whose kernel tells how processes end: all with one status."""

    def __init__(self, status: int) -> None:
        super().__init__(MACHINES / "h200")
        self.status = status
        self.alive: set[int] = set()

    def ended(self, pid: int, start: float) -> int | None:  # noqa: ARG002 as a node is asked
        return None if pid in self.alive else self.status


@pytest.mark.parametrize(("status", "kinds"), [(0, []), (256, ["crash_loop"])])
def test_short_jobs_that_end_well_are_no_crashes(status: int, kinds: list[str]) -> None:
    actor, ends = Actor(0), Ends(status)
    actor.leave()
    box = Box(actor, Actor(1))
    box.box.node = ends
    box.play(60)
    for pid in range(100, 104):
        actor.jobs, actor.states = (f"short-{pid}",), {"compute": 1.0}
        actor.processes = ((pid, 1000.0 + pid), (0, 0.0))
        ends.alive.add(pid)
        box.play(90)
        ends.alive.discard(pid)
        actor.leave()
        box.play(60)
    assert [found.brief.kind for found in box.incidents] == kinds


def test_what_follows_is_part_of_the_incident_up_to_the_end_of_each_process() -> None:
    box, first, late = hung()
    box.play(60)
    fail(late)
    box.play(540)
    for actor in (first, late):
        actor.leave()  # the watchdog ends the job after ten minutes
    box.play(400)
    (found,) = box.incidents
    brief = found.brief
    assert brief.complete
    assert brief.over is not None
    assert 590 <= brief.over - brief.began <= 620
    assert any("XID 31" in moment.text for moment in found.moments)
    gone = {one.pid: one.gone for one in found.processes}
    assert set(gone) == {10, 20}
    assert all(end is not None and end - brief.began > 590 for end in gone.values())
    before = len(found.moments)
    box.play(600)
    assert [len(one.moments) for one in box.incidents] == [before]


def test_what_was_slow_and_then_stands_still_is_a_stall() -> None:
    first = Actor(0, {"blocked": 0.6, "compute": 0.4}, processes=((10, 1.0), (11, 1.0)))
    late = Actor(1, {"compute": 1.0}, processes=((20, 1.0), (21, 1.0)))
    box = Box(first, late)
    box.play(25)
    assert box.kinds == []
    box.play(45)
    assert box.kinds == ["slow"]
    first.block()
    late.states = {"idle": 1.0}
    box.play(60)
    (found,) = box.incidents
    assert found.brief.kind == "stall"
    assert "hangs" in found.brief.title


def test_a_job_that_hangs_again_is_another_incident() -> None:
    box, first, late = hung()
    box.play(60)
    first.states, late.states = {"compute": 1.0}, {"compute": 1.0}
    box.play(600)
    first.block()
    late.states = {"idle": 1.0}
    box.play(60)
    assert box.kinds == ["stall", "stall"]
    assert len({one.brief.id for one in box.incidents}) == 2


def test_what_goes_on_for_long_is_one_incident_and_keeps_nobody_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(black_box, "MAX_DURATION", 100.0)
    monkeypatch.setattr(black_box, "HISTORY_SECONDS", 60.0)
    box, first, _ = hung()
    box.play(60)
    (before,) = box.incidents
    box.play(400)
    (found,) = box.incidents
    assert found.brief.complete
    assert found.brief.over is None
    assert found.times[: len(before.times)] == before.times
    first.rates[xids.XIDS, ("31",)] = 0.0
    box.play(10)
    fail(first)
    box.play(20)
    assert box.kinds == ["stall", "xid"]


def test_a_process_on_a_gpu_that_is_lost_is_not_said_to_be_gone() -> None:
    first, other = Actor(0, processes=((10, 1.0), (0, 0.0))), Actor(1)
    box = Box(first, other)
    box.play(30)
    lose(first)
    box.play(100)
    (found,) = box.incidents
    assert found.brief.kind == "gpu_lost"
    assert [(one.pid, one.gone) for one in found.processes] == [(10, None)]
    assert not any("is gone" in moment.text for moment in found.moments)


ABOUT = {
    ("Out of memory: Killed process 81 (python3) total-vm:1kB", 81): True,
    ("python3[81]: segfault at 0 ip 00007f", 81): True,
    ("NVRM: Xid (PCI:0000:17:00): 31, pid=81, name=python3", 81): True,
    ("Out of memory: Killed process 812 (python3)", 81): False,
    ("python3[181]: segfault", 81): False,
}


def test_a_line_of_the_kernel_is_about_the_process_that_it_names() -> None:
    assert {case: black_box._names(*case) for case in ABOUT} == ABOUT


def test_the_series_names_the_incident_while_it_goes_on() -> None:
    box, first, late = hung()
    box.play(60)

    def named() -> Iterator[tuple[str, ...]]:
        return (s.labels for s in box.loop.samples() if s.metric is black_box.INFO)

    (brief,) = (one.brief for one in box.incidents)
    assert sorted(named()) == [
        ("0", "GPU-0", brief.id, "stall", ""),
        ("1", "GPU-1", brief.id, "stall", ""),
    ]
    first.states, late.states = {"compute": 1.0}, {"compute": 1.0}
    box.play(500)
    assert list(named()) == []


@pytest.mark.parametrize("code", [False, True])
def test_each_look_at_a_process_is_kept_and_its_code_only_if_it_may_be(code: bool) -> None:
    box, *_ = hung_in_a_lock(code)
    box.play(600)
    (found,) = box.incidents
    late = [look for look in found.looks if look.at[0] == "1"]
    after = [round(look.time - found.brief.began) for look in late]
    assert len(after) == 3  # at 10, 60 and 540 s after the stall was called
    assert after[0] <= 20
    assert after[2] >= 530
    assert any(look.waits for look in found.looks)
    said = [moment.text for moment in found.moments if moment.what == "where"]
    assert len(said) == 3
    (where,) = {s.labels[-1] for s in box.loop.samples() if s.metric is black_box.INFO}
    assert "waiting in the kernel for another thread or a lock (`futex_wait_queue`)" in where
    told = gzip.decompress(box.box.kept[0].packed).decode() + where
    assert ("shards.py" in told) is code
    assert ("read_shard" in told) is code
    assert ("shards.py:142" in found.brief.where) is code
    assert ("read_shard" in page(found)) is code


@pytest.mark.parametrize(("hung_for", "reason"), [(40, "lock"), (8, "gone")])
def test_where_a_process_stood_is_told_although_it_was_ended(hung_for: int, reason: str) -> None:
    """A watchdog or a person ends what hangs; what ends soon was not seen to hang."""
    box, late, *_ = hung_in_a_lock()
    box.play(hung_for)
    leave(late)
    box.play(60)
    (found,) = box.incidents
    assert [late.reason for late in found.waits] == [reason]
    assert ("shards.py:142" in found.brief.where) is (reason == "lock")
    assert ("a lock, a queue" in found.brief.title) is (reason == "lock")
    assert any("whose process has ended" in moment.text for moment in found.moments)


def test_a_process_that_ends_after_the_job_went_on_is_what_it_hangs_for() -> None:
    box, late, *others = hung_in_a_lock()
    box.play(40)
    for actor in (late, *others):
        actor.states = {"compute": 1.0}
    box.play(120)
    for actor in others:
        actor.block()
    leave(late)
    box.play(60)
    (found,) = box.incidents
    assert found.brief.title.endswith("whose process has ended")


def test_it_is_kept_when_the_evidence_was_so() -> None:
    """Whoever asks Prometheus for a series of it has to know at which time."""
    box, late, *others = hung_in_a_lock()
    box.play(40)
    (found,) = box.incidents
    assert 20 < found.seen - found.brief.began < 50
    streak = next(e.value for e in found.evidence if "blocked_streak" in e.series)
    assert streak == pytest.approx(found.seen - found.brief.began, abs=6)
    for actor in (late, *others):
        actor.states = {"compute": 1.0}
    box.play(100)
    (again,) = box.incidents
    assert again.seen - found.seen <= 12
    told = incident_claims(again).claims
    assert {claim.at for claim in told if "streak" in claim.promql} == {int(again.seen)}
    assert again.brief.over is not None
    assert told[0].at == int(again.brief.over) + HEARD_AFTER


def leave(actor: Actor) -> None:
    """Its process ends, and it gives up the GPU."""
    actor.leave()
    actor.processes = ()


def hung_in_a_lock(code: bool = True) -> tuple[Any, ...]:
    """A job of four, of which three begin to wait for one that may be looked at, then they."""
    cast_of_four = actors()
    looking = Looking(node(StackNode(IN_LOCK)), Settings(stacks=StacksSettings(code=code)))
    box = Box(*cast_of_four, views=[looking], code=code, where=True)
    box.play(40)
    for actor in cast_of_four:
        actor.block()
    late = cast_of_four.pop(1)
    late.states = {"idle": 1.0}
    return box, late, *cast_of_four


def test_a_look_is_kept_at_once_for_a_job_may_end_before_the_next_is_due() -> None:
    cast_of_four = actors()
    box = Box(*cast_of_four, views=[Looking(node(StackNode(IN_LOCK)), Settings())], where=True)
    box.play(40)
    for actor in cast_of_four:
        actor.block()
    cast_of_four[1].states = {"idle": 1.0}
    found: tuple[StackLook, ...] = ()
    while not found:
        box.play(2)
        found = tuple(look for one in box.incidents for look in one.looks)
    assert box.clock.time() - found[0].time <= 4


def test_more_incidents_at_a_time_than_anybody_reads_are_counted() -> None:
    actors = [Actor(at, rates={(xids.XIDS, ("31",)): 0.0}) for at in range(12)]
    box = Box(*actors)
    box.play(30)
    for actor in actors:
        fail(actor)
    box.play(60)
    assert len(box.kinds) == black_box.MAX_OPEN_INCIDENTS
    refused = [met.times for met in box.loop.unread() if met.what == "incidents"]
    assert refused
    assert refused[0] > 0


def test_moments_are_bounded_and_those_left_out_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(black_box, "MOST_MOMENTS", 60)
    monkeypatch.setattr(black_box, "MOST_PROCESSES", 20)
    box, first, _ = hung()
    box.play(60)
    for number in range(70):
        first.processes = ((1000 + number, float(number)), (0, 0.0))
        box.play(6)
    (found,) = box.incidents[:1]
    assert len(found.moments) == black_box.MOST_MOMENTS
    assert len(found.processes) <= black_box.MOST_PROCESSES
    assert found.left_out > 0


def test_looks_are_bounded_and_those_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "MOST_LOOKS", 2)
    (found,) = looked_at(120).incidents
    assert len(found.looks) == 2
    assert found.left_out > 0


def test_where_a_process_stands_is_cut_in_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "MAX_WHERE", 20)
    assert where_of(looked_at(120)) == "GPU 1: main thread …"


def test_a_label_has_no_part_of_where_another_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "MAX_WHERE", 1000)
    whole = where_of(looked_at(120))
    late, waits, _ = whole.partition("; GPU 0, which waits: ")
    assert waits
    monkeypatch.setattr(black_box, "MAX_WHERE", len(late + waits))
    assert where_of(looked_at(120)) == late


def where_of(box: Box) -> str:
    """Where the process stands for which others wait, as Prometheus hears it."""
    (where,) = {s.labels[-1] for s in box.loop.samples() if s.metric is black_box.INFO}
    return where


def looked_at(seconds: float) -> Box:
    """A job of four that hangs and is looked at, for so long."""
    box: Box = hung_in_a_lock()[0]
    box.play(seconds)
    return box


def test_the_series_of_an_incident_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "MAX_GPUS", 1)
    box, *_ = hung()
    box.play(60)
    (found,) = box.incidents
    assert len(found.brief.gpus) == 2
    assert len([s for s in box.loop.samples() if s.metric is black_box.INFO]) == 1


def test_processes_that_come_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    box, first, _ = hung()
    box.play(60)
    monkeypatch.setattr(black_box, "MOST_PROCESSES", 3)
    first.processes = tuple((1000 + number, float(number)) for number in range(30))
    first.jobs = ("train",) * len(first.processes)
    box.play(16)
    (found,) = box.incidents
    assert 0 < sum("came to GPU" in moment.text for moment in found.moments) <= 3
    (met,) = (met for met in box.loop.unread() if met.what == "processes")
    assert met.times > 27


def test_lines_that_come_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheard, "MAX_NEW_LINES", 2)
    clock = SteppedClock(1e9)
    heard = overheard.LogRecorder(clock, RollingTape(clock, 60.0, 1 << 20, code=False))
    lines = [f"6,{n},{n},-;Out of memory: Killed process {n} (python)" for n in range(9)]
    heard.answer("/dev/kmsg", "log_lines", lambda: lines)
    assert [one.text.split()[5] for _, one in heard.new()] == ["7", "8"]


def test_what_programs_of_one_tenant_say_and_do_pushes_out_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They crash again and again, and each fills its NCCL log."""
    monkeypatch.setattr(black_box, "MOST_MOMENTS", 60)
    monkeypatch.setattr(black_box, "MOST_PROCESSES", 16)
    monkeypatch.setattr(overheard, "MAX_LINES", 64)
    other = Actor(0, processes=((10, 1.0),), jobs=("other",))
    noisy = Actor(1, jobs=("noisy",) * 12)
    box = Box(other, noisy)
    pids = iter(range(1000, 9000))

    def makes_noise(seconds: int) -> None:
        for _ in range(0, seconds, 2):
            noisy.processes = tuple((next(pids), 2.0) for _ in noisy.jobs)
            for pid, _ in noisy.processes:
                said = KeptLines([f"n:1:1 [0] NCCL INFO {n}" for n in range(64)], 0)
                box.box.overheard.answer(f"/proc/{pid}/root/log", "lines", lambda: said)  # noqa: B023
            box.play(2)

    box.play(2)
    killed = ["6,1,1,-;Out of memory: Killed process 3 (python)"]
    box.box.overheard.answer("/dev/kmsg", "log_lines", lambda: killed)
    other.processes = ((10, 1.0), (11, 1.0))
    other.jobs = ("other",) * 2
    makes_noise(60)
    fail(noisy)
    fail(other)
    makes_noise(60)
    for found in box.incidents:
        said = " ".join(moment.text for moment in found.moments)
        assert "Killed process 3" in said
        assert "Process 11 came to GPU 0" in said
        assert len(found.moments) <= black_box.MOST_MOMENTS
        assert len(found.processes) <= black_box.MOST_PROCESSES
        assert 10 in [one.pid for one in found.processes] or "0" not in found.brief.gpus
        assert found.left_out


def test_the_oldest_make_way_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(0, rates={(xids.XIDS, ("31",)): 0.0})
    box = Box(actor)
    cut = bytes(1_000_000)
    monkeypatch.setattr(box.box.tape, "cut", lambda *_: cut)
    box.play(30)
    for _ in range(9):
        fail(actor)
        box.play(10)
        actor.rates[xids.XIDS, ("31",)] = 0.0
        box.play(310)
    kept = [one.brief.tape_bytes for one in box.box.kept]
    assert len(kept) == 9
    assert kept[0] == len(cut)
    assert kept[-1] == 0
    assert sum(one.size for one in box.box.kept) <= black_box.MAX_INCIDENT_BYTES
    assert black_box.MAX_INCIDENT_BYTES + black_box.MAX_TAPE_BYTES < black_box.MAX_BYTES


def test_a_kill_of_a_stranger_before_a_hang_leaves_it_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a cgroup of its own: the node counts it, and no job."""
    found = Signs.found
    killed = [IncidentSign("out_of_memory", "A process was killed for memory", frozenset())]

    def with_a_kill(self: Signs, *given: Any) -> list[IncidentSign]:
        return [*([killed.pop()] if killed else []), *found(self, *given)]

    monkeypatch.setattr(Signs, "found", with_a_kill)
    box, _, _ = hung()
    box.play(120)
    assert sorted(box.kinds) == ["out_of_memory", "stall"]


def test_no_crash_loops_of_one_user_keep_the_hang_of_another_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loops = [
        IncidentSign("crash_loop", f"loop {n}", frozenset({(f"9{n}", "MIG")}))
        for n in range(black_box.MAX_OPEN_INCIDENTS + 2)
    ]
    found = Signs.found

    def with_loops(self: Signs, *given: Any) -> list[IncidentSign]:
        return [*loops, *found(self, *given)]

    def owners(_: NodeStatus, gpus: frozenset[At]) -> tuple[str, ...]:
        return tuple({"user noisy" if uuid == "MIG" else "user hung" for _, uuid in gpus})

    monkeypatch.setattr(black_box, "owners_of", owners)
    monkeypatch.setattr(Signs, "found", with_loops)
    box, _, _ = hung()
    box.play(120)
    assert "stall" in box.kinds


def test_a_crowd_of_processes_makes_none_of_another_gone() -> None:
    own = ((10, 1.0),)
    mine, noisy = Actor(1, processes=own), Actor(0, jobs=(), processes=own)
    box = Box(noisy, mine)
    box.play(20)
    crowd = 2 * black_box.MOST_PROCESSES
    noisy.processes = tuple((1000 + n, 2.0) for n in range(crowd))
    noisy.jobs = ("noisy",) * crowd
    box.play(20)
    assert not [one for one in box.box._moments if "gone from GPU 1" in one.text]
    assert box.box._crowd[0].times == crowd + 1 - black_box.MOST_PROCESSES
