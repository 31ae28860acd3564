"""A /proc in a folder, and GPUs whose driver lists what a test says; time is the test's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.driver.driver import DriverError, Gpu, Identity, Process
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder
from gpunode.node.local import LocalNode
from gpunode.node.node import SteppedClock
from tests.machine import begin


class Card:
    """A GPU whose driver lists some processes, fails, or does not answer."""

    def __init__(self, index: int = 0) -> None:
        self.identity = Identity(index, f"GPU-{index}", "NVIDIA H200")
        self.running: list[Process] = []
        self.asked = 0
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()

    def hold(self, *pids: int) -> None:
        self.running = [Process(pid, None, "compute") for pid in pids]

    def processes(self) -> list[Process]:
        self.asked += 1
        self.answers.wait(60)
        if self.fails:
            raise DriverError("GPU is lost")
        return self.running


@dataclass
class Cards:
    """A driver of some GPUs."""

    cards: Sequence[Card]
    vendor: str = "nvidia"

    def gpus(self) -> list[Gpu]:
        return list(self.cards)  # type: ignore[arg-type]


@dataclass
class Proc:
    """A node with a /proc below a root, and some GPUs."""

    root: Path
    cards: list[Card] = field(default_factory=lambda: [Card()])

    def __post_init__(self) -> None:
        self.node = LocalNode(self.root, [Cards(self.cards)])
        self.clock = self.node.clock = SteppedClock(0.0)  # type: ignore[assignment]
        self.census = Census(self.node)

    @property
    def gpu(self) -> Gpu:
        return self.cards[0]  # type: ignore[return-value]

    def run(
        self, pid: int, *threads: str, start: int = 1000, environment: str = "", program: str = "x"
    ) -> None:
        """A process with threads of these names, in place of one that had its PID."""
        folder = begin(self.root, pid, start)
        for at, name in enumerate(threads):
            task = folder / f"task/{pid + at}"
            task.mkdir(parents=True, exist_ok=True)
            (task / "comm").write_text(f"{name}\n")
        (folder / "environ").write_text(environment)
        (folder / "cmdline").write_text(f"{program}\0")
        (folder / "cgroup").write_text("0::/user.slice\n")
        (folder / "status").write_text(f"Name:\tx\nUid:\t{start}\t0\t0\t{start}\nNSpid:\t{pid}\n")

    def end(self, pid: int) -> None:
        """Let a process end, and all that its folder tells."""
        (self.root / f"proc/{pid}/stat").unlink()

    def holders(self, within: float = 2.5) -> tuple[Holder, ...]:
        look = self.census.look(self.gpu, within)
        assert look is not None
        return look.holders

    def holder(self) -> Holder:
        (found,) = self.holders()
        return found
