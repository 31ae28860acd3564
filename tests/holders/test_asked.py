"""Servers are asked in threads, so many at a time as who asks allows."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpunode.holders.asked import AskedServers
from gpunode.node.local import SystemClock
from tests.conftest import until


def test_what_does_not_answer_is_taken_at_a_later_read_and_not_asked_twice() -> None:
    asked: AskedServers[str, int] = AskedServers(SystemClock())
    ever, begun = threading.Event(), list[str]()

    def look(key: str, say: Callable[[int], None]) -> None:
        begun.append(key)
        if key == "slow":
            ever.wait()
        say(len(key))

    waiting = ["slow", "fast"]
    assert next(asked.answers(lambda: waiting.pop(0) if waiting else None, look)) == ("fast", 4)
    assert asked.now == {"slow"}
    ever.set()
    assert until(lambda: list(asked.answers(lambda: None, look))) == [("slow", 4)]
    assert sorted(begun) == ["fast", "slow"]
    assert not asked.now
