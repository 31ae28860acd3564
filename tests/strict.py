"""What the loop forgives on a node and no test may: see ``conftest.strict_sources``."""

from __future__ import annotations

from gpunode.loop import Watch
from gpunode.metric import Sample
from gpunode.source import FAILURES, Source, View

_STEP = Watch.step
_COMPLAIN = Watch._complain


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


def complain(watch: Watch, error: Exception | None) -> None:
    """Log a failed read as the loop does, but raise what is no failure of the node."""
    if error is not None and not isinstance(error, FAILURES):
        raise error
    _COMPLAIN(watch, error)
