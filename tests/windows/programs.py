"""Programs that were recorded, and how far the ledger is off on each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.gpu.ledger import split
from gpunode.gpu.models import model_of
from gpunode.gpu.tuned import FITTED, Tuned
from gpunode.gpu.window import Window
from tests.windows.recorded import FOLDER, Recorded, load

REHEARSED = "workloads-"
"""How the names of files begin that have workloads of the bench (``bench.truth``)."""

ALSO_STARVED = ("idle", "free")
"""States that a trace cannot tell from ``starved``."""

KINDS = {"compute": "work", "memory": "work", "launch": "gap", "starved": "gap"}
"""States that sensors hardly tell from each other, by what they have in common."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program on one GPU: its windows, and the mean of their true shares."""

    gpu: str
    family: str
    name: str
    rehearsed: bool
    """Whether it is a workload of the bench, which the ledger was made with."""

    windows: tuple[Window, ...]
    truth: Mapping[str, float]

    @property
    def model(self) -> str:
        """The model of its GPU."""
        model = model_of(self.gpu)
        return model.name if model else self.gpu

    def shares(self, tuned: Tuned = FITTED) -> dict[str, float]:
        """The mean of the shares that the ledger gives, of the states that a trace tells."""
        return _mean([split(window, tuned).shares for window in self.windows])

    def errors(self, tuned: Tuned = FITTED) -> dict[str, float]:
        """How far the ledger is off in each state."""
        shares = self.shares(tuned)
        return {s: shares.get(s, 0.0) - self.truth.get(s, 0.0) for s in {**shares, **self.truth}}

    def error(self, tuned: Tuned = FITTED) -> float:
        """How far it is off in the worst state."""
        return max(map(abs, self.errors(tuned).values()))

    def error_of_kinds(self, tuned: Tuned = FITTED) -> float:
        """The same with states of a kind as one (``KINDS``)."""
        errors: dict[str, float] = defaultdict(float)
        for state, error in self.errors(tuned).items():
            errors[KINDS.get(state, state)] += error
        return max(map(abs, errors.values()))


def recorded(paths: Sequence[Path] = ()) -> list[Program]:
    """The programs in files, or in all files of this folder, in a fixed order."""
    paths = paths or sorted(FOLDER.glob("*.jsonl.gz"))
    return [program for path in paths for program in _programs(path)]


def _programs(path: Path) -> Iterator[Program]:
    apart: dict[tuple[str, str, str], list[Recorded]] = defaultdict(list)
    for one in load(path):
        apart[one.gpu, one.family, one.program].append(one)
    for (gpu, family, name), kept in sorted(apart.items()):
        windows, truth = tuple(one.window for one in kept), _mean([one.truth for one in kept])
        yield Program(gpu, family, name, path.stem.startswith(REHEARSED), windows, truth)


def _mean(every: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of shares, with what counts as ``starved``."""
    total: dict[str, float] = defaultdict(float)
    for shares in every:
        for state, share in shares.items():
            total["starved" if state in ALSO_STARVED else state] += share / len(every)
    return dict(total)
