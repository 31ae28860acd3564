"""What ``docs/serving.md`` says of the chart, and its example for an autoscaler."""

from __future__ import annotations

import re

import promql_parser
import yaml

from alerts.recording import RECORDS
from gpunode.serving.requests import ServingEngines
from tests.needs import ROOT

DOCUMENT = (ROOT / "docs/serving.md").read_text()
RECORDED = {record.name: record for record in RECORDS}


def test_the_profile_that_is_named_for_pods_is_the_first_with_the_privilege() -> None:
    """The chart's README has a row for each profile: its name, and what it may."""
    assert "SYS_ADMIN" in ServingEngines.needs
    readme = (ROOT / "helm/gpunode/README.md").read_text().partition("## Platforms")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", readme, re.MULTILINE)
    profile, adds = next((name, adds) for name, may, adds in rows if "SYS_ADMIN" in may)
    assert "gpunode_serving_requests" in adds
    assert f"profile `{profile}`" in DOCUMENT
    kubernetes = (ROOT / "docs/kubernetes.md").read_text()
    for line in kubernetes.splitlines():
        if "inference engines" in line or "gpunode_serving_unanswered" in line:
            assert re.search(rf"profile[:=] ?{profile}\b", line), line
    assert "inference engines" in kubernetes


def test_the_example_for_keda_asks_for_series_that_are_recorded() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    triggers = yaml.safe_load(example)["spec"]["triggers"]
    assert len(triggers) == 2
    for trigger in triggers:
        # By default, KEDA divides by the replicas: https://keda.sh/docs/latest/reference/scaledobject-spec/#triggers
        assert trigger["metricType"] == "Value"
        query, threshold = trigger["metadata"]["query"], trigger["metadata"]["threshold"]
        promql_parser.parse(query)
        assert float(threshold) > 0
        ((name, labels),) = re.findall(r"(job:[\w:]+)\{([^}]*)\}", query)
        asked = set(re.findall(r"(\w+)=", labels))
        assert asked <= set(RECORDED[name].labels)
