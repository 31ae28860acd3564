"""The rule files of Prometheus, from the threshold table and the recording rules."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from alerts.figures import FORMATS
from alerts.recording import EVERY, HOURLY, OF_CLUSTERS, OF_NODES, Record
from alerts.thresholds.table import GPU, NODE, PAUSE, THRESHOLDS, Threshold, Tier

RUNBOOKS = "https://github.com/gpunode/gpunode/blob/main/alerts/runbooks"
NODE_PAGE = "/d/gpunode-node?var-instance={{ $labels.instance }}"
DASHBOARDS = {"gpu": NODE_PAGE, "node": NODE_PAGE, "cluster": "/d/gpunode-fleet"}
PLACES = {
    "gpu": "GPU {{ $labels.gpu }} of {{ $labels.instance }}: ",
    "node": "{{ $labels.instance }}: ",
    "cluster": "",
}
CORDONED = "node:kube_node_spec_unschedulable:max"

HELD = (
    '{{ with printf "gpunode_gpu_owner_info{instance=%q,uuid=%q}" $labels.instance $labels.uuid '
    "| query }} Held by{{ range . }} "
    "{{ or .Labels.owner_pod .Labels.slurm_job .Labels.user }}{{ end }}.{{ end }}"
)
"""Names who holds the GPU; nothing where nobody does."""

URGENT = ("communication", "shared_memory", "hardware", "exporter")
"""Parts of the table whose signals are gauges and whose seconds count; the others look back on
minutes, and their rates over a fleet take time."""


def minutes(duration: str) -> int:
    """A duration of Prometheus in minutes, rounded up."""
    number, unit = int(duration[:-1]), duration[-1]
    return math.ceil(number * {"s": 1 / 60, "m": 1, "h": 60}[unit])


UNPAUSED = f"unless on ({GPU}) {PAUSE} > 0.1"
GATES = {
    ("running", "gpu"): f"and on ({GPU}) gpu:gpunode_gpu_running:rate5m > 0.5 {UNPAUSED}",
    ("some_work", "gpu"): f"and on ({GPU}) gpu:gpunode_gpu_running:rate5m > 0.25 {UNPAUSED}",
    ("lately", "node"): f"and on ({NODE}) node:gpunode_gpu_running:max_1h",
}


def expression(row: Threshold, tier: Tier, cordoned: bool = False) -> str:
    """The expression of an alert; with ``cordoned``, of the warning that is left of a page."""
    signal = f"({row.signal})" if re.search(r" (and|unless|or) on ", row.signal) else row.signal
    told = f"{signal} {row.comparison} {tier.threshold:g}"
    if pages_unless_cordoned(row, tier):
        told += f" {'and' if cordoned else 'unless'} on ({NODE}) {CORDONED}"
    if row.gate == "always":
        return told
    return f"{told} {GATES[row.gate, row.scope]}"


def pages_unless_cordoned(row: Threshold, tier: Tier) -> bool:
    """Whether a tier pages about a node, which it does not where the node is cordoned."""
    return tier.severity == "critical" and row.scope != "cluster"


def only_pages(row: Threshold) -> bool:
    """Whether nothing would be told of a cordoned node without a rule of its own."""
    return all(pages_unless_cordoned(row, tier) for tier in row.tiers)


def rule(row: Threshold, tier: Tier, cordoned: bool = False) -> dict[str, Any]:
    """One alert rule."""
    held = HELD if row.scope == "gpu" else ""
    figure = f"{FORMATS[row.unit]} {row.says}".strip()
    told = f"{PLACES[row.scope]}{figure}."
    return {
        "alert": row.alert,
        "expr": expression(row, tier, cordoned),
        **({"for": tier.after} if minutes(tier.after) else {}),
        **({"keep_firing_for": row.keep} if row.keep else {}),
        "labels": {"severity": "warning" if cordoned else tier.severity, "group": row.group},
        "annotations": {
            "summary": row.summary,
            "summary_ko": row.korean,
            "description": told + held,
            "runbook_url": f"{RUNBOOKS}/{row.alert}.md",
            "dashboard": DASHBOARDS[row.scope],
        },
    }


def groups(rows: Iterable[Threshold] = THRESHOLDS) -> dict[str, list[Threshold]]:
    """The rows of each file: a part of the table, or what rests on more than one node."""
    found: dict[str, list[Threshold]] = {}
    for row in rows:
        found.setdefault("cluster" if row.over_nodes else row.group, []).append(row)
    return found


def alert_rules(name: str, rows: Iterable[Threshold]) -> dict[str, Any]:
    """The alert rules of one part of the table; with what compares nodes, the rules it rests on."""
    rules = [
        rule(row, tier, cordoned)
        for row in rows
        for tier in row.tiers
        for cordoned in ((False, True) if only_pages(row) else (False,))
    ]
    interval = "15s" if name in URGENT else f"{EVERY}s"
    alerts = {"name": f"gpunode.{name}", "interval": interval, "rules": rules}
    recorded = recording_rules("cluster", OF_CLUSTERS) if name == "cluster" else []
    return {"groups": [*recorded, alerts]}


def recording_rules(level: str, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Groups of recording rules; what looks back on days is evaluated less often.

    Not more than five minutes apart, after which Prometheus takes a series for gone.
    """
    intervals = {f"{EVERY}s": "recording", "1m": "recording_1h", f"{HOURLY}m": "recording_days"}
    found: dict[str, list[dict[str, str]]] = {interval: [] for interval in intervals}
    for record in records:
        window = re.search(r":rate(1h|1h_hourly|1d|30d)$", record.name)
        interval = f"{EVERY}s" if not window else "1m" if window[1] == "1h" else f"{HOURLY}m"
        found[interval].append({"record": record.name, "expr": record.expression})
    return [
        {"name": f"gpunode.{level}_{intervals[interval]}", "interval": interval, "rules": rules}
        for interval, rules in found.items()
        if rules
    ]


def rule_files(rows: Iterable[Threshold] = THRESHOLDS) -> dict[str, dict[str, Any]]:
    """What Prometheus loads, by the name of the file."""
    return {
        "recording": {"groups": recording_rules("node", OF_NODES)},
        **{name: alert_rules(name, part) for name, part in groups(rows).items()},
    }
