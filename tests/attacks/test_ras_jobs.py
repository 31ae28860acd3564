"""Several jobs of a user share the address of NCCL's RAS service: which of them answered?"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.driver.driver import Identity
from gpunode.holders import owner as owners
from gpunode.holders.census import Census
from gpunode.nccl.ras import NcclRas, ServiceProcesses, _gpu_of
from gpunode.nccl.ras_answer import Rank
from gpunode.node.inside import ProcessReader
from tests.attacks.test_ras import Hire, SharedNode, Tenant, at, awaited, counted, gone_rank, hire
from tests.nccl.ras import page, status

__all__ = ["hire"]

LAST = 9
"""Reads after which all jobs have been heard."""


def jobs(hire: Hire, *sizes: int) -> list[list[Tenant]]:
    """Jobs of one user, of some processes each, all of which serve at one port."""
    first = hire(0)
    tenants = [first, *(hire(0, first.port) for _ in range(sum(sizes) - 1))]
    return [[tenants.pop(0) for _ in range(size)] for size in sizes]


def say(job: list[Tenant], launched: int, name: str, late: int = 0) -> None:
    """Have every process of a job answer for the whole of it, as NCCL does."""
    ranks = [
        at(each.pid, launched - (number and late), number=number) for number, each in enumerate(job)
    ]
    for each in job:
        each.says(status(ranks, name=name))


def lines(found: str, metric: str) -> set[str]:
    return {line.split()[-1] for line in found.splitlines() if line.startswith(metric)}


class Jobs:
    """A node with these jobs, read again and again."""

    def __init__(self, *jobs: list[Tenant]) -> None:
        self.node = SharedNode(*(tenant for job in jobs for tenant in job))
        self.source = NcclRas(Census(self.node), Settings())

    def read(self, times: int = 1) -> str:
        for _ in range(times):
            found = page(self.source)
            self.node.stepped.now += 10
        return found


def test_every_job_at_an_address_is_heard_and_counted_for_its_own_gpus(hire: Hire) -> None:
    one, two, three = jobs(hire, 2, 2, 1)
    node = Jobs(one, two, three)
    for launched in (100, 150):
        say(one, launched, "0xa")
        say(two, 10 * launched, "0xb")
        say(three, 7, "0xc")
        found = node.read(LAST)
    assert lines(found, "gpunode_nccl_communicators ") == {"3.0"}
    assert counted(found) == {"0": 50, "1": 50, "2": 500, "3": 500, "4": 0}
    for _ in range(5):  # whichever answers next, nothing of the others goes
        assert lines(node.read(), "gpunode_nccl_communicators ") == {"3.0"}


def test_a_stall_of_one_job_stays_told_while_others_answer(hire: Hire) -> None:
    one, two = jobs(hire, 2, 2)
    node = Jobs(one, two)
    say(one, 100, "0xa", late=1)
    say(two, 100, "0xb")
    node.read(LAST)
    for _ in range(5):
        found = node.read()
        assert lines(found, "gpunode_nccl_stalled_communicators ") == {"1.0"}
        assert awaited(found) == {"1"}
        assert f'pid="{one[1].pid}"' in found


def test_what_a_job_launched_goes_when_it_no_longer_answers(hire: Hire) -> None:
    one, two = jobs(hire, 2, 2)
    node = Jobs(one, two)
    say(one, 100, "0xa")
    say(two, 100, "0xb")
    assert set(counted(node.read(LAST))) == {"0", "1", "2", "3"}
    for each in two:
        each.says("garbage")
    assert set(counted(node.read(LAST))) == {"0", "1"}


def test_jobs_that_join_become_one_and_their_parts_two_again(hire: Hire) -> None:
    """As a trainer and a server that share a communicator to pass on weights."""
    one, two = jobs(hire, 2, 2)
    node = Jobs(one, two)
    for _ in range(2):
        say(one, 100, "0xa")
        say(two, 100, "0xb")
        assert lines(node.read(LAST), "gpunode_nccl_communicators ") == {"2.0"}
        say([*one, *two], 100, "0xc")
        assert lines(node.read(LAST), "gpunode_nccl_communicators ") == {"1.0"}
    assert set(counted(node.read())) == {"0", "1", "2", "3"}


def test_without_the_right_to_see_who_serves_the_answer_says_whose_it_is(
    hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessReader, "_held", lambda *_: None)
    one, two = jobs(hire, 2, 2)
    node = Jobs(one, two)
    for launched in (100, 150):
        say(one, launched, "0xa")
        say(two, 10 * launched, "0xb", late=0)
        node.read(3 * LAST)
    found = counted(node.read())
    assert {gpu: found[gpu] for gpu in found if gpu in "01"} in ({}, {"0": 50, "1": 50})
    assert {gpu: found[gpu] for gpu in found if gpu in "23"} in ({}, {"2": 500, "3": 500})
    assert found


TEXT = """SERVER PROTOCOL 2
OK
NCCL version 2.27.3 compiled with CUDA 12.9

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  {errors}
"""
LATE = """
#0-0 (0000000000000abc) MISMATCH
  Communicator ranks have different AllReduce operation counts
  1 ranks have launched up to operation 612
  Rank 1 has launched up to operation 611 -- GPU 1 managed by process {pid} on node 127.0.0.1
"""
AMBIGUOUS = 'gpunode_nccl_ras_unanswered{reason="ambiguous"} '


def text(job: list[Tenant], *, stalls: bool = False) -> None:
    answer = TEXT.format(errors="MISMATCH" if stalls else "OK")
    for each in job:
        each.says(answer + (LATE.format(pid=job[1].pid) if stalls else ""))


def test_a_text_of_as_many_processes_as_there_are_is_about_all_of_them(hire: Hire) -> None:
    (one,) = jobs(hire, 2)
    text(one, stalls=True)
    found = Jobs(one).read(2)
    assert AMBIGUOUS + "0.0" in found
    assert awaited(found) == {"1"}


def test_a_text_that_does_not_tell_its_job_is_counted_for_none(hire: Hire) -> None:
    one, two = jobs(hire, 2, 2)
    text(one)
    text(two)
    found = Jobs(one, two).read(LAST)
    assert AMBIGUOUS + "1.0" in found
    assert counted(found) == {}


class Logging(SharedNode):
    """Processes of which each has a log."""

    def environment(self, pid: int) -> dict[str, str]:
        return {**super().environment(pid), "NCCL_DEBUG_FILE": f"/tmp/ras-jobs-{pid}.log"}


def test_the_logs_tell_whose_communicator_a_text_names(hire: Hire) -> None:
    one, two = jobs(hire, 2, 2)
    logs = [Path(f"/tmp/ras-jobs-{each.pid}.log") for each in (*one, *two)]
    begin = "n:{}:1 [0] NCCL INFO f comm 0x1 rank 0 nranks 2 busId 60 commId 0x{} - Init START\n"
    try:
        names = ("abc", "abc", "def", "def")
        for path, each, name in zip(logs, (*one, *two), names, strict=True):
            path.write_text(begin.format(each.pid, name))
        text(one, stalls=True)
        text(two)
        node = Jobs(one, two)
        node.node = Logging(*one, *two)
        node.source = NcclRas(Census(node.node), Settings())
        found = [node.read() for _ in range(LAST)][-1]
    finally:
        for path in logs:
            path.unlink()
    assert awaited(found) == {"1"}
    assert re.search(r'collective="AllReduce",gpu="1"', found)
    assert not re.search(r'collective="AllReduce",gpu="[023]"', found)


@pytest.mark.parametrize(
    ("container", "held", "devices", "expected"),
    [
        ("", (0, 1, 2, 3), (0, 1, 2, 3), {0: 0, 1: 1, 2: 2, 3: 3}),
        ("c1", (4, 5, 6, 7), (0, 1, 2, 3), {0: 4, 1: 5, 2: 6, 3: 7}),
        ("c1", (2, 3, 4, 5), (0, 1, 2, 3), {0: 2, 1: 3, 2: 4, 3: 5}),
        ("c1", (2, 5), (1, 3), {1: 2, 3: 5}),
        ("c1", (6,), (0,), {0: 6}),
        # A process that holds more than it uses: only without a container is the number the node's.
        ("", (0, 2, 3), (2, 3), {2: 2, 3: 3}),
        ("c1", (0, 2, 3), (1, 2), {1: None, 2: None}),
        ("", (0, 1), (None, 1), {1: 1}),
    ],
)
def test_the_gpus_of_a_process_are_told_apart_also_in_a_container(
    container: str,
    held: tuple[int, ...],
    devices: tuple[int | None, ...],
    expected: dict[int, int | None],
) -> None:
    owner = owners.Tenant("1000", "", container, "", "")
    gpus = [Identity(index, f"GPU-{index}", "NVIDIA H200") for index in held]
    place = ServiceProcesses(gpus={9: gpus[::-1]})
    found = {
        device: _gpu_of(Rank(0, "h", 9, device), owner, place, set(devices)) for device in expected
    }
    assert {device: gpu and gpu.index for device, gpu in found.items()} == expected


@pytest.mark.parametrize("seed", range(3))
def test_whatever_processes_answers_name_the_source_stays_sound(hire: Hire, seed: int) -> None:
    """Jobs fall apart and join at every read, and name processes that are not theirs."""
    draw = random.Random(seed)
    (tenants,) = jobs(hire, 4)
    node = Jobs(tenants)
    for _ in range(15):
        for each in tenants:
            say_of = draw.sample(tenants, draw.randint(0, 4))
            ranks = [at(other.pid, 9, number=n) for n, other in enumerate(say_of)]
            each.says(draw.choice([status(ranks, [gone_rank(7)]), status(ranks), "garbage", TEXT]))
        try:
            node.read()
        except (OSError, ValueError):
            node.node.stepped.now += 10
        assert len(node.source._services) <= 8
        assert len(node.source._jobs) <= 4
