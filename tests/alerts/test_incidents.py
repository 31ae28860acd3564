"""Incidents end to end: the daemon, a real Prometheus, a real Alertmanager."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from gpunode.recorded import INCIDENTS as TAPES
from tests.needs import find, need
from tests.prometheus.incidents import INCIDENTS, Engine, faults, play


def test_every_tape_is_an_incident() -> None:
    assert INCIDENTS.keys() == {path.name.partition(".")[0] for path in TAPES.glob("*.jsonl.gz")}


ENGINES: dict[Engine, tuple[str, ...]] = {
    "prometheus": ("prometheus",),
    "victoriametrics": ("victoria-metrics", "vmalert"),
}
"""What evaluates the rules, and the programs that takes."""


@pytest.mark.integration
def test_incidents_raise_their_alerts_and_healthy_nodes_none() -> None:
    need("alertmanager", "prometheus-alertmanager")
    engines = [engine for engine, programs in ENGINES.items() if all(map(find, programs))]
    tapes = ["healthy", "h200_hang", "h200_shm"]
    with ThreadPoolExecutor() as side_by_side:
        played = dict(
            zip(
                engines,
                side_by_side.map(lambda engine: play(tapes, 100.0, engine), engines),
                strict=True,
            )
        )
    for engine, fired in played.items():
        wrong = {tape: found for tape in tapes if (found := faults(tape, fired))}
        assert wrong == {}, engine
    for program in chain.from_iterable(ENGINES.values()):
        need(program)
