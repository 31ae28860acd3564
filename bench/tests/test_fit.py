"""The fit finds constants, what ships is what it found, and any constants divide a window."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ledger.fit import Score
from bench.ledger.search import at, best, places, put
from bench.report import DOCS
from gpunode.gpu.ledger import split
from gpunode.gpu.tuned import FITTED, Tuned
from gpunode.gpu.window import Window
from tests.gpu.test_ledger import windows
from tests.windows.programs import Program, recorded

PROGRAMS = recorded()


def test_what_ships_is_as_right_as_the_documents_say() -> None:
    published = json.loads((DOCS / "performance/22-fit.json").read_text())["results"]
    said = {result["what"]: result["measured"] for result in published}
    for model in {program.model for program in PROGRAMS if not program.rehearsed}:
        score = Score.of([p.error() for p in PROGRAMS if p.model == model and not p.rehearsed])
        for limit, count in (("0.05", score.close), ("0.10", score.near)):
            what = f"{model}, seen programs with every state within {limit}"
            assert said[what].startswith(f"{count} of {score.count} "), what


def test_the_search_finds_constants_that_explain_the_truth() -> None:
    """Programs that differ from what the ledger says as if copies were slower."""
    slower = replace(Tuned(), pageable_to_device=Tuned().pageable_to_device / 2)
    copying = [p for p in PROGRAMS if p.shares(Tuned()).get("copy", 0.0) > 0.1]
    assert len(copying) > 5
    alike = [
        Program(p.gpu, f"{n}", p.name, p.rehearsed, p.windows, p.shares(slower))
        for n, p in enumerate(copying)
    ]
    found = best(alike, Tuned())
    assert mean_error(alike, found) < 0.02 < 0.08 < mean_error(alike, Tuned())


def mean_error(programs: Sequence[Program], tuned: Tuned) -> float:
    return statistics.mean(program.error(tuned) for program in programs)


def test_an_error_between_states_of_a_kind_is_none_in_kind() -> None:
    program = next(p for p in PROGRAMS if p.shares().get("memory", 0.0) > 0.3)
    shares = program.shares()
    swapped = {**shares, "memory": shares.get("compute", 0.0), "compute": shares["memory"]}
    told = replace(program, truth=swapped)
    apart = abs(swapped["memory"] - swapped["compute"])
    assert told.error() == pytest.approx(apart)
    assert told.error_of_kinds() == pytest.approx(0.0)
    waiting = replace(program, truth={**shares, "copy": 0.2, "memory": shares["memory"] - 0.2})
    assert waiting.error_of_kinds() == pytest.approx(0.2, abs=0.05)


def test_nothing_moves_without_evidence() -> None:
    right = [replace(p, truth=p.shares(Tuned())) for p in PROGRAMS[:5]]
    assert best(right, Tuned()) == Tuned()


@pytest.mark.parametrize("name", [field.name for field in fields(Tuned)])
def test_what_cannot_be_is_refused(name: str) -> None:
    wrong: Any = (2.0, 1.9) if isinstance(getattr(Tuned(), name), tuple) else -1.0
    with pytest.raises(ValueError, match=name):
        replace(FITTED, **{name: wrong})


@st.composite
def constants(draw: st.DrawFn) -> Tuned:
    """Any constants, each within a factor of two of what ships."""
    tuned = FITTED
    for place in places():
        factor = math.exp(draw(st.floats(-math.log(2), math.log(2))))
        try:
            tuned = put(tuned, place, at(tuned, place) * factor)
        except ValueError:
            continue
    return tuned


@settings(deadline=None)
@given(windows, constants())
def test_any_constants_give_shares(seen: Window, tuned: Tuned) -> None:
    shares = split(seen, tuned).shares
    assert all(share >= -1e-9 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1)
