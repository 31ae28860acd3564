"""Fits the ledger's constants to the recorded windows: ``make bench BENCH=fit``.

What is published is the error on programs that the fit did not see: for each family of programs,
constants are fitted to all other families and tried on it. The constants that ship are fitted to
all families. ``python -m bench.ledger.fit`` prints this for files that are named, and keeps
nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.ledger.search import CLOSE, NEAR, best
from bench.report import Report, Result, machine
from gpunode.gpu.tuned import FILE, Ramp, Tuned
from tests.windows.programs import Program, recorded

TARGETS = {CLOSE: 0.85, NEAR: 0.97}
"""On what share of the GPUs no state of an unseen program may be off by more."""

TEXT = (
    "Random programs ran on GPUs with every kernel traced (`tests/windows`). A program counts by "
    "the mean over its windows of 2 s. The workloads of the bench took part too, but only random "
    "programs count here. For each family of programs the ledger's constants were "
    "fitted to all other families and tried on this one: its programs are unseen. The constants "
    "that ship are fitted to all families, which are therefore seen. The first table has the share "
    "of programs whose worst state is within 0.05 and 0.10, and the mean of their worst errors. "
    "Most errors are between `compute` and `memory`, or between `launch` and `starved`. *In kind* "
    "counts the first two as work, and the others as a gap between kernels. "
    "The second has what becomes of unseen programs without each constant."
)

ALWAYS: Ramp = (0.0, 1e-12)
NEVER: Ramp = (1e29, 1e30)


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

    def __str__(self) -> str:
        return f"{self.close / self.count:4.0%} {self.near / self.count:4.0%} {self.mean:.3f}"


@dataclass(frozen=True, slots=True)
class Scored:
    """A program, and the errors of its worst state with constants it had a part in, or none."""

    program: Program
    seen: float
    unseen: float
    unseen_in_kind: float
    """With states of a kind as one."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants that were fitted to all programs, and to all families but one."""

    programs: Sequence[Program]
    seen: Tuned
    unseen: Mapping[str, Tuned]
    """For each family, constants that its programs had no part in."""

    def scored(self) -> list[Scored]:
        """Each program's errors."""
        return [
            Scored(program, program.error(self.seen), unseen, program.error_of_kinds(tuned))
            for program, unseen in zip(self.programs, self.errors_unseen(), strict=True)
            for tuned in [self.unseen[program.family]]
        ]

    def errors_unseen(self, changed: Callable[[Tuned], Tuned] = lambda tuned: tuned) -> list[float]:
        """The error of each program with constants that it had no part in, or changed ones."""
        by_family = {family: changed(tuned) for family, tuned in self.unseen.items()}
        return [program.error(by_family[program.family]) for program in self.programs]


def fitted(programs: Sequence[Program]) -> Fit:
    """Fit the constants to all programs, and to all families but one each."""
    families = sorted({program.family for program in programs})
    parts = [programs]
    parts += [[p for p in programs if p.family != family] for family in families]
    with ProcessPoolExecutor() as pool:
        seen, *unseen = pool.map(partial(best, begin=Tuned()), parts)
    return Fit(programs, seen, dict(zip(families, unseen, strict=True)))


def report(fit: Fit) -> Report:
    """What is published."""
    return Report(
        "The ledger on programs that its constants were not fitted to",
        machine(),
        TEXT,
        list(_results(fit)),
        [*_families(fit), "", *_constants(fit)],
    )


def write(tuned: Tuned) -> None:
    """Let the ledger use these constants."""
    text = json.dumps(asdict(tuned), indent=1)
    FILE.write_text(f"{text}\n")


def _results(fit: Fit) -> Iterator[Result]:
    scored = [each for each in fit.scored() if not each.program.rehearsed]
    for model in sorted({each.program.model for each in scored}, reverse=True):
        own = [each for each in scored if each.program.model == model]
        scores = {
            "unseen programs with every state": [each.unseen for each in own],
            "unseen programs in kind": [each.unseen_in_kind for each in own],
            "seen programs with every state": [each.seen for each in own],
        }
        for which, errors in scores.items():
            score = Score.of(errors)
            for limit, count in ((CLOSE, score.close), (NEAR, score.near)):
                target = TARGETS[limit] if which == "unseen programs with every state" else 0.0
                yield Result(
                    f"{model}, {which} within {limit:.2f}",
                    f"{count} of {score.count} ({count / score.count:.0%})",
                    f"≥ {target:.0%}" if target else "",
                    count >= target * score.count,
                )


def _families(fit: Fit) -> Iterator[str]:
    """A row for each family, and for all random programs, and all workloads of the bench."""
    scored = fit.scored()
    rows = {
        family: [each for each in scored if each.program.family == family] for family in fit.unseen
    }
    rows["all random programs"] = [each for each in scored if not each.program.rehearsed]
    rows["all workloads of the bench"] = [each for each in scored if each.program.rehearsed]
    width = max(map(len, rows))
    yield f"{'family':{width}} GPUs  seen: 0.05 0.10 mean   unseen: 0.05 0.10 mean"
    for family, own in rows.items():
        if own:
            seen, unseen = Score.of([e.seen for e in own]), Score.of([e.unseen for e in own])
            yield f"{family:{width}} {len(own):4}       {seen}         {unseen}"


def _constants(fit: Fit) -> Iterator[str]:
    """What becomes of unseen programs without each constant, least useful first."""
    whole = Score.of(fit.errors_unseen())
    rows = []
    for field in fields(Tuned):
        tried = [
            Score.of(fit.errors_unseen(partial(_without, name=field.name, neutral=neutral)))
            for neutral in _neutral(field.default)
        ]
        rows.append((min(tried, key=lambda score: (score.mean, -score.close)), field.name))
    rows.sort(key=lambda row: row[0].mean)
    yield "without              within 0.05, 0.10 and mean error on unseen programs"
    yield f"{'nothing':20} {whole}"
    for score, name in rows:
        yield f"{name:20} {score}"


def _neutral(value: object) -> tuple[Any, ...]:
    """Values that switch a constant off: evidence that always or never counts, a share of 0."""
    return (ALWAYS, NEVER) if isinstance(value, tuple) else (1e-12,)


def _without(tuned: Tuned, name: str, neutral: Any) -> Tuned:
    return replace(tuned, **{name: neutral})


if __name__ == "__main__":
    found = fitted(recorded([Path(name) for name in sys.argv[1:]]))
    report(found).print()
    print(json.dumps(asdict(found.seen), indent=1))
