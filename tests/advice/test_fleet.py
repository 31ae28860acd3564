"""The advice for fleets by the alerts that the shipped rules raise in the scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpunode.advice.actions import OF_ALERTS
from gpunode.advice.faults import ALERTS, FAULT_LEVEL, UNHEALTHY
from gpunode.advice.node import by_rules
from gpunode.advice.series import SeriesNow, by_node
from gpunode.cli.advise import FLEET_FAULT
from tests.alerts.scenarios.play import Alert, timelines
from tests.alerts.scenarios.shorthand import Scenario, scenarios
from tests.needs import need

SCENARIOS = scenarios()
PAGED = {UNHEALTHY, *OF_ALERTS}


PARTS = 36
"""The scenarios are played in so many parts."""


def broken(scenario: Scenario, *, may_be: bool = False) -> set[str]:
    """The nodes that somebody is to be, or may be, paged about, since no job can run there."""
    return {
        wanted.labels["instance"]
        for wanted in scenario.notified
        if (wanted.must or may_be) and wanted.severities == ("page",) and wanted.alert in PAGED
        if "instance" in wanted.labels
    }


BROKEN = [name for name in sorted(SCENARIOS) if broken(SCENARIOS[name])]
QUIET = [name for name in sorted(SCENARIOS) if not SCENARIOS[name].notified]


def series(alerts: frozenset[Alert]) -> Iterator[SeriesNow]:
    """Alerts as Prometheus has them, each GPU that is out of order with the worst of reasons."""
    for alert in alerts:
        labels = {**dict(alert), "alertstate": "firing"}
        yield SeriesNow(ALERTS, labels, 1.0)
        if labels["alertname"] == UNHEALTHY:
            at = {key: labels[key] for key in ("cluster", "instance", "gpu", "uuid")}
            yield SeriesNow(FAULT_LEVEL, {**at, "reason": "XID 79: reboot the node"}, 2.0)


@pytest.mark.integration
@pytest.mark.sweep(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_fleet_drains_the_nodes_that_page_and_none_where_nobody_is_told(part: int) -> None:
    need("promtool")
    chosen = {name: SCENARIOS[name] for name in BROKEN[part::PARTS] + QUIET[part::PARTS]}
    assert any(map(broken, chosen.values()))
    wrong = {}
    for name, timeline in timelines(chosen).items():
        drained = set()
        for alerts in set(timeline.firing):
            labels = [dict(alert) for alert in alerts]
            shared = {one.get("fault", "") for one in labels if one["alertname"] == FLEET_FAULT}
            for node in by_node(series(alerts), 0.0):
                if by_rules(node, shared, {}).drain:
                    drained.add(node.node)
        if not broken(chosen[name]) <= drained <= broken(chosen[name], may_be=True):
            wrong[name] = drained, broken(chosen[name])
    assert wrong == {}
