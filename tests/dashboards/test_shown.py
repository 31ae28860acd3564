"""What is measured has a place: on a dashboard, in a rule, in a verdict, or a reason why not."""

from __future__ import annotations

import json
import re

import pytest

from dashboards import FOLDER
from dashboards.lines import LINES
from dashboards.queries import METRIC
from dashboards.rules import alerts, records
from dashboards.unshown import UNSHOWN
from gpunode.sources import METRICS
from gpunode.verdict import waiting
from gpunode.verdict.causes import USES

SHOWN = "".join(
    target["expr"]
    for path in sorted(FOLDER.glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
    for target in panel.get("targets", ())
)
ASKED = SHOWN + " ".join((*records().values(), *(one.expression for one in alerts())))

NAMED = {re.sub("_(bucket|count|sum)$", "", found[1]) for found in METRIC.finditer(ASKED)}

OURS = {
    metric.name
    for metrics in METRICS.values()
    for metric in metrics
    if metric.name.startswith("gpunode_")
}
"""All but names of other exporters for the same readings, and what every program has of itself."""

WITHOUT = {name for names in UNSHOWN.values() for name in names}


def test_every_metric_has_a_place_or_a_reason() -> None:
    placed = NAMED | {metric.name for metric in (*USES, *waiting.USES)}
    assert not OURS - placed - WITHOUT, "show it, or say why not in dashboards/unshown.py"
    assert WITHOUT <= OURS
    assert not WITHOUT & placed, "it has a place: take it out of dashboards/unshown.py"


def test_a_reason_names_a_metric_once_in_order() -> None:
    assert sum(len(names) for names in UNSHOWN.values()) == len(WITHOUT)
    for names in UNSHOWN.values():
        assert list(names) == sorted(names)


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_drawn(line: str) -> None:
    """What is asked is what the line looks at, narrowed to what the dashboard has selected."""

    def plain(expression: str) -> str:
        return re.sub(
            r'(cluster|instance|gpu|owner_namespace|workload)=~"\$[^"]*",?|[{},\s]', "", expression
        )

    assert plain(LINES[line].signal) in plain(SHOWN)


@pytest.mark.parametrize(
    ("uid", "metric"),
    [
        ("node", "gpunode_disk_bytes_total"),
        ("node", "gpunode_cpu_busy_cores"),
        ("node", "gpunode_nccl_setting_info"),
        ("node", "gpunode_gpu_utilization_ratio"),
        ("job", "gpunode_nccl_setting_info"),
        ("job", "gpunode_training_tokens_total"),
    ],
)
def test_what_people_look_at_is_on_the_dashboard(uid: str, metric: str) -> None:
    assert metric in (FOLDER / f"gpunode-{uid}.json").read_text()
