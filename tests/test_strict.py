"""The checks that every test runs under can fail."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpunode.loop import Loop, complaints
from gpunode.loop.door import Door
from gpunode.loop.metrics import UP
from gpunode.loop.watch import Counts, Published, Watch
from gpunode.metric import Metric, Sample
from gpunode.node.node import SteppedClock
from gpunode.source import WHOLE_NODE, Place, Reading, Source
from tests import strict
from tests.daemon import daemon

DECLARED = Metric("gpunode_declared", "gauge", "Declared.", ())
UNDECLARED = Metric("gpunode_undeclared", "gauge", "Not declared.", ())


class ScriptedSource:
    """A source that tells one metric, or fails."""

    name = "told"
    every = 1.0
    metrics = (DECLARED,)

    def __init__(self, tells: Metric | Exception) -> None:
        self.tells = tells

    def read(self) -> Reading:
        if isinstance(self.tells, Exception):
            raise self.tells
        return Reading((Sample(self.tells, (), 1.0),))


def watch(tells: Metric | Exception) -> Watch:
    source = ScriptedSource(tells)
    return Watch(source, WHOLE_NODE, source.read, SteppedClock(0.0), Counts(), Door(), Published())


def test_a_metric_that_its_source_does_not_declare_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"told does not declare .*gpunode_undeclared"):
        watch(UNDECLARED).step()


def test_a_fault_of_ours_fails_the_test() -> None:
    with pytest.raises(KeyError):
        watch(KeyError("ours")).step()


class Fails:
    """A finder that fails with a fault of ours."""

    name = "fails"

    def find(self) -> Iterable[tuple[Place, Source]]:
        raise KeyError("ours")


class Finds:
    """A finder that finds one source."""

    name = "finds"

    def find(self) -> Iterable[tuple[Place, Source]]:
        return ((WHOLE_NODE, ScriptedSource(DECLARED)),)


def test_a_fault_of_ours_in_a_finder_fails_the_test() -> None:
    with pytest.raises(KeyError):
        Loop(SteppedClock(0.0), [Fails()], find_every=10.0).find()


def test_a_fault_of_ours_in_a_finder_ends_no_search_on_a_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(complaints, "complain", strict.COMPLAIN)
    searched = Loop(SteppedClock(0.0), [Fails(), Finds()], find_every=10.0)
    searched.find()
    searched.find()
    assert [watch.source.name for watch in searched.watches.values()] == ["told"]
    up = {s.labels[0]: s.value for s in searched.samples() if s.metric is UP}
    assert up == {"fails": 0.0, "finds": 1.0, "told": 0.0}
    assert len([r for r in caplog.records if "KeyError: 'ours'" in r.getMessage()]) == 1


BREAKS = """
from gpunode.host.cpu import Cpu
Cpu.read = lambda self: {}["ours"]
"""


def test_a_fault_of_ours_in_a_daemon_fails_the_test_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with pytest.raises(AssertionError, match="KeyError: 'ours'"), daemon(environment=environment):
        pass
