"""Whether the same jobs are worse than in an earlier report, as after an upgrade."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpunode.mistake import UsageError
from gpunode.report.changes import Pace, hodges_lehmann
from gpunode.report.history import JobKey
from gpunode.report.sections.changes import KEY, NAME, PACE
from gpunode.report.words import as_text

MAX_FILE = 1 << 28


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sentence, and whether the jobs may be accepted as they are."""

    says: str
    accepted: bool


def read(path: Path) -> dict[JobKey, Pace]:
    """The jobs of an earlier report. Raises ``UsageError``."""
    try:
        with path.open(encoding="utf-8") as file:
            return parse(file.read(MAX_FILE))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"{path}: {error}; give what gpunode report --format=json wrote"
        ) from error


def parse(text: str) -> dict[JobKey, Pace]:
    """The jobs of a report that was written as JSON. Raises ``ValueError``."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("too deep") from error
    try:
        (section,) = (one for one in document["sections"] if one["name"] == NAME)
        (table,) = (one for one in section["tables"] if one["name"] == PACE)
        columns = [column["name"] for column in table["columns"]]
        rows = [dict(zip(columns, row, strict=True)) for row in table["rows"]]
        return {JobKey(*(str(row[name]) for name in KEY)): _pace(row) for row in rows}
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("no report of gpunode with the pace of each job") from error


def _pace(row: Mapping[str, object]) -> Pace:
    step, useful = row["step"], row["useful"]
    if not isinstance(step, int | float) or not isinstance(useful, int | float | None):
        raise TypeError("no number")
    if not 0 < step < math.inf or not (useful is None or 0 <= useful < math.inf):
        raise ValueError("a step or a share that cannot be")
    return Pace(float(step), None if useful is None else float(useful))


def compared(before: Mapping[JobKey, Pace], after: Mapping[JobKey, Pace], limit: float) -> Outcome:
    """Whether steps take longer, or less of the time is useful, by more than a share."""
    both = sorted(before.keys() & after.keys())
    steps = [math.log(after[job].step / before[job].step) for job in both]
    useful = [
        math.log(before_share / after_share)
        for job in both
        if (before_share := before[job].useful) and (after_share := after[job].useful)
    ]
    found = hodges_lehmann(steps)
    if found is None:
        return Outcome(
            f"It cannot be told whether jobs are slower: {len(both)} of {len(before)} jobs of the "
            "baseline ran again and report steps.",
            accepted=False,
        )
    jobs = f"over {len(both)} jobs of the baseline that ran again"
    bounds = f"95 % interval {_signed(found.lower)} to {_signed(found.upper)}, {jobs}"
    if found.lower > 0 and math.expm1(found.estimate) > limit:
        return Outcome(
            f"Steps take {_share(found.estimate)} longer than in the baseline, more than "
            f"{as_text(limit, 'share')} ({bounds}).",
            accepted=False,
        )
    less = hodges_lehmann(useful)
    if less is not None and less.lower > 0 and -math.expm1(-less.estimate) > limit:
        return Outcome(
            f"The useful share is {_share(-less.estimate)} lower than in the baseline, more than "
            f"{as_text(limit, 'share')} ({jobs}).",
            accepted=False,
        )
    return Outcome(
        f"Steps take {_signed(found.estimate)} of the time beside the baseline ({bounds}).",
        accepted=True,
    )


def _share(logarithm: float) -> str:
    return as_text(abs(math.expm1(logarithm)), "share")


def _signed(logarithm: float) -> str:
    return f"{'-' if logarithm < 0 else '+'}{_share(logarithm)}"
