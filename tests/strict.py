"""What the loop forgives on a node and no test may: see ``conftest.strict_sources``."""

from __future__ import annotations

from gpunode.loop import complaints
from gpunode.loop.watch import Watch
from gpunode.metric import Sample
from gpunode.source import FAILURES, Absent, Source, View

_STEP = Watch.step
COMPLAIN = complaints.complain


def step(watch: Watch) -> None:
    """Read a source once, and see that it kept to what it declares."""
    _STEP(watch)
    if watch.batch is not None:
        declared(watch.source, watch.batch.reading.samples)


def declared(source: Source | View, samples: tuple[Sample, ...]) -> None:
    """A metric that its source does not declare is in no document, and no rule on it is checked."""
    known = {metric.name for metric in source.metrics}
    undeclared = {sample.metric.name for sample in samples} - known
    assert not undeclared, f"{source.name} does not declare {undeclared}"


def complain(where: str, what: str, error: BaseException) -> None:
    """Log a failure as the loop does, but raise what is no failure of the node."""
    if not isinstance(error, (Absent, *FAILURES)):
        raise error
    COMPLAIN(where, what, error)
