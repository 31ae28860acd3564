"""What generated programs have shown so far: windows with their truth, and verdicts."""

from __future__ import annotations

import gzip
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.truth.drawn import FAMILIES
from bench.truth.launch import Placed
from tests.windows.programs import Program
from tests.windows.recorded import Recorded, load, save

LONG = 1.0
"""Seconds of a window that is none of a burst."""


@dataclass(slots=True)
class Kept:
    """What was found so far; several threads add to it."""

    folder: Path
    gpu: str
    windows: list[Recorded] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.windows_file.exists():
            self.windows = list(load(self.windows_file))
        if self.verdicts_file.exists():
            with gzip.open(self.verdicts_file, "rt") as lines:
                self.verdicts = [json.loads(line) for line in lines]

    @property
    def windows_file(self) -> Path:
        return self.folder / f"windows-{self.gpu}.jsonl.gz"

    @property
    def verdicts_file(self) -> Path:
        return self.folder / f"verdicts-{self.gpu}.jsonl.gz"

    def add(self, windows: Sequence[Recorded], verdicts: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self.windows += windows
            self.verdicts += verdicts
            save(self.windows_file, self.windows)
            text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in self.verdicts)
            self.verdicts_file.write_bytes(gzip.compress(text.encode(), mtime=0))

    def fail(self, each: Placed, name: str, why: str) -> None:
        """Print why there is nothing of a program, with the end of what it said."""
        with self._lock:
            said = []
            for process in each.processes:
                with suppress(OSError):
                    errors = process.folder / f"errors.{process.rank}"
                    said += errors.read_text(errors="replace").splitlines()[-40:]
            self.failed.append(name)
            print(f"FAILED {name}: {why}", flush=True)
            with (self.folder / "errors.txt").open("a") as file:
                file.write("\n".join([f"== {name}: {why}", *said, ""]))


@dataclass(frozen=True, slots=True)
class Worst:
    """The state of a window of which the ledger is furthest off."""

    error: float
    text: str


def worst(one: Recorded) -> Worst:
    """Where the ledger is furthest off in a window, and by how much."""
    return worst_of(Program(one.gpu, one.family, one.program, False, (one.window,), one.truth))


def worst_of(program: Program) -> Worst:
    """The same of a program."""
    errors = program.errors()
    state = max(sorted(errors), key=lambda each: abs(errors[each]))
    truth = program.truth.get(state, 0.0)
    return Worst(abs(errors[state]), f"{state} {truth:.2f} told {truth + errors[state]:.2f}")


def table(windows: Iterable[Recorded]) -> str:
    """A line for each family: programs, long windows, shares that are right, and the worst."""
    by_family: dict[str, list[Recorded]] = defaultdict(list)
    for one in windows:
        if one.window.seconds > LONG:
            by_family[one.family].append(one)
            by_family["all"].append(one)
    lines = ["family programs windows within-0.05 within-0.10 worst"]
    for family in (*FAMILIES, "all"):
        if found := by_family.get(family):
            errors = [(worst(one), one.program) for one in found]
            far, program = max(errors, key=lambda each: each[0].error)
            near = [sum(e.error <= limit for e, _ in errors) / len(errors) for limit in (0.05, 0.1)]
            programs = len({one.program for one in found})
            lines.append(
                f"{family} {programs} {len(found)} {near[0]:.2f} {near[1]:.2f} "
                f"{far.error:.2f} ({far.text}, {program})"
            )
    return "\n".join(lines)
