"""Incidents end to end: the daemon, a real Prometheus, a real Alertmanager."""

from __future__ import annotations

import pytest

from tests.bench.incidents import INCIDENTS, faults, find, play
from tests.replay import TAPES

missing = [
    package
    for package, program in (
        ("prometheus", "prometheus"),
        ("prometheus-alertmanager", "alertmanager"),
    )
    if not find(package, program)
]


def test_every_tape_is_an_incident() -> None:
    assert INCIDENTS.keys() == {path.name.partition(".")[0] for path in TAPES.glob("*.jsonl.gz")}


@pytest.mark.skipif(bool(missing), reason=f"apt-get install {' '.join(missing)}")
def test_incidents_raise_their_alerts_and_healthy_nodes_none() -> None:
    tapes = ["healthy", "hang", "h200_shm"]
    fired = play(tapes, 70.0)
    assert {tape: wrong for tape in tapes if (wrong := faults(tape, fired))} == {}
    stalled = [alert for alert in fired if alert.alert == "CollectiveStalled"]
    assert min(alert.after for alert in stalled) < 60
