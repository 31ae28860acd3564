"""What a look costs at most that a person asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest

from gpunode.config.daemon import Settings, StacksSettings
from gpunode.holders.owner import Owner, Started
from gpunode.jobs.owners import OwnersDetail
from gpunode.node.node import Node, SteppedClock
from gpunode.node.stacks import ProcessStacks, ThreadStack
from gpunode.source import DetailReading, Place, Readings
from gpunode.verdict.asking import (
    LOOK_INTERVAL,
    LOOK_TIMEOUT,
    MAX_PROCESSES,
    LookRefused,
    LooksOnDemand,
    ProcessStands,
)

D = TypeVar("D")


@dataclass
class Machine:
    """A node with some processes, which take a while to look at, and what is read of it."""

    processes: dict[Place, tuple[Started, ...]]
    takes: float = 0.0
    start: float = 50.0
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(0.0))

    def details(self, kind: type[D]) -> list[DetailReading[D]]:
        found = self.processes.items() if kind is OwnersDetail else ()
        return [DetailReading(at, 0.0, cast(Any, OwnersDetail(these))) for at, these in found]

    def program(self, pid: int) -> str:
        return f"train{pid}\x1b"

    def stacks(self, pid: int) -> ProcessStacks:
        self.clock.now += self.takes
        return ProcessStacks(pid, (ThreadStack(pid, "", "S", "futex_wait"),), 1)

    def read_text(self, path: str) -> str:
        number = path.split("/")[2]
        return f"{number} (train) S {'0 ' * 18}{self.start:.0f} {'0 ' * 30}"


def asking(machine: Machine) -> LooksOnDemand:
    return LooksOnDemand(cast(Node, machine), Settings(stacks=StacksSettings(code=True)))


def look(machine: Machine, gpu: str = "0") -> list[ProcessStands]:
    return list(asking(machine).look(gpu, cast(Readings, machine)))


def on_one_gpu(count: int, takes: float = 0.0, start: float = 50.0) -> Machine:
    processes = tuple(Started(pid, 50.0) for pid in range(1, count + 1))
    return Machine({Place("0", "GPU-a"): processes}, takes, start)


def test_one_looks_at_a_time_whatever_gpu_is_asked_for() -> None:
    one = asking(on_one_gpu(1))
    one.begin("0")
    with pytest.raises(LookRefused, match="for somebody else") as refused:
        one.begin("1")
    assert refused.value.wait > 0
    one.end()
    one.begin("1")
    (met,) = one.read(cast(Readings, None)).unread
    assert met.times == 1
    assert one.read(cast(Readings, None)).unread == ()


def test_a_gpu_is_left_alone_for_a_while() -> None:
    machine = on_one_gpu(1)
    one = asking(machine)
    one.begin("0")
    one.end()
    machine.clock.now = LOOK_INTERVAL - 3.5
    with pytest.raises(LookRefused, match="ask again in 4 s") as refused:
        one.begin("0")
    assert refused.value.wait == 4
    machine.clock.now = LOOK_INTERVAL
    one.begin("0")


def test_no_more_than_some_processes_are_looked_at() -> None:
    found = look(on_one_gpu(MAX_PROCESSES + 2))
    assert [one.stacks is not None for one in found] == [True] * MAX_PROCESSES + [False] * 2
    assert found[-1].why_not == f"no more than {MAX_PROCESSES} processes of a GPU are looked at"


def test_none_is_looked_at_once_the_others_took_long() -> None:
    found = look(on_one_gpu(3, takes=LOOK_TIMEOUT * 0.75))
    assert [one.why_not for one in found] == ["", "", "the others took too long"]


def test_a_process_that_took_the_number_of_another_is_not_told() -> None:
    (one,) = look(on_one_gpu(1, start=60.0))
    assert (one.stacks, one.why_not) == (None, "another process has its PID")


def test_instances_of_a_gpu_count_and_other_gpus_do_not() -> None:
    owner = Owner(owner_namespace="research", owner_pod="llama-0")
    of = {
        Place("0", "GPU-a"): (),
        Place("0", "MIG-b"): (Started(1, 50.0, owner, rank="13"),),
        Place("0", "MIG-c"): (Started(1, 50.0), Started(2, 50.0)),
        Place("10", "GPU-d"): (Started(3, 50.0),),
    }
    found = look(Machine(of))
    assert [one.pid for one in found] == [1, 2]
    assert (found[0].rank, found[0].program) == ("13", "train1\ufffd")
    assert "llama-0" in found[0].owner
    assert found[0].reason == "lock"
