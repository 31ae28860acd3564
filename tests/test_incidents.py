"""Incidents end to end: the daemon, a real Prometheus, a real Alertmanager."""

from __future__ import annotations

import pytest

from gpunode.config import INCIDENTS as TAPES
from tests.bench.incidents import INCIDENTS, Engine, faults, play
from tests.needs import need


def test_every_tape_is_an_incident() -> None:
    assert INCIDENTS.keys() == {path.name.partition(".")[0] for path in TAPES.glob("*.jsonl.gz")}


@pytest.mark.parametrize(
    ("engine", "needs"),
    [
        ("prometheus", ("prometheus",)),
        ("victoriametrics", ("victoria-metrics", "vmalert")),
    ],
)
def test_incidents_raise_their_alerts_and_healthy_nodes_none(
    engine: Engine, needs: tuple[str, ...]
) -> None:
    for program in needs:
        need(program)
    need("alertmanager", "prometheus-alertmanager")
    tapes = ["healthy", "hang", "h200_shm"]
    fired = play(tapes, 70.0, engine)
    assert {tape: wrong for tape in tapes if (wrong := faults(tape, fired))} == {}
    stalled = [alert for alert in fired if alert.alert == "CollectiveStalled"]
    assert min(alert.after for alert in stalled) < 60
