"""What a source or finder raises: it is isolated, and logged once, so that the log stays short."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from gpunode.loop.door import MAX_LABEL, label_text
from gpunode.node.node import Clock, NotRecorded
from gpunode.source import FAILURES, Absent

log = logging.getLogger(__name__)

T = TypeVar("T")

LINES = 4
"""Lines in the log about one source that may follow each other at once: it fails and recovers
twice."""

MINUTE = 60.0
"""Seconds a line that are between more lines than that, on average."""

NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
"""What differs between two messages that say the same: an address, a process, a size."""


def isolated(ask: Callable[[], T]) -> T | BaseException:
    """The answer of a source or finder, or whatever it raised: it must harm no other.

    That includes what is no ``Exception``: a ``SystemExit``, which would end a thread without a
    word, or the panic of a library in Rust, as pydantic has one:
    https://docs.rs/pyo3/latest/pyo3/panic/struct.PanicException.html
    """
    try:
        return ask()
    except KeyboardInterrupt:  # of the user, in a replay
        raise
    except BaseException as error:  # noqa: BLE001 the one place where a source is isolated
        return error


def unrecorded(error: BaseException | None) -> bool:
    """Whether something failed because a tape lacks what was asked of it, which is no trouble."""
    if error is None or isinstance(error, NotRecorded):
        return error is not None
    return unrecorded(error.__cause__) or unrecorded(error.__context__)


def complain(where: str, what: str, error: BaseException) -> None:
    """Log a failure; a fault of ours with its traceback."""
    fault_of_ours = not isinstance(error, (Absent, *FAILURES))
    log.log(
        logging.ERROR if fault_of_ours else logging.WARNING,
        "%s: %s: %s",
        where,
        what,
        described(error),
        exc_info=error if fault_of_ours else None,
    )


def described(error: BaseException) -> str:
    """The error in one line that is fit for a log, whatever a file or a peer put into it."""
    text = " ".join(str(error)[:MAX_LABEL].split())
    return label_text(text if isinstance(error, Absent) else f"{type(error).__name__}: {text}")


class News:
    """Tells what is worth a line in the log: no repetition, and not more than a line a minute."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._last = ""
        self._times: deque[float] = deque(maxlen=LINES)

    def worth(self, text: str) -> bool:
        """Whether to say this now; empty if all is well. What was not said now may be later."""
        now, unnumbered = self.clock.monotonic(), NUMBER.sub("#", text)
        full = len(self._times) == LINES and now - self._times[0] < LINES * MINUTE
        if unnumbered == self._last or full:
            return False
        self._last = unnumbered
        self._times.append(now)
        return True
