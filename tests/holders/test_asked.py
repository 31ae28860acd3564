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
    found = asked.answers(lambda: waiting.pop(0) if waiting else None, look)
    assert next(found) == ("fast", 4)
    found.close()
    assert asked.now == {"slow"}
    ever.set()
    later: list[tuple[str, int]] = []
    until(lambda: later.extend(asked.answers(lambda: None, look)) or later)
    assert later == [("slow", 4)]
    assert sorted(begun) == ["fast", "slow"]
    assert not asked.now
