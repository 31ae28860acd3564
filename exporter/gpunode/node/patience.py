"""Asks what may never answer, such as a file on a dead server, and gives up after a while.

A thread that waits for a file cannot be ended. So each question has a thread of its own, what is
overdue is not asked again, and the number of such threads is bounded, also for each tenant.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from gpunode.node.node import NoDescriptors

log = logging.getLogger(__name__)

T = TypeVar("T")

WAIT = 0.5
"""Seconds to wait for an answer; a file on a busy server takes tens of milliseconds."""

OF_A_TENANT = 2
"""The most overdue answers of a tenant; until one arrives, nothing of the tenant's is asked."""

OF_ALL = 32
"""The overdue answers of all tenants together from which on each has one at most."""

MOST = 256
"""The most overdue answers: a node has at most as many pods."""


class Patience:
    """What is overdue now, and a way to ask for the rest."""

    def __init__(self, wait: float | None = None) -> None:
        self._wait = wait
        self._lock = threading.Lock()
        self._overdue: dict[threading.Thread, tuple[str, str]] = {}

    def ask(self, tenant: str, what: str, answer: Callable[[], T]) -> T:
        """The answer from another thread, which ends with it.

        Raises ``TimeoutError`` if it is overdue: the first time after ``WAIT``, then at once; and
        ``OSError`` as ``answer`` does.
        """
        self._check(tenant, what)
        found: list[T | OSError | NoDescriptors] = []

        def work() -> None:
            try:
                found.append(answer())
            except (OSError, NoDescriptors) as error:
                found.append(error)

        thread = threading.Thread(target=work, name="patience", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on threads, such as the cgroup's pids.max
            raise OSError(errno.EAGAIN, "no thread can be started to read it", what) from error
        wait = WAIT if self._wait is None else self._wait
        thread.join(wait)
        if thread.is_alive():
            with self._lock:
                self._overdue[thread] = tenant, what
            said = "%.200a: no answer within %g s, skipped until there is one"
            log.warning(said, what, wait)
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        if isinstance(found[0], (OSError, NoDescriptors)):
            raise found[0]
        return found[0]

    def _check(self, tenant: str, what: str) -> None:
        with self._lock:
            self._overdue = {t: of for t, of in self._overdue.items() if t.is_alive()}
            overdue = list(self._overdue.values())
        if (tenant, what) in overdue:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", what)
        own = sum(of == tenant for of, _ in overdue)
        if own >= (OF_A_TENANT if len(overdue) < OF_ALL else 1):
            why = f"not asked, because {own} other paths of its owner do not answer"
            raise TimeoutError(errno.ETIMEDOUT, why, what)
        if len(overdue) >= MOST:
            why = f"not asked, because {MOST} paths of others do not answer"
            raise TimeoutError(errno.ETIMEDOUT, why, what)
