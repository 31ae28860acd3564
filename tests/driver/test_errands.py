"""What is asked of a driver that may hang, each question in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from gpunode.driver.errands import Errands
from gpunode.threads import SpareThreads
from tests.conftest import until
from tests.daemon import TIMEOUT


def test_an_errand_for_which_there_is_no_thread_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpunode.driver.errands.SHARED", SpareThreads(kept=0))
    errands, done = Errands(TIMEOUT), list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert errands.run({"a GPU": lambda: done.append(1)}) == {"a GPU"}
    assert errands.run({"a GPU": lambda: done.append(2)}) == set()
    assert done == [2]


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_an_errand_that_hangs_is_begun_once_and_delays_no_other() -> None:
    errands, over, begun = Errands(0.01), threading.Event(), list[str]()

    def hang() -> None:
        begun.append("hangs")
        over.wait()

    for _ in range(3):
        assert "hangs" in errands.run({"hangs": hang})
    assert begun == ["hangs"]
    until(lambda: errands.run({"is well": lambda: begun.append("is well")}) == set())
    over.set()
    until(lambda: errands.idle)
    until(lambda: errands.run({"hangs": hang}) == set())
