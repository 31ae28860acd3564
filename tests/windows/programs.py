"""Programs that were recorded, and how far the ledger is off on each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.gpu.ledger import split
from gpunode.gpu.window import Window
from tests.windows.recorded import FOLDER, WindowRecord, load

REHEARSED = "workloads-"
"""How the names of files begin that have workloads of the bench (``bench.truth``)."""

ALSO_STARVED = ("idle", "free")
"""States that a trace cannot tell from ``starved``."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program on one GPU: its windows, and the mean of their true shares."""

    gpu: str
    family: str
    name: str
    windows: tuple[Window, ...]
    truth: Mapping[str, float]

    @property
    def use(self) -> str:
        """Who uses its GPU, and whether it has peers on others."""
        if any(window.peers for window in self.windows):
            return "several GPUs"
        several = any(len(window.processes or ()) > 1 for window in self.windows)
        return "several processes" if several else "one process"

    def shares(self) -> dict[str, float]:
        """The mean of the shares that the ledger gives, of the states that a trace tells."""
        return _mean([split(window) for window in self.windows])

    def errors(self) -> dict[str, float]:
        """How far the ledger is off in each state."""
        shares = self.shares()
        return {s: shares.get(s, 0.0) - self.truth.get(s, 0.0) for s in {**shares, **self.truth}}

    def error(self) -> float:
        """How far it is off in the worst state."""
        return max(map(abs, self.errors().values()))

    @property
    def worst(self) -> str:
        """The state in which it is furthest off, in words."""
        errors = self.errors()
        state = max(sorted(errors), key=lambda each: abs(errors[each]))
        truth = self.truth.get(state, 0.0)
        return f"{state} {truth:.2f} told {truth + errors[state]:.2f}"


def recorded(paths: Sequence[Path] = ()) -> list[Program]:
    """The programs in files, or in all files of this folder, in a fixed order."""
    paths = paths or sorted(FOLDER.glob("*.jsonl.gz"))
    return [program for path in paths for program in programs(load(path))]


def programs(windows: Iterable[WindowRecord]) -> list[Program]:
    """The programs that windows are of, in a fixed order."""
    apart: dict[tuple[str, str, str], list[WindowRecord]] = defaultdict(list)
    for one in windows:
        apart[one.gpu, one.family, one.program].append(one)
    return [
        Program(*key, tuple(one.window for one in kept), _mean([one.truth for one in kept]))
        for key, kept in sorted(apart.items())
    ]


def _mean(every: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of shares, with what counts as ``starved``."""
    total: dict[str, float] = defaultdict(float)
    for shares in every:
        for state, share in shares.items():
            total["starved" if state in ALSO_STARVED else state] += share / len(every)
    return dict(total)
