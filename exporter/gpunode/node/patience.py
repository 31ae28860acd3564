"""Asks what may never answer, such as a file on a dead server, and gives up after a while.

A thread that waits for a file cannot be ended. So each question goes to a thread that has no other,
what is overdue is not asked again, and the number of such threads is bounded, also for each tenant.
Some of those that come back can be kept for the next questions: to hand one over takes 20 µs of
CPU, to start a thread for it 150 µs.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

WAIT = 0.5
"""Seconds to wait for an answer; a file on a busy server takes tens of milliseconds."""

LOOKS = 10
"""How often to look for it meanwhile: time in which this process stands still is one look."""

OF_A_TENANT = 2
"""The most overdue answers of a tenant; until one arrives, nothing of the tenant's is asked."""

OF_ALL = 32
"""The overdue answers of all tenants together from which on each has one at most."""

MOST = 256
"""The most overdue answers: a node has at most as many pods."""

IDLE = 20.0
"""Seconds after which a thread ends that has no question."""


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Question(Generic[T]):
    """A question and, once its thread is back, the answer or error."""

    ask: Callable[[], T]
    answers: list[T] = field(default_factory=list)
    error: Exception | None = None
    back: threading.Lock = field(default_factory=_held)
    """Held until then."""

    def perform(self) -> None:
        """Ask, in the thread that waits for the answer."""
        try:
            self.answers.append(self.ask())
        except Exception as error:  # noqa: BLE001 it is for who asked
            self.error = error

    @property
    def is_back(self) -> bool:
        """Whether it has been answered."""
        return bool(self.answers) or self.error is not None


class Patience:
    """What is overdue now, and a way to ask for the rest."""

    def __init__(self, wait: float | None = None, kept: int = 0) -> None:
        """``kept``: so many threads stay for the next questions, which then must not change them.

        Without any, each question has a thread of its own, which ends with it.
        """
        self._wait = wait
        self._kept = kept
        self._lock = threading.Lock()
        self._idle = 0
        self._next: SimpleQueue[Question[Any]] = SimpleQueue()
        """What the idle threads are to ask."""

        self._overdue: dict[Question[Any], tuple[str, str]] = {}

    def ask(self, tenant: str | Callable[[], str], what: str, answer: Callable[[], T]) -> T:
        """The answer from another thread.

        A function for the tenant is called only where that matters. Raises ``TimeoutError`` if the
        answer is overdue: the first time after ``WAIT``, then at once; and as ``answer`` does.
        """
        if self._overdue:
            self._check(tenant, what)
        question = Question(answer)
        self._begin(question, what)
        wait = WAIT if self._wait is None else self._wait
        if not any(question.back.acquire(timeout=wait / LOOKS) for _ in range(LOOKS)):
            owner = ""
            with suppress(OSError):
                owner = _name(tenant)
            with self._lock:
                if not question.is_back:
                    self._overdue[question] = owner, what
            if question in self._overdue:
                said = "%.200a: no answer within %g s, skipped until there is one"
                log.warning(said, what, wait)
                raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        error, question.error = question.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback has this frame
        return question.answers[0]

    def _begin(self, question: Question[Any], what: str) -> None:
        with self._lock:
            idle = self._idle > 0
            self._idle -= idle
        if idle:
            self._next.put(question)
            return
        name = "reader" if self._kept else "patience"
        thread = threading.Thread(target=self._work, args=(question,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on threads, such as the cgroup's pids.max
            raise OSError(errno.EAGAIN, "no thread can be started to read it", what) from error

    def _work(self, question: Question[Any]) -> None:
        while True:
            question.perform()
            with self._lock:
                self._overdue.pop(question, None)
                stays = self._idle < self._kept
                self._idle += stays
            question.back.release()
            del question  # its answer may be large
            while stays:
                try:
                    question = self._next.get(timeout=IDLE)
                    break
                except Empty:
                    with self._lock:  # of those that wait, as many as are not idle have a question
                        stays = self._idle == 0
                        self._idle -= not stays
            else:
                return

    def _check(self, tenant: str | Callable[[], str], what: str) -> None:
        with self._lock:
            threads, overdue = len(self._overdue), set(self._overdue.values())
        owned = Counter(owner for owner, _ in overdue)
        most = OF_A_TENANT if len(overdue) < OF_ALL else 1
        asked = {one for _, one in overdue}
        if threads < MOST and what not in asked and max(owned.values(), default=0) < most:
            return  # whoever it is
        owner = _name(tenant)
        if (owner, what) in overdue:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        if owned[owner] >= most:
            why = f"not asked, because {owned[owner]} other paths of its owner do not answer"
            raise TimeoutError(errno.ETIMEDOUT, why, what)
        if threads >= MOST:
            why = f"not asked, because {MOST} paths of others do not answer"
            raise TimeoutError(errno.ETIMEDOUT, why, what)


def _name(tenant: str | Callable[[], str]) -> str:
    return tenant if isinstance(tenant, str) else tenant()
