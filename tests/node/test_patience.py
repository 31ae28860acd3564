"""How long a file of a tenant is waited for, and in how many threads."""

from __future__ import annotations

import threading

import pytest

from gpunode.node import patience
from gpunode.node.patience import Patience
from tests.conftest import until
from tests.daemon import PATIENCE


def waiting() -> int:
    return sum(thread.name == "patience" for thread in threading.enumerate())


def test_each_tenant_has_a_few_threads_and_leaves_some_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, asked = threading.Event(), Patience()
    before = waiting()
    try:
        monkeypatch.setattr(patience, "WAIT", 0.01)
        for number in range(50):
            with pytest.raises(TimeoutError):
                asked.ask("greedy", f"/proc/{number}/root/x", over.wait)
        assert waiting() - before == patience.OF_A_TENANT
        monkeypatch.setattr(patience, "WAIT", PATIENCE)
        assert asked.ask("another", "/proc/1/root/y", lambda: 3) == 3
        monkeypatch.setattr(patience, "WAIT", 0.01)
        for number in range(100):
            with pytest.raises(TimeoutError):
                asked.ask(f"tenant {number}", f"/proc/{number}/root/x", over.wait)
        # Who has nothing overdue is asked, once, also where many others do not answer.
        assert waiting() - before == patience.OF_A_TENANT + 100
        for number in range(2):
            with pytest.raises(TimeoutError):
                asked.ask("tenant 50", f"/proc/{number}/root/another", over.wait)
        assert waiting() - before == patience.OF_A_TENANT + 100
    finally:
        over.set()
    until(lambda: waiting() == before)
    monkeypatch.setattr(patience, "WAIT", PATIENCE)
    assert asked.ask("greedy", "/proc/1/root/x", over.wait)
