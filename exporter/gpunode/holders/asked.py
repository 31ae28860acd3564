"""Servers of processes that are asked at once, each in a thread that may never come back."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from gpunode.node.node import Clock

K = TypeVar("K")
A = TypeVar("A")

ANSWERS_TIMEOUT = 4.0
"""Seconds that a read waits for answers; later ones are taken at the next read. NCCL takes three if
a rank is gone."""


class AskedServers(Generic[K, A]):
    """What is asked now, and the answers that have not been taken yet."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now: set[K] = set()
        """Those that are asked and have not answered."""

        self._answers: SimpleQueue[tuple[K, A]] = SimpleQueue()

    def answers(
        self, following: Callable[[], K | None], look: Callable[[K, Callable[[A], None]], None]
    ) -> Iterator[tuple[K, A]]:
        """The answers as they come, also of those asked before.

        ``following`` names the next to ask, and ``look`` asks it and hands over what it found,
        whatever happens. Raises ``OSError`` where there is no thread to ask one.
        """
        begin = self.clock.monotonic()
        begun: set[K] = set()
        while True:
            while (key := following()) is not None:
                # A daemon that ends does not wait for it.
                thread = Thread(target=look, args=(key, self._taken(key)), daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # a limit on threads or memory
                    raise OSError(errno.EAGAIN, str(error)) from error
                begun.add(key)
                self.now.add(key)
            left = begin + ANSWERS_TIMEOUT - self.clock.monotonic() if begun & self.now else 0.0
            try:
                answer = self._answers.get(timeout=max(0.0, left))
            except Empty:
                return
            self.now.discard(answer[0])
            yield answer
            del answer  # it may be large, and the next is waited for

    def _taken(self, key: K) -> Callable[[A], None]:
        return lambda answer: self._answers.put((key, answer))
