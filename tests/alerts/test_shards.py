"""The rules on two shards of Prometheus, and on an engine above that sees both."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.alerts import shards
from tests.alerts.shards import ABOVE, STATUS, Restart
from tests.needs import need
from tests.prometheus.incidents import Engine

LASTS: dict[Engine, float] = {"prometheus": 65.0, "victoriametrics": 100.0}
"""Seconds until everybody is told: vmalert reads what it has recorded some evaluations later."""


def paged(engine: Engine, *restarts: Restart) -> list[dict[str, str]]:
    need("prometheus")
    need("alertmanager", "prometheus-alertmanager")
    if engine == "victoriametrics":
        need("victoria-metrics")
        need("vmalert")
    lasts = LASTS[engine] + sum(20.0 for _ in restarts)
    return [*shards.run(lasts, engine, restarts).get("pager", [])]


def is_told_once(alerts: list[dict[str, str]]) -> None:
    (job,) = (labels for labels in alerts if labels["alertname"] == "JobStalled")
    assert (job["workload"], job[STATUS]) == ("gpt", "firing")
    (node,) = (labels for labels in alerts if labels["alertname"] != "JobStalled")
    assert (node["alertname"], node["instance"]) == ("GpunodeDown", f"node-{shards.DOWN[1]}")
    assert node[STATUS] == "firing"


@pytest.mark.integration
@pytest.mark.parametrize("engine", get_args(Engine))
def test_a_job_over_both_shards_stands_still_once(engine: Engine) -> None:
    """The node that goes down with it is no page of its own; one that goes down alone is."""
    is_told_once(paged(engine))


@pytest.mark.integration
def test_restarts_of_a_shard_and_of_what_is_above_end_no_page_and_make_none() -> None:
    restarts = (Restart("shard0", at=45.0, away=4.0), Restart(ABOVE, at=60.0, away=4.0))
    is_told_once(paged("prometheus", *restarts))
