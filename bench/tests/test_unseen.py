"""What is published of programs that nobody had run, and what similar programs would teach."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, replace

from bench.ledger import unseen
from bench.ledger.similar import corrected
from bench.report import DOCS
from gpunode.gpu.tuned import FITTED
from tests.windows.programs import Program, recorded


def test_the_ledger_and_the_verdicts_are_as_right_as_the_documents_say() -> None:
    published = json.loads((DOCS / "performance/33-unseen.json").read_text())
    said = asdict(unseen.report())
    for of_this_day in ("details", "version"):
        said.pop(of_this_day)
    assert published.items() >= said.items()


def test_no_unseen_program_is_among_those_that_the_constants_are_fitted_to() -> None:
    fitted = {(p.family, p.name.partition("@")[0]) for p in recorded()}
    apart = recorded(sorted(unseen.UNSEEN.glob("windows-*.jsonl.gz")))
    assert apart
    assert not fitted & {(p.family, p.name.partition("@")[0]) for p in apart}


def test_what_similar_programs_are_wrong_by_is_learned() -> None:
    """Truths as if kernels reached less, which no reading but the pipes' and HBM's tells."""
    lower = replace(FITTED, tensor_of_models=FITTED.tensor_of_models / 2)
    programs = [p for p in recorded() if 0.1 < p.shares().get("compute", 0.0) < 0.9]
    alike = [replace(p, family=f"{n}", truth=p.shares(lower)) for n, p in enumerate(programs)]
    learned = corrected(alike, alike)
    before = statistics.mean(_off(p, p.shares()) for p in alike)
    after = statistics.mean(_off(p, shares) for p, shares in zip(alike, learned, strict=True))
    assert after < 0.7 * before


def _off(program: Program, shares: dict[str, float]) -> float:
    return abs(shares.get("compute", 0.0) - program.truth.get("compute", 0.0))
