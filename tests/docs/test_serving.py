"""The example for an autoscaler in ``docs/serving.md``: what it asks is recorded."""

from __future__ import annotations

import re

import promql_parser
import yaml

from alerts.recording import RECORDS
from tests.needs import ROOT

DOCUMENT = (ROOT / "docs/serving.md").read_text()
RECORDED = {record.name: record for record in RECORDS}


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
