"""How long a file of a tenant is waited for, and in how many threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

import pytest

from gpunode import threads
from gpunode.node import patience
from gpunode.node.patience import Patience
from gpunode.threads import SpareThreads
from tests.conftest import until
from tests.daemon import TIMEOUT


def waiting() -> int:
    return sum(thread.name == "patience" for thread in threading.enumerate())


def test_each_tenant_has_a_few_threads_and_leaves_some_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, asked = threading.Event(), Patience()
    before = waiting()
    try:
        monkeypatch.setattr(patience, "TIMEOUT", 0.01)
        for number in range(50):
            with pytest.raises(TimeoutError):
                asked.ask("greedy", f"/proc/{number}/root/x", over.wait)
        assert waiting() - before == patience.PER_TENANT
        monkeypatch.setattr(patience, "TIMEOUT", TIMEOUT)
        assert asked.ask("another", "/proc/1/root/z", lambda: 3) == 3
        monkeypatch.setattr(patience, "TIMEOUT", 0.01)
        for number in range(100):
            with pytest.raises(TimeoutError):
                asked.ask(f"tenant {number}", f"/proc/{number}/root/y", over.wait)
        # Who has nothing overdue is asked, once, also where many others do not answer.
        assert waiting() - before == patience.PER_TENANT + 100
        for number in range(2):
            with pytest.raises(TimeoutError):
                asked.ask("tenant 50", f"/proc/{number}/root/another", over.wait)
        assert waiting() - before == patience.PER_TENANT + 100
    finally:
        over.set()
    until(lambda: waiting() == before)
    monkeypatch.setattr(patience, "TIMEOUT", TIMEOUT)
    assert asked.ask("greedy", "/proc/1/root/x", over.wait)


def test_a_thread_that_comes_back_asks_the_next_where_it_is_kept() -> None:
    alone, kept = Patience(TIMEOUT), Patience(TIMEOUT, SpareThreads(2))
    assert len({alone.ask("", "x", threading.current_thread) for _ in range(9)}) == 9
    assert len({kept.ask("", "x", threading.current_thread) for _ in range(9)}) == 1


def test_what_is_being_asked_is_asked_by_the_others_when_it_is_back_and_else_by_nobody() -> None:
    over, asked, found = threading.Event(), Patience(0.3), list[object]()
    begun = list[threading.Thread]()

    def answer() -> bool:
        begun.append(threading.current_thread())
        return over.wait()

    def ask() -> None:
        try:
            found.append(asked.ask("", "x", answer))
        except OSError as error:
            found.append(type(error))

    for _ in range(2):
        asks = [threading.Thread(target=ask) for _ in range(9)]
        for each in asks:
            each.start()
        for each in asks:
            each.join()
        assert len(begun) in (1, 10)
        over.set()
        begun[0].join()
    assert found == [TimeoutError] * 9 + [True] * 9


def test_no_more_threads_are_kept_than_there_may_be() -> None:
    over, asked, seen = (
        threading.Event(),
        Patience(TIMEOUT, SpareThreads(2)),
        list[threading.Thread](),
    )

    def answer() -> bool:
        seen.append(threading.current_thread())
        return over.wait()

    asks = [threading.Thread(target=asked.ask, args=("", f"{n}", answer)) for n in range(9)]
    for each in asks:
        each.start()
    until(lambda: len(seen) == 9)
    over.set()
    for each in asks:
        each.join()
    until(lambda: sum(thread.is_alive() for thread in seen) == 2)


def test_idle_threads_end_and_the_next_question_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Patience(TIMEOUT, SpareThreads(2))
    monkeypatch.setattr(threads, "IDLE", 0.01)
    for number in range(20):
        thread = asked.ask("", "x", threading.current_thread)
        time.sleep(0.001 * number)
    until(lambda: not thread.is_alive())
    assert asked.ask("", "x", threading.current_thread) is not thread


def test_a_thread_that_comes_back_late_is_kept_and_its_question_may_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, seen = threading.Event(), list[threading.Thread]()
    asked = Patience(0.01, SpareThreads(2))

    def answer() -> bool:
        seen.append(threading.current_thread())
        return over.wait()

    for _ in range(2):
        with pytest.raises(TimeoutError):
            asked.ask("", "x", answer)
    over.set()
    until(lambda: not asked._overdue)
    monkeypatch.setattr(asked, "_wait", TIMEOUT)
    assert [asked.ask("", "x", threading.current_thread)] == seen


def test_whose_it_is_is_asked_only_where_that_matters() -> None:
    asked, over, whose = Patience(0.01), threading.Event(), list[str]()

    def tenant() -> str:
        whose.append("greedy")
        return whose[-1]

    try:
        assert asked.ask(tenant, "x", lambda: 3) == 3
        assert not whose
        for number in range(patience.PER_TENANT + 1):
            with pytest.raises(TimeoutError):
                asked.ask(tenant, f"{number}", over.wait)
        assert len(whose) == patience.PER_TENANT + 1
    finally:
        over.set()


def test_what_goes_wrong_is_for_who_asked() -> None:
    asked = Patience(TIMEOUT, SpareThreads(1))
    for _ in range(2):
        with pytest.raises(ValueError, match="nonsense"):
            asked.ask("", "x", lambda: int("nonsense"))


def test_a_fault_of_ours_ends_its_thread_and_the_next_question_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: SimpleQueue[type[BaseException]] = SimpleQueue()
    monkeypatch.setattr("threading.excepthook", lambda of: ended.put(of.exc_type))
    asked = Patience(TIMEOUT, SpareThreads(1))
    with pytest.raises(OSError, match="has ended"):
        asked.ask("", "x", lambda: 1 // 0)
    assert ended.get(timeout=10) is ZeroDivisionError
    assert asked.ask("", "x", lambda: "here") == "here"


ANSWERS_AFTER_HALF_A_SECOND = """
import time
from gpunode.node.patience import Patience
from gpunode.threads import SpareThreads
def answer():
    for _ in range(10):
        time.sleep(0.05)
    return "here"
print("begins", flush=True)
print(Patience(2.0).ask("", "x", answer), flush=True)
"""


def test_time_in_which_the_daemon_stands_still_is_not_waited_for() -> None:
    command = [sys.executable, "-c", ANSWERS_AFTER_HALF_A_SECOND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        child.send_signal(signal.SIGCONT)
        assert child.stdout.readline() == "here\n"
