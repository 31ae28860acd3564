"""What the daemon says that a fix gives, held against what it gave: from the tapes of ``pairs``.

``python -m bench.truth.gains FOLDER…`` replays the runs without the fix that ``pairs.py`` has
left in the folders, prints what is told of each, and keeps it in ``docs/performance/gain.jsonl``.
A run is shorter than what a verdict covers, so that here a verdict covers ``COVERED`` seconds,
those in which it was measured. Each pair is also told with a ``RESIDUE`` that was fitted without
its program.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from bench.report import DOCS, Report, Result, span, version
from gpunode.config.daemon import Settings
from gpunode.node.node import Node
from gpunode.node.tape import TapeNode
from gpunode.sources import watch
from gpunode.verdict import source
from gpunode.verdict.causes import cause
from gpunode.verdict.gain import Gain
from gpunode.verdict.source import Judgements

PAIRS_FILE = DOCS / "performance" / "gain.jsonl"

COVERED = 6.5
"""Seconds of the ledger that a verdict covers here."""

CLOSE = 0.05
TARGET = 0.9
"""The median error that is asked for, and the share of pairs within the interval."""

SET_ON = "NVIDIA H200"
"""The GPU on whose pairs it was set how sure each remedy is."""

OTHERWISE = ("gil", "item", "allocator", "compiled", "batch")
"""Programs whose fix does something else than to close the gaps that the verdict names: it fuses
kernels, enlarges them, or makes a part of what the host does between them unnecessary."""


@dataclass(frozen=True, slots=True)
class GainReading:
    """A pair: what its verdict was, what it told, and what was measured."""

    pair: str
    machine: str
    cause: str
    measured: float
    lower: float | None
    estimate: float | None
    upper: float | None
    unseen: float | None
    """The estimate with constants that were fitted on the other programs."""

    version: str = field(default_factory=version)

    @property
    def error(self) -> float:
        """How far the unseen estimate is from what was measured, as a share of it."""
        assert self.unseen is not None
        return abs(self.unseen / self.measured - 1.0)

    @property
    def within(self) -> bool:
        assert self.lower is not None
        assert self.upper is not None
        return self.lower <= self.measured <= self.upper


def runs(folders: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any], float]]:
    """The runs without the fix: the tape, the run, and how many times as fast the fix made it."""
    for folder in folders:
        for file in sorted(folder.glob("pairs-*.jsonl")):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            rates = {
                one["pair"]: one["rate"] for one in lines if one["fixed"] and not one["failed"]
            }
            for one in lines:
                if not one["fixed"] and not one["failed"] and one["pair"] in rates:
                    yield folder / one["tape"], one, rates[one["pair"]] / one["rate"]


@contextmanager
def assumed(residue: float) -> Iterator[None]:
    """With verdicts that cover the runs, and this residue."""
    kept = source.JUDGED, cause.RESIDUE
    source.JUDGED, cause.RESIDUE = COVERED, residue
    try:
        yield
    finally:
        source.JUDGED, cause.RESIDUE = kept


def run_gain(tape: Path, run: dict[str, Any], residue: float) -> tuple[str, Gain | None]:
    """The verdict at the end of a run, and its gain: of several GPUs, that of the largest gain."""
    node = TapeNode(tape)
    found: list[tuple[str, Gain | None]] = [("", None)]
    with assumed(residue):
        loop = watch(cast(Node, node), Settings())
        for _ in loop.replay(node.clock, node.end):
            if node.clock.time() > run["until"]:
                break
            found = [
                (one.cause, one.gain)
                for details in loop.details(Judgements)
                for one in details.detail.verdicts
                if int(one.gpu) in run["gpus"]
            ] or found
    return max(found, key=lambda each: each[1].estimate if each[1] else 0.0)


def fitted(implied: dict[str, list[float]], without: str) -> float:
    """The median residue that the other programs have."""
    return statistics.median(r for name, each in implied.items() if name != without for r in each)


def read_pairs(folders: Sequence[Path]) -> list[GainReading]:
    """Every pair, told with constants of the code, and with one that was fitted without it."""
    every = list(runs(folders))
    implied: dict[str, list[float]] = {}
    for tape, run, measured in every:
        program = run["pair"].rstrip("+")
        (_, none), (_, much) = run_gain(tape, run, 0.0), run_gain(tape, run, 0.4)
        if none and much and none.estimate != much.estimate and program not in OTHERWISE:
            implied.setdefault(program, []).append(1.0 - measured / none.estimate)
    rows = []
    for tape, run, measured in every:
        name, gain = run_gain(tape, run, cause.RESIDUE)
        _, unseen = run_gain(tape, run, fitted(implied, run["pair"].rstrip("+")))
        rows.append(
            GainReading(
                pair=run["pair"],
                machine=run["machine"],
                cause=name,
                measured=measured,
                lower=gain.lower if gain else None,
                estimate=gain.estimate if gain else None,
                upper=gain.upper if gain else None,
                unseen=unseen.estimate if unseen else None,
            )
        )
    print("residue of each program:", implied)
    return rows


def report(rows: Sequence[GainReading]) -> Report:
    """What was told of the pairs, against the targets."""
    known = [row for row in rows if row.estimate]
    advised = [row for row in known if row.pair.rstrip("+") not in OTHERWISE]
    return Report(
        "What a fix gives",
        ", ".join(sorted({row.machine for row in rows})),
        "The same job runs for 10 s without and for 10 s with a fix, and counts what it gets done. "
        "The verdict on the first run predicts how many times as fast the second is. The model was "
        f"fitted on other programs; how sure each remedy is, with the pairs of an {SET_ON} known.",
        [
            *_coverage("", advised),
            *_coverage(", no constant set on the GPU", [r for r in advised if r.machine != SET_ON]),
            *_coverage(", whatever the fix", known),
            Result("pairs of which nothing is told", f"{len(rows) - len(known)}"),
        ],
        list(_table(rows)),
        span(row.version for row in rows),
    )


def _coverage(which: str, rows: Sequence[GainReading]) -> Iterator[Result]:
    """How well some pairs were told."""
    error = statistics.median(row.error for row in rows)
    within = sum(row.within for row in rows)
    yield Result(f"median error{which}", f"{error:.1%}", f"≤ {CLOSE:.0%}", error <= CLOSE)
    yield Result(
        f"pairs within the interval{which}",
        f"{within} of {len(rows)} ({within / len(rows):.0%})",
        f"≥ {TARGET:.0%}",
        within >= TARGET * len(rows),
    )


def _table(rows: Iterable[GainReading]) -> Iterator[str]:
    yield f"{'pair':15}{'verdict':22}{'told':>24}{'unseen':>8}{'measured':>10}{'error':>8}"
    for before, row in zip([None, *rows], rows, strict=False):
        if before is None or before.machine != row.machine:
            yield row.machine
        text = unseen = error = ""
        if row.estimate:
            text = f"{row.estimate:.2f} ({row.lower:.2f} to {row.upper:.2f})"
            unseen, error = f"{row.unseen:.2f}", f"{row.error:.1%}"
        yield (
            f"{row.pair:15}{row.cause:22}{text:>24}{unseen:>8}{row.measured:>10.2f}{error:>8}"
        ).rstrip()


def load() -> list[GainReading]:
    """What was kept."""
    return [GainReading(**json.loads(line)) for line in PAIRS_FILE.read_text().splitlines()]


if __name__ == "__main__":
    rows = read_pairs([Path(folder) for folder in sys.argv[1:]])
    PAIRS_FILE.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    report(rows).print()
