"""The rules on two shards of Prometheus and on one that sees both."""

from __future__ import annotations

import pytest

from tests.bench import shards
from tests.needs import need


@pytest.mark.integration
def test_a_job_over_both_shards_stands_still_once() -> None:
    """The node that goes down with it is no page of its own; one that goes down alone is."""
    need("prometheus")
    need("alertmanager", "prometheus-alertmanager")
    paged = [*shards.run(50.0).get("pager", [])]
    (job,) = (labels for labels in paged if labels["alertname"] == "JobStalled")
    assert job["workload"] == "gpt"
    (node,) = (labels for labels in paged if labels["alertname"] != "JobStalled")
    assert (node["alertname"], node["instance"]) == ("GpunodeDown", f"node-{shards.DOWN[1]}")
