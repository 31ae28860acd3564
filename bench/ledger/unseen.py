"""Random programs that ran once, after the ledger and the verdicts were made.

``unseen_programs/`` has what ``bench.truth.generate`` wrote for seeds never drawn before.
Neither the fit nor a person used them: what is drawn after a change of the ledger goes there, and
what was there before goes to the fit. With ``--most 1 --watch 16``, each program has a process of
its own, so that its verdict rests on nothing that another did.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ledger.fit import TARGETS, Score
from bench.ledger.similar import corrected
from bench.report import Report, Result
from bench.truth.expected import expected
from bench.truth.kept import worst_of
from tests.windows.programs import Program, recorded
from tests.windows.recorded import FOLDER

UNSEEN = FOLDER / "unseen_programs"

RIGHT = 0.95
"""On what share of the GPUs the cause that the verdict names should be right."""

TEXT = (
    "Random programs of seeds that were drawn once, after the ledger, its constants and the "
    "verdicts were made. Each ran for about 20 s beside the daemon, in a process of its own; in "
    "the last seconds every kernel was traced. The verdict is the last that the daemon of that day "
    "gave, and right if it names a cause that the program, or a loss in its trace, was drawn to "
    "have. What was changed in verdicts because of these programs is not in the figures. "
    "Programs that were drawn before the last change of the ledger are among those that the "
    "constants are fitted to. *Corrected* takes away the errors that the most similar programs of "
    "other families had in the fit. It is not in the product: it says whether more can be learned "
    "from the readings."
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
        right = expected(kept["family"], kept["parameters"], kept["truth"])
        said = kept["course"][-1][1] if kept["course"] else "none"
        return Verdict(kept["program"], kept["gpu"], said, tuple(right))

    @property
    def is_right(self) -> bool:
        return self.said in self.right


def report() -> Report:
    """What is published."""
    programs = recorded(sorted(UNSEEN.glob("windows-*.jsonl.gz")))
    verdicts = [*_verdicts(UNSEEN.glob("verdicts-*.jsonl.gz"))]
    names = sorted({program.gpu for program in programs}, reverse=True)
    return Report(
        "The ledger and the verdicts on programs that nobody had run",
        ", ".join(names),
        TEXT,
        [*_results(programs, verdicts)],
        [*_details(programs, verdicts)],
    )


def _verdicts(paths: Iterable[Path]) -> Iterator[Verdict]:
    for path in sorted(paths):
        with gzip.open(path, "rt") as lines:
            yield from map(Verdict.from_json, lines)


def _results(programs: list[Program], verdicts: list[Verdict]) -> Iterator[Result]:
    learned = corrected(recorded(), programs)
    errors = {
        "every state": [program.error() for program in programs],
        "states in kind": [program.error_of_kinds() for program in programs],
        "every state, corrected,": [
            _worst(program.truth, shares) for program, shares in zip(programs, learned, strict=True)
        ],
    }
    for which, own in errors.items():
        score = Score.of(own)
        for limit, count in zip(TARGETS, (score.close, score.near), strict=True):
            target = TARGETS[limit] if which == "every state" else 0.0
            yield Result(
                f"GPUs with {which} within {limit:.2f}",
                f"{count} of {score.count} ({count / score.count:.0%})",
                f"≥ {target:.0%}" if target else "",
                count >= target * score.count,
            )
    right = sum(verdict.is_right for verdict in verdicts)
    yield Result(
        "GPUs with the right verdict",
        f"{right} of {len(verdicts)} ({right / len(verdicts):.1%})",
        f"≥ {RIGHT:.0%}",
        right >= RIGHT * len(verdicts),
    )


def _worst(truth: Mapping[str, float], shares: Mapping[str, float]) -> float:
    return max(abs(shares.get(s, 0.0) - truth.get(s, 0.0)) for s in {**shares, **truth})


def _details(programs: list[Program], verdicts: list[Verdict]) -> Iterator[str]:
    """A line for each program and GPU, and one for each verdict that is wrong."""
    width = max(len(program.name) for program in programs)
    yield f"{'program':{width}} largest error"
    for program in programs:
        yield f"{program.name:{width}} {worst_of(program).text}"
    yield ""
    for verdict in verdicts:
        if not verdict.is_right:
            right = " or ".join(verdict.right)
            yield f"{verdict.program}, GPU {verdict.gpu}: {verdict.said} where {right} is right"
