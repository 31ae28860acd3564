"""One finder: it looks at intervals for the sources that there are."""

from __future__ import annotations

import logging
import math
import threading

from gpunode.loop import complaints
from gpunode.loop.complaints import News, described, isolated, unrecorded
from gpunode.loop.door import label_text
from gpunode.loop.watch import OVERDUE
from gpunode.node.node import Clock
from gpunode.source import Finder, Place, Source

log = logging.getLogger(__name__)


class Search:
    """One finder, and what it found last or why nothing. One thread at a time writes to it."""

    def __init__(self, finder: Finder, every: float, clock: Clock, looked: threading.Event) -> None:
        self.finder = finder
        self.every = every
        self.clock = clock
        self.looked = looked
        self.found: list[tuple[Place, Source]] | None = None
        """None before it has looked; places have valid labels."""

        self.took = math.inf
        self.cpu_seconds = 0.0
        self.absent = ""
        self.unrecorded = False
        """Whether it finds nothing because the tape that is played lacks what it reads."""

        self.begun: float | None = None
        """When it began to look, if it has not come back."""

        self._news = News(clock)

    @property
    def name(self) -> str:
        """What finds."""
        return self.finder.name

    @property
    def where(self) -> str:
        """The finder, for the log."""
        return self.finder.name

    def look(self) -> None:
        """Ask the finder; if it finds nothing, its earlier sources stay and fail visibly."""
        self.begun = self.clock.monotonic()
        found = isolated(self._find)
        if isinstance(found, BaseException):
            self.absent, self.unrecorded = described(found), unrecorded(found)
            self.found = self.found or []
        else:
            self.found, self.absent, self.unrecorded = found, "", False
        self.begun = None
        if not self.unrecorded and self._news.worth(self.absent):
            if isinstance(found, BaseException):
                what = f"none found, looking again every {self.every:g} s"
                complaints.complain(self.finder.name, what, found)
            else:
                log.info("%s: found", self.finder.name)

    def _find(self) -> list[tuple[Place, Source]]:
        return [(Place(*map(label_text, place)), source) for place, source in self.finder.find()]

    def overdue(self, now: float) -> bool:
        """Whether it takes too long to wait for."""
        begun = self.begun
        return begun is not None and now - begun > OVERDUE * self.every

    def reported(self, now: float) -> bool:
        """Whether it has looked, or takes too long to wait for."""
        return self.found is not None or self.overdue(now)

    def up(self, now: float) -> bool:
        """Whether anything was found when it last looked, and it is not overdue."""
        return not self.absent and not self.overdue(now)

    def perform(self) -> float:
        """Look; returns after how many seconds to look again."""
        begin, cpu = self.clock.monotonic(), self.clock.thread_cpu()
        self.look()
        self.looked.set()
        used = self.clock.thread_cpu()
        if cpu is not None and used is not None:
            self.cpu_seconds += used - cpu
        self.took = self.clock.monotonic() - begin
        return self.every
