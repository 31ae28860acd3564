"""The ledger and the verdicts on traced programs: ``make bench BENCH=ledger``.

``tests/windows`` has what sensors measured of them and what the traces tell. The ledger was made
with all of these in sight, but for those in ``drawn``: what ``bench.truth.generate`` wrote there
for seeds that were drawn once, after the last change of the ledger. With ``--most 1 --watch 16``,
each program has a process of its own, so that its verdict rests on nothing that another did.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import Report, Result
from bench.truth.expected import expected
from tests.windows.programs import REHEARSED, Program, recorded
from tests.windows.recorded import FOLDER

CLOSE, NEAR = 0.05, 0.10
"""Errors of a state that should not be exceeded on most GPUs, and on all."""

DRAWN = FOLDER / "drawn"
EARLIER = FOLDER / "unseen_programs"

AFTERWARDS = "programs drawn afterwards"
TARGETS = {(AFTERWARDS, "one process"): {CLOSE: 0.90, NEAR: 0.97}}
"""On what share of the GPUs no state may be off by more, by set and use of the GPU."""

RIGHT = 0.95
"""On what share of the GPUs the cause that the verdict names should be right."""

TEXT = (
    "Programs ran with every kernel traced (`tests/windows`). A GPU counts by the mean over its "
    "windows of 2 s, by the state that is furthest off. Several processes on a GPU take turns "
    "that no sensor shows. A verdict is right if it names a cause that the program was drawn to "
    "have, or that its trace shows."
)


@dataclass(frozen=True, slots=True)
class Score:
    """How good the ledger is on some programs."""

    count: int
    close: int
    near: int
    mean: float
    """The mean of the errors of the worst states."""

    @staticmethod
    def of(errors: Sequence[float]) -> Score:
        return Score(
            len(errors),
            sum(error <= CLOSE for error in errors),
            sum(error <= NEAR for error in errors),
            statistics.mean(errors),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the daemon said at last of a program on a GPU."""

    program: str
    gpu: int
    said: str
    right: tuple[str, ...]
    """Causes of which each is right."""

    @staticmethod
    def from_json(line: str) -> Verdict:
        kept: dict[str, Any] = json.loads(line)
        right = expected(kept["family"], kept["parameters"], kept["truth"], kept["short"])
        said = kept["course"][-1][1] if kept["course"] else "none"
        return Verdict(kept["program"], kept["gpu"], said, tuple(right))

    @property
    def is_right(self) -> bool:
        return self.said in self.right


def sets() -> dict[str, list[Program]]:
    """The recorded programs by how they came about."""
    paths = sorted(FOLDER.glob("*.jsonl.gz"))
    found = {
        "random programs": [path for path in paths if not path.name.startswith(REHEARSED)],
        "random programs of a second draw": sorted(EARLIER.glob("windows-*.jsonl.gz")),
        "workloads of the bench": [path for path in paths if path.name.startswith(REHEARSED)],
        AFTERWARDS: sorted(DRAWN.glob("windows-*.jsonl.gz")),
    }
    return {name: recorded(of) for name, of in found.items() if of}


def report() -> Report:
    """What is published."""
    programs = sets()
    paths = sorted((DRAWN if AFTERWARDS in programs else EARLIER).glob("verdicts-*.jsonl.gz"))
    verdicts = list(_verdicts(paths))
    gpus = sorted({one.gpu for those in programs.values() for one in those}, reverse=True)
    return Report(
        "The ledger and the verdicts against traces of every kernel",
        ", ".join(gpus),
        TEXT,
        [*_results(programs), _right(verdicts)],
        [*table(programs), "", *_programs(programs), "", *_wrong(verdicts)],
    )


def table(programs: Mapping[str, Sequence[Program]]) -> Iterator[str]:
    """A line for each set and use of the GPU."""
    yield f"{'GPUs':58} within 0.05  0.10  mean error"
    for (name, use), score in _scores(programs):
        close, near = score.close / score.count, score.near / score.count
        yield (
            f"{name}, {use} ({score.count})".ljust(60)
            + f"{close:10.0%} {near:5.0%} {score.mean:7.3f}"
        )


def _verdicts(paths: Iterable[Path]) -> Iterator[Verdict]:
    for path in paths:
        with gzip.open(path, "rt") as lines:
            yield from map(Verdict.from_json, lines)


def _scores(
    programs: Mapping[str, Sequence[Program]],
) -> Iterator[tuple[tuple[str, str], Score]]:
    for name, those in programs.items():
        by_use: dict[str, list[float]] = defaultdict(list)
        for one in those:
            by_use[one.use].append(one.error())
        for use, errors in sorted(by_use.items()):
            yield (name, use), Score.of(errors)


def _results(programs: Mapping[str, Sequence[Program]]) -> Iterator[Result]:
    for which, score in _scores(programs):
        for limit, count in ((CLOSE, score.close), (NEAR, score.near)):
            target = TARGETS.get(which, {}).get(limit, 0.0)
            yield Result(
                f"{which[0]}, {which[1]}: every state within {limit:.2f}",
                f"{count} of {score.count} ({count / score.count:.0%})",
                f"≥ {target:.0%}" if target else "",
                count >= target * score.count,
            )


def _right(verdicts: Sequence[Verdict]) -> Result:
    right = sum(verdict.is_right for verdict in verdicts)
    return Result(
        "GPUs with the right verdict",
        f"{right} of {len(verdicts)} ({right / len(verdicts):.1%})",
        f"≥ {RIGHT:.0%}",
        right >= RIGHT * len(verdicts),
    )


def _programs(programs: Mapping[str, Sequence[Program]]) -> Iterator[str]:
    """A line for each program that is off by more than is close."""
    every = [one for those in programs.values() for one in those]
    width = max(len(one.name) for one in every)
    for one in every:
        if one.error() > CLOSE:
            yield f"{one.name:{width}} {one.worst}"


def _wrong(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for verdict in verdicts:
        if not verdict.is_right:
            right = " or ".join(verdict.right)
            yield f"{verdict.program}, GPU {verdict.gpu}: {verdict.said} where {right} is right"
