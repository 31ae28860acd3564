"""A PID that is used again at once: in no source is the next process taken for the one before."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from gpunode.audit.source import audit
from gpunode.client.protocol import VERSION
from gpunode.config.daemon import ClientSettings, Settings
from gpunode.driver.driver import DIRECTIONS, Activity, Unsupported
from gpunode.gpu.activity import GpuActivity, WindowDetail
from gpunode.holders.pods import Pods
from gpunode.jobs import processes
from gpunode.jobs.owners import GpuOwners, OwnersDetail, ProcessRoles, RolesDetail
from gpunode.jobs.processes import JobProcesses
from gpunode.jobs.steps import TrainingSteps
from gpunode.nccl.log import NcclLogs
from gpunode.nccl.ras import NcclRas
from gpunode.node.datagram_socket import Datagram
from gpunode.node.node import Filesystem, KeptLines
from gpunode.source import Reading
from tests.holders.proc import Card, Proc
from tests.machine import exported
from tests.tenant import says_who


class Sensors(Card):
    """A GPU over whose NVLink as much moves as a test says; it has no other sensor."""

    nvlink = 0.0

    def activity(self) -> Activity:
        return Activity(2.0, {"graphics": 1.0, f"nvlink_{DIRECTIONS[0]}": self.nvlink})

    def __getattr__(self, call: str) -> Any:
        def unsupported(*_: Any) -> Any:
            raise Unsupported(f"{call}: not here")

        if call.startswith("_"):
            raise AttributeError(call)
        return unsupported


@pytest.fixture
def card() -> Sensors:
    """The GPU that process 7 holds."""
    card = Sensors()
    card.hold(7)
    return card


@pytest.fixture
def proc(tmp_path: Path, card: Sensors) -> Proc:
    """A node with that GPU."""
    return Proc(tmp_path, [card])


def peers(source: GpuActivity, proc: Proc) -> bool | None:
    """Whether a process has peers, after another window."""
    proc.clock.now += 1.9
    reading = source.read()
    assert reading is not None
    assert isinstance(reading.detail, WindowDetail)
    return reading.detail.peers


def test_what_moved_over_nvlink_was_the_predecessor_s(proc: Proc, card: Sensors) -> None:
    proc.run(7, "python3")
    source = GpuActivity(proc.census, proc.gpu, Settings())
    source.read()
    assert peers(source, proc) is False
    card.nvlink = 1e9
    assert peers(source, proc) is True
    card.nvlink = 0.0
    assert peers(source, proc) is True
    proc.run(7, "python3", start=1001)
    assert peers(source, proc) is False
    card.nvlink = 1e9
    proc.run(7, "python3", start=1002)
    assert peers(source, proc) is False  # it moved before this one came
    assert peers(source, proc) is True


def test_what_cannot_be_told_apart_has_moved_nothing(proc: Proc, card: Sensors) -> None:
    proc.run(7, "python3")
    proc.end(7)
    source = GpuActivity(proc.census, proc.gpu, Settings())
    source.read()
    card.nvlink = 1e9
    assert peers(source, proc) is False
    assert peers(source, proc) is False


def test_a_gpu_whose_processes_are_not_told_has_peers_while_data_moves(
    proc: Proc, card: Sensors
) -> None:
    card.processes = card.unknown  # type: ignore[method-assign]
    source = GpuActivity(proc.census, proc.gpu, Settings())
    source.read()
    assert peers(source, proc) is None
    card.nvlink = 1e9
    assert peers(source, proc) is True


def detail_of(reading: Reading | None) -> Any:
    assert reading is not None
    return reading.detail


def test_the_next_process_has_its_own_owner_and_role(proc: Proc) -> None:
    owners = GpuOwners(proc.census, proc.gpu, Settings(), Pods(proc.node, Settings()))
    roles = ProcessRoles(proc.census, proc.gpu, Settings())
    (proc.root / "etc").mkdir()
    (proc.root / "etc/passwd").write_text("ann:x:1000:1000::/:/\nbob:x:1001:1001::/:/\n")
    found = []
    for start, name in ((1000, "ann"), (1001, "bob")):
        proc.run(7, start=start, environment=f"RANK={start}", program=name)
        one, other = detail_of(owners.read()), detail_of(roles.read())
        assert isinstance(one, OwnersDetail)
        assert isinstance(other, RolesDetail)
        found += [(p.owner.user, p.rank) for p in one.processes] + [r.program for r in other.roles]
        proc.clock.now += 1
    assert found == [("ann", "1000"), "ann", ("bob", "1001"), "bob"]


def test_the_next_process_has_used_no_cpu(proc: Proc) -> None:
    source = JobProcesses(proc.census, proc.gpu, Settings())
    proc.run(7)
    source.read()
    proc.run(7, start=1001)
    proc.clock.now += 10
    reading = source.read()
    assert reading is not None
    assert [s.value for s in reading.samples if s.metric is processes.CPU_SECONDS] == [0.0]


LINE = "n:{}:1 [0] NCCL WARN failed\n"


def test_the_log_of_the_next_process_begins_at_its_beginning(proc: Proc, card: Sensors) -> None:
    source = NcclLogs(proc.census, proc.gpu, Settings())
    warnings = []
    for start, lines in ((1000, 3), (1001, 1), (1001, 2)):
        proc.run(7, start=start, environment="NCCL_DEBUG_FILE=/log")
        (proc.root / "proc/7/root").mkdir(exist_ok=True)
        says_who(proc.root / "proc/7")
        (proc.root / "proc/7/root/log").write_text(LINE.format(7) * lines)
        warnings += [sample.value for sample in source.read().samples]
        proc.clock.now += 1
    assert warnings == [3.0, 4.0, 5.0]
    proc.end(7)  # from here on it could be another each time
    assert source.read().samples == ()
    card.hold()
    assert source.read().samples == ()


def test_what_the_next_process_logs_while_a_log_is_read_is_its_own(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(*_: object) -> KeptLines:
        proc.run(7, start=1001)
        return KeptLines(["WARN"], 1)

    monkeypatch.setattr(proc.node, "lines", lines)
    proc.run(7, environment="NCCL_DEBUG_FILE=/log")
    assert NcclLogs(proc.census, proc.gpu, Settings()).read().samples == ()


def test_the_service_of_the_next_process_is_not_its_predecessor_s(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers while it is asked for the one before it."""
    asked = []

    def ask(pid: int, *_: str) -> str:
        asked.append(pid)
        proc.run(7, start=1000 + len(asked))
        return "garbled"

    monkeypatch.setattr(proc.node, "ask", ask)
    proc.run(7)
    source = NcclRas(proc.census, Settings())
    unanswered = 'gpunode_nccl_ras_unanswered{reason="garbled"} 1.0'
    assert unanswered not in exported(source.read().samples)
    assert asked == [7]


def test_the_next_process_does_not_report_as_its_predecessor(
    proc: Proc, card: Sensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[Datagram] = []

    def datagrams(_: str, known: Collection[int]) -> list[Datagram]:  # noqa: ARG001
        return [came.pop()] if came else []

    monkeypatch.setattr(proc.node, "datagrams", datagrams)
    source = TrainingSteps(proc.census, Settings(client=ClientSettings(socket="/s")))

    def results(start: float) -> set[str]:
        before = {s.labels: s.value for s in source.read().samples if s.labels == s.labels[:1]}
        came.append(Datagram(7, json.dumps({"v": VERSION, "tokens": 1}), start))
        return {
            sample.labels[0]
            for sample in source.read().samples
            if sample.labels == sample.labels[:1] and sample.value != before[sample.labels]
        }

    proc.run(7)
    assert results(1000) == {"accepted"}
    assert results(1001) == {"no_gpu"}
    proc.run(7, start=1001)
    proc.clock.now += 20
    assert results(1001) == {"no_gpu"}  # the driver may still list the one before
    card.hold()
    proc.clock.now += 20
    source.read()
    card.hold(7)
    proc.clock.now += 20
    assert results(1001) == {"accepted"}


def test_a_check_of_a_process_that_has_ended_is_not_one_of_the_next(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filesystem(_: str) -> Filesystem:
        proc.run(7, start=1001)
        return Filesystem(1.0, 1.0, 1.0)

    monkeypatch.setattr(proc.node, "filesystem", filesystem)
    proc.run(7)
    (found,) = [result for result in audit(proc.node) if result.check == "shm_size"]
    assert found.status == "unknown"
