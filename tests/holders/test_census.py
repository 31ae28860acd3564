"""One look at the processes on a GPU for all that ask: who takes it, and whom it serves."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gpunode.driver.driver import DriverError, Process
from gpunode.driver.errands import DRIVER_TIMEOUT
from gpunode.holders import census
from gpunode.holders.census import FORGOTTEN, FRESH
from gpunode.holders.holder import (
    LAUNCHED_LAST,
    ROLE_FIRST,
    THREADS_FIRST,
    THREADS_LAST,
    Holder,
)
from gpunode.source import MAX_ITEMS
from tests.holders.proc import Card, Proc
from tests.machine import begin, stat


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A node with a GPU that process 7 holds."""
    proc = Proc(tmp_path)
    proc.run(7, "python3")
    proc.cards[0].hold(7)
    return proc


def test_a_look_serves_others_for_a_while(proc: Proc) -> None:
    holder = proc.holder()
    proc.clock.now += FRESH / 2
    assert proc.holder() is holder
    assert proc.cards[0].asked == 1
    proc.clock.now += FRESH / 2
    assert proc.holder() is holder
    assert proc.cards[0].asked == 2
    proc.holders(within=0.0)
    assert proc.cards[0].asked == 3


def test_a_process_that_ends_leaves_the_look_at_once(proc: Proc) -> None:
    proc.holder()
    proc.end(7)
    proc.cards[0].hold()
    assert proc.holders() == ()


def test_a_pid_that_is_used_again_is_another_process(proc: Proc) -> None:
    proc.run(7, environment="RANK=1", start=1000)
    before = proc.holder()
    assert before.environment() == {"RANK": "1"}
    proc.run(7, environment="RANK=2", start=1001)
    after = proc.holder()
    assert after is not before
    assert (after.start, after.environment()) == (1001, {"RANK": "2"})


def test_what_is_asked_about_an_ended_process_is_not_answered_by_the_next_with_its_pid(
    proc: Proc,
) -> None:
    holder = proc.holder()
    proc.run(7, "pt_nccl_watchdg", start=1001, environment="WORLD_SIZE=8", program="serve")
    for ask in (holder.environment, holder.cgroup, holder.users, holder.own_pid):
        with pytest.raises(ProcessLookupError):
            ask()
    assert holder.peers() is None
    assert (holder.role().program, holder.role().trains) == ("", None)


def test_a_process_whose_start_cannot_be_read_is_looked_at_each_time(proc: Proc) -> None:
    proc.run(7, environment="RANK=1")
    proc.end(7)
    before = proc.holder()
    assert before.start is None
    assert before.environment() == {"RANK": "1"}
    (proc.root / "proc/7/environ").write_text("RANK=2")
    after = proc.holder()
    assert after is not before
    assert after.environment() == {"RANK": "2"}
    assert proc.cards[0].asked == 2


def test_a_pid_that_the_driver_has_listed_since_before_is_not_certain(proc: Proc) -> None:
    """It may list a process that has ended, while another has its PID."""

    def certain() -> list[float | None]:
        ((_, look),) = proc.census.everywhere()
        return [holder.start for holder in look.certain]

    assert certain() == [1000]
    proc.end(7)
    assert certain() == []
    proc.run(7, start=1001)
    assert certain() == []
    proc.cards[0].hold()
    proc.clock.now += FRESH
    assert certain() == []
    proc.cards[0].hold(7)
    proc.clock.now += FRESH
    assert certain() == [1001]


def test_a_process_on_several_gpus_is_looked_at_once(tmp_path: Path) -> None:
    proc = Proc(tmp_path, [Card(0), Card(1)])
    proc.run(7)
    for card in proc.cards:
        card.hold(7)
    (_, one), (_, other) = proc.census.everywhere()
    assert one.holders == other.holders


def test_a_process_is_one_holder_whatever_contexts_it_has(proc: Proc) -> None:
    kinds = Process(7, 1.0, "compute"), Process(7, 1.0, "graphics"), Process(8, 1.0, "graphics")
    proc.run(8)
    proc.cards[0].running = list(kinds)
    look = proc.census.look(proc.gpu)
    assert look is not None
    assert [holder.pid for holder in look.holders] == [7, 8]
    assert [holder.pid for holder in look.computing] == [7]
    assert look.processes == kinds


def test_of_many_processes_all_are_in_the_look(proc: Proc) -> None:
    pids = range(100, 100 + 3 * MAX_ITEMS)
    for pid in pids:
        proc.run(pid)
    proc.cards[0].hold(*pids)
    assert [holder.pid for holder in proc.holders()] == list(pids)


def test_a_gpu_that_fails_has_no_look_and_another_has(tmp_path: Path) -> None:
    proc = Proc(tmp_path, [Card(0), Card(1)])
    proc.cards[0].fails = True
    with pytest.raises(DriverError):
        proc.holders()
    assert [gpu.identity.index for gpu, _ in proc.census.everywhere()] == [1]


def test_a_gpu_that_hangs_keeps_nobody_from_the_others_and_one_thread(tmp_path: Path) -> None:
    proc = Proc(tmp_path, [Card(0), Card(1)])
    hangs, works = proc.cards
    proc.run(7)
    works.hold(7)
    hangs.answers.clear()
    threading.Thread(target=proc.holders, daemon=True).start()  # its own source
    begin = time.monotonic()
    try:
        for _ in range(3):
            found = proc.census.everywhere(within=0.0)
            assert [gpu.identity.index for gpu, _ in found] == [1]
            assert [holder.pid for holder in found[0][1].holders] == [7]
        # It is waited for once.
        assert time.monotonic() - begin < 2 * DRIVER_TIMEOUT
        assert hangs.asked == 2
    finally:
        hangs.answers.set()


def test_a_late_look_does_not_replace_a_later_one(proc: Proc) -> None:
    card = proc.cards[0]
    card.answers.clear()
    late = threading.Thread(target=proc.holders)
    late.start()
    while not card.asked:
        time.sleep(0.001)
    begun, card.asked = proc.clock.now, 0
    proc.clock.now += 1
    waits = card.answers
    card.answers = threading.Event()
    card.answers.set()
    proc.run(8)
    card.hold(7, 8)
    assert len(proc.holders()) == 2
    card.hold(7)
    waits.set()
    late.join()
    assert begun < proc.clock.now
    assert len(proc.holders()) == 2
    assert card.asked == 1


def test_threads_that_look_at_a_time_know_the_same_processes(proc: Proc) -> None:
    pids = range(100, 150)
    for pid in pids:
        proc.run(pid)
    proc.cards[0].hold(*pids)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.extend(proc.holders(within=0.0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 * len(pids)
    assert len(set(found)) == len(pids)


def test_what_is_gone_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    class Counted(Holder):
        def __init__(self, *given: object) -> None:
            nonlocal made
            made += 1
            super().__init__(*given)  # type: ignore[arg-type]

        def __del__(self) -> None:
            nonlocal made
            made -= 1

    monkeypatch.setattr(census, "Holder", Counted)
    proc = Proc(tmp_path, [Card(0), Card(1)])
    for pid in range(100, 120):
        proc.run(pid)
        proc.cards[0].hold(pid)
        proc.clock.now += FRESH
        proc.holders()
    assert made == 1
    proc.clock.now += FORGOTTEN
    proc.census.look(proc.cards[1])  # type: ignore[arg-type]
    assert made == 0


def test_a_process_that_listens_later_is_seen_to(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens = False
    monkeypatch.setattr(proc.node, "listens", lambda _: listens)
    assert proc.holder().role().listens is False
    listens, pause, looks = True, ROLE_FIRST, 0
    assert proc.holder().role().listens is False
    proc.clock.now += pause
    assert proc.holder().role().listens is True
    for _ in range(600):
        listens = not listens
        proc.clock.now += 1
        looks += proc.holder().role().listens is listens
    assert 0 < looks < 600


def test_a_parent_that_ends_while_it_is_looked_at_has_no_name(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its PID may be another's before its program is read."""

    def program(pid: int) -> str:
        if ends:
            begin(proc.root, 7, parent=1)
        return f"program {pid}"

    monkeypatch.setattr(proc.node, "program", program)
    begin(proc.root, 7, parent=5)
    ends = False
    assert proc.holder().role().parent == "program 5"
    begin(proc.root, 7, start=1001, parent=5)
    ends = True
    assert proc.holder().role().parent == ""


def test_a_daemon_of_mpi_is_not_what_started_a_process(proc: Proc) -> None:
    for pid, program, parent in ((5, "trtllm-serve", 1), (6, "/usr/bin/orted", 5), (7, "app", 6)):
        proc.run(pid, program=program)
        begin(proc.root, pid, parent=parent)
    assert proc.holder().role().parent == "trtllm-serve"


def test_the_names_of_threads_are_read_once_for_all_that_they_tell(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def names(*_: object) -> set[str]:
        nonlocal read
        read += 1
        return {"python3", "pt_autograd_0"} if read > 2 else {"python3"}

    monkeypatch.setattr("gpunode.holders.holder.thread_names", names)
    for _ in range(3):
        holder = proc.holder()
        assert holder.peers() is False
        assert holder.role().trains is (read > 2)
        proc.clock.now += THREADS_LAST
    assert read == 3


def test_what_the_threads_have_told_is_asked_no_more(proc: Proc) -> None:
    proc.run(7, "python3", "pt_nccl_watchdg", "pt_autograd_0")
    assert proc.holder().peers() is True
    assert proc.holder().role().trains is True
    proc.run(7, "a", "b", "c")
    proc.clock.now += THREADS_LAST
    assert proc.holder().peers() is True
    assert proc.holder().role().trains is True


def test_ranks_that_exchange_over_cpus_are_known_by_their_threads(proc: Proc) -> None:
    proc.run(7, "python3", "gloo_tcp_loop", "pt_gloo_runloop")
    assert proc.holder().role().exchanges is True
    assert proc.holder().peers() is False


def test_a_process_is_looked_at_less_and_less_until_it_has_peers(proc: Proc) -> None:
    pause = THREADS_FIRST
    assert proc.holder().peers() is False
    while pause < THREADS_LAST:
        proc.clock.now += pause
        assert proc.holder().peers() is False
        pause = min(THREADS_LAST, 2 * pause)
    proc.run(7, "python3", "pt_nccl_watchdg")
    proc.clock.now += THREADS_LAST - 1
    assert proc.holder().peers() is False
    proc.clock.now += 1
    assert proc.holder().peers() is True


@pytest.mark.parametrize(
    ("thread", "peers"),
    [
        ("pt_nccl_watchdg", True),
        ("NCCL Service 0", True),
        ("pt_nccl_heartbt", True),
        ("pt_autograd_0", False),
        ("cuda-EvtHandlr", False),
    ],
)
def test_a_communicator_shows_in_the_names_of_threads(proc: Proc, thread: str, peers: bool) -> None:
    proc.run(7, "python3", thread)
    assert proc.holder().peers() is peers


LAUNCHED = ("WORLD_SIZE=8", "OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=4")


def seen_processes(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, **signs: bool | OSError
) -> list[str]:
    """Let the node answer whether a process has these signs; the questions that it was asked."""
    asked = []

    def answer(sign: str) -> bool:
        asked.append(sign)
        found = signs[sign]
        if isinstance(found, OSError):
            raise found
        return found

    for sign in ("communicates", "shares_memory"):
        monkeypatch.setattr(proc.node, sign, lambda _, sign=sign: answer(sign))
    return asked


@pytest.mark.parametrize("environment", ["WORLD_SIZE=1", "PMI_SIZE=1"])
def test_a_communicator_of_one_has_no_peer(proc: Proc, environment: str) -> None:
    proc.run(7, "python3", "pt_nccl_watchdg", environment=f"HOME=/root\0{environment}\0")
    assert proc.holder().peers() is False


@pytest.mark.parametrize(("parent", "peers"), [("python3", True), ("bash", False)])
def test_what_a_single_rank_has_spawned_on_other_gpus_has_peers(
    tmp_path: Path, parent: str, peers: bool
) -> None:
    """An operator says how many pods there are; a shell starts ranks of one that are alone."""
    proc = Proc(tmp_path, [Card(0), Card(1)])
    begin(tmp_path, 5)
    (tmp_path / "proc/5/stat").write_text(stat(5).replace("python3", parent))
    for pid, card in zip((7, 8), proc.cards, strict=True):
        proc.run(pid, "python3", "pt_nccl_watchdg", environment="WORLD_SIZE=1")
        begin(tmp_path, pid, parent=5)
        card.hold(pid)
    looks = [proc.census.look(card) for card in proc.cards]  # type: ignore[arg-type]
    found = [holder.peers() for look in looks if look is not None for holder in look.holders]
    assert found == [peers, peers]


@pytest.mark.parametrize("environment", LAUNCHED)
def test_a_launcher_alone_is_no_evidence_of_peers(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    seen_processes(proc, monkeypatch, communicates=False, shares_memory=False)
    proc.run(7, "python3", environment=f"HOME=/root\0{environment}\0")
    assert proc.holder().peers() is False


@pytest.mark.parametrize("sign", ["communicates", "shares_memory"])
def test_a_launched_process_has_peers_by_its_socket_or_memory(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    signs = {"communicates": False, "shares_memory": False, sign: True}
    seen_processes(proc, monkeypatch, **signs)
    proc.run(7, "app", environment="WORLD_SIZE=8\0")
    assert proc.holder().peers() is True


def test_without_a_launcher_a_socket_tells_and_memory_is_not_looked_at(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = seen_processes(proc, monkeypatch, communicates=False, shares_memory=True)
    assert proc.holder().peers() is False
    assert asked == ["communicates"]
    seen_processes(proc, monkeypatch, communicates=True, shares_memory=True)
    proc.clock.now += THREADS_LAST
    assert proc.holder().peers() is True


@pytest.mark.parametrize(
    ("environment", "memory", "peers"),
    [
        ("WORLD_SIZE=8", PermissionError(), None),
        ("WORLD_SIZE=8", False, None),
        ("WORLD_SIZE=8", True, True),
        ("WORLD_SIZE=many", PermissionError(), False),
        ("", PermissionError(), False),
    ],
)
def test_what_may_not_be_looked_at_is_unknown_only_where_others_were_launched(
    proc: Proc,
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    memory: bool | OSError,
    peers: bool | None,
) -> None:
    seen_processes(proc, monkeypatch, communicates=PermissionError(), shares_memory=memory)
    proc.run(7, "python3", environment=environment)
    assert proc.holder().peers() is peers


def test_a_communicator_that_a_launched_process_makes_later_is_seen_soon(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = seen_processes(proc, monkeypatch, communicates=False, shares_memory=False)
    proc.run(7, "app", environment="WORLD_SIZE=8\0")
    for _ in range(600):
        assert proc.holder().peers() is False
        proc.clock.now += 1
    assert asked.count("communicates") <= 600 / LAUNCHED_LAST + 3
    assert asked.count("shares_memory") <= 600 / THREADS_LAST + 6
    seen_processes(proc, monkeypatch, communicates=True, shares_memory=False)
    proc.clock.now += LAUNCHED_LAST
    assert proc.holder().peers() is True
    seen_processes(proc, monkeypatch, communicates=False, shares_memory=False)
    proc.clock.now += THREADS_LAST
    assert proc.holder().peers() is True
