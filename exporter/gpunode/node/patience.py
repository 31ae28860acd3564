"""Asks what may never answer, such as a file on a dead server, and gives up after a while.

A thread that waits for a file cannot be ended. So each question goes to a thread that has no other,
nothing is asked twice at a time, and the number of such threads is bounded, also for each tenant.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from gpunode.node.node import NoDescriptors
from gpunode.threads import SpareThreads, Tell, charge, used

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT = 0.5
"""Seconds to wait for an answer; a file on a busy server takes tens of milliseconds."""

POLLS = 10
"""How often to look for it meanwhile: time in which this process stands still is one look."""

PER_TENANT = 2
"""The most overdue answers of a tenant; until one arrives, nothing of the tenant's is asked."""

CROWDED = 32
"""The overdue answers of all tenants together from which on each has one at most."""

MAX_OVERDUE = 256
"""The most overdue answers: a node has at most as many pods."""


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Question(Generic[T]):
    """A question and, once its thread is back, the answer or error."""

    what: str
    ask: Callable[[], T]
    answers: list[T] = field(default_factory=list)
    error: OSError | ValueError | NoDescriptors | None = None
    cpu: float = 0.0
    """Seconds that its thread has used."""

    back: threading.Lock = field(default_factory=_held_lock)
    """Held until then."""

    def perform(self) -> None:
        """Ask, in the thread that waits for the answer."""
        begin = used()
        try:
            self.answers.append(self.ask())
        except (OSError, ValueError, NoDescriptors) as error:
            self.error = error
        self.cpu = used() - begin

    def is_back_within(self, seconds: float) -> bool:
        """Wait for the answer, at most so long."""
        for _ in range(POLLS):
            if self.back.acquire(timeout=seconds / POLLS):
                self.back.release()
                return True
        return False


class Patience:
    """What is overdue now, and a way to ask for the rest."""

    def __init__(self, wait: float | None = None, threads: SpareThreads | None = None) -> None:
        """``threads`` stay for the next questions, which then must not change them.

        Without them, each question has a thread of its own, which ends with it.
        """
        self._wait = wait
        self._threads = threads or SpareThreads(kept=0)
        self._lock = threading.Lock()
        self._asked: dict[str, Question[Any]] = {}
        """What is not back, overdue or not: nothing is asked twice at a time."""

        self._overdue: dict[str, str] = {}
        """Whose it is."""

    def ask(self, tenant: str | Callable[[], str], what: str, answer: Callable[[], T]) -> T:
        """The answer from another thread.

        A function for the tenant is called only where that matters. Raises ``TimeoutError`` if the
        answer is overdue: the first time after ``TIMEOUT``, then at once; and as ``answer`` does.
        """
        wait = TIMEOUT if self._wait is None else self._wait
        question = Question(what, answer)
        while (another := self._begin(tenant, question)) is not None:
            if not another.is_back_within(wait):
                raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        if not question.is_back_within(wait) and self._is_overdue(tenant, question):
            said = "%.200a: no answer within %g s, skipped until there is one"
            log.warning(said, what, wait)
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        charge(question.cpu)
        error, question.error = question.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback has this frame
        if not question.answers:  # a fault of ours, whose traceback its thread has printed
            raise OSError(errno.EIO, "the thread that read it has ended", what)
        return question.answers[0]

    def _begin(self, tenant: str | Callable[[], str], question: Question[T]) -> Question[T] | None:
        """Have a question asked, unless another of the same name is: that, then."""
        if self._overdue:
            self._check(tenant, question.what)
        with self._lock:
            another = self._asked.setdefault(question.what, question)
            if another is not question:
                return another
        try:
            self._threads.begin(partial(self._perform, question), "patience")
        except RuntimeError as error:  # a limit on threads, such as the cgroup's pids.max
            with self._lock:
                del self._asked[question.what]
            question.back.release()
            why = "no thread can be started to read it"
            raise OSError(errno.EAGAIN, why, question.what) from error
        return None

    def _is_overdue(self, tenant: str | Callable[[], str], question: Question[T]) -> bool:
        """Whether it is still not back, and counts for its tenant from now on."""
        owner = ""
        with suppress(OSError):
            owner = _name(tenant)
        with self._lock:
            late = self._asked.get(question.what) is question
            if late:
                self._overdue[question.what] = owner
        return late

    def _perform(self, question: Question[Any]) -> Tell:
        is_well = False
        try:
            question.perform()
            is_well = True
        finally:
            with self._lock:
                del self._asked[question.what]
                self._overdue.pop(question.what, None)
            if not is_well:  # its thread ends
                question.back.release()
        return question.back.release

    def _check(self, tenant: str | Callable[[], str], what: str) -> None:
        with self._lock:
            overdue = dict(self._overdue)
        if what in overdue:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        owned = Counter(overdue.values())
        most = PER_TENANT if len(overdue) < CROWDED else 1
        if len(overdue) < MAX_OVERDUE and max(owned.values(), default=0) < most:
            return  # whoever it is
        owner = _name(tenant)
        if owned[owner] >= most:
            why = f"not asked, because {owned[owner]} other paths of its owner do not answer"
            raise TimeoutError(errno.ETIMEDOUT, why, what)
        if len(overdue) >= MAX_OVERDUE:
            why = f"not asked, because {MAX_OVERDUE} paths of others do not answer"
            raise TimeoutError(errno.ETIMEDOUT, why, what)


def _name(tenant: str | Callable[[], str]) -> str:
    return tenant if isinstance(tenant, str) else tenant()
