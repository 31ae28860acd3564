"""The rule files of Prometheus, from the threshold table and the recording rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from alerts.figures import FORMATS
from alerts.recording import EVERY, OF_CLUSTERS, OF_NODES, Interval, Record
from alerts.thresholds.row import (
    GPU,
    NODE,
    PAUSE,
    PAUSED,
    Gate,
    Scope,
    Threshold,
    Tier,
    minutes,
)
from alerts.thresholds.table import THRESHOLDS

RUNBOOKS = "https://github.com/gpunode/gpunode/blob/main/alerts/runbooks"
NODE_PAGE = "/d/gpunode-node?var-instance={{ $labels.instance }}"
DASHBOARDS: dict[Scope, str] = {
    "gpu": NODE_PAGE,
    "node": NODE_PAGE,
    "cluster": "/d/gpunode-fleet",
}
PLACES: dict[Scope, str] = {
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
"""Names who holds the GPU; nothing if nobody does."""

URGENT = ("communication", "shared_memory", "hardware", "exporter")
"""Groups that are evaluated every 15 s, because their signals are gauges and seconds count."""

UNPAUSED = f"unless on ({GPU}) {PAUSE} > {PAUSED:g}"
GATES: dict[tuple[Gate, Scope], str] = {
    ("running", "gpu"): f"and on ({GPU}) gpu:gpunode_gpu_running:rate5m > 0.5 {UNPAUSED}",
    ("some_work", "gpu"): f"and on ({GPU}) gpu:gpunode_gpu_running:rate5m > 0.25 {UNPAUSED}",
    ("lately", "node"): f"and on ({NODE}) node:gpunode_gpu_running:max_1h",
}

SUFFIXES: dict[Interval, str] = {"30s": "recording", "1m": "recording_1h", "4m": "recording_days"}
"""What the names of groups of recording rules end in, by how often each is evaluated."""


def expression(row: Threshold, tier: Tier, cordoned: bool = False) -> str:
    """The expression of an alert; with ``cordoned``, of the warning that replaces a page."""
    parts = [f"{tier.signal or row.signal} {row.comparison} {tier.threshold:g}", row.where]
    if pages_unless_cordoned(row, tier):
        parts.append(f"{'and' if cordoned else 'unless'} on ({NODE}) {CORDONED}")
    if row.gate != "always":
        parts.append(GATES[row.gate, row.scope])
    return " ".join(filter(None, parts))


def pages_unless_cordoned(row: Threshold, tier: Tier) -> bool:
    """Whether a tier pages about a node, which it does not while the node is cordoned."""
    return tier.severity == "critical" and row.scope != "cluster"


def only_pages(row: Threshold) -> bool:
    """Whether a cordoned node would raise nothing without a rule of its own."""
    return all(pages_unless_cordoned(row, tier) for tier in row.tiers)


def in_words(row: Threshold, tier: Tier, value: str, label: str) -> str:
    """What a tier says, with its figure, and with each label as ``label`` writes a name."""
    labels = {name: label.replace("NAME", name) for name in row.identity}
    return (tier.says or row.says).format(value=value, **labels)


def rule(row: Threshold, tier: Tier, cordoned: bool = False) -> dict[str, Any]:
    """One alert rule."""
    said = in_words(row, tier, FORMATS[row.unit], "{{ $labels.NAME }}")
    held = HELD if row.scope == "gpu" else ""
    return {
        "alert": row.alert,
        "expr": expression(row, tier, cordoned),
        **({"for": tier.after} if minutes(tier.after) else {}),
        **({"keep_firing_for": row.keep_firing_for} if row.keep_firing_for else {}),
        "labels": {"severity": "warning" if cordoned else tier.severity, "group": row.group},
        "annotations": {
            "summary": row.summary,
            "summary_ko": row.summary_ko,
            "description": f"{PLACES[row.scope]}{said}.{held}",
            "runbook_url": f"{RUNBOOKS}/{row.alert}.md",
            "dashboard": DASHBOARDS[row.scope],
        },
    }


def groups(rows: Iterable[Threshold] = THRESHOLDS) -> dict[str, list[Threshold]]:
    """The rows of each file: a group of the table, or everything that compares nodes."""
    found: dict[str, list[Threshold]] = {}
    for row in rows:
        found.setdefault("cluster" if row.over_nodes else row.group, []).append(row)
    return found


def alert_rules(name: str, rows: Iterable[Threshold]) -> dict[str, Any]:
    """The alert rules of one file; what compares nodes comes with its recording rules."""
    rules = [
        rule(row, tier, cordoned)
        for row in rows
        for tier in row.tiers
        for cordoned in ((False, True) if only_pages(row) else (False,))
    ]
    interval = "15s" if name in URGENT else EVERY
    alerts = {"name": f"gpunode.{name}", "interval": interval, "rules": rules}
    recorded = recording_rules("cluster", OF_CLUSTERS) if name == "cluster" else []
    return {"groups": [*recorded, alerts]}


def recording_rules(level: str, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Groups of recording rules, one for each interval."""
    found: dict[Interval, list[dict[str, str]]] = {interval: [] for interval in SUFFIXES}
    for record in records:
        found[record.interval].append({"record": record.name, "expr": record.expression})
    return [
        {"name": f"gpunode.{level}_{SUFFIXES[interval]}", "interval": interval, "rules": rules}
        for interval, rules in found.items()
        if rules
    ]


def rule_files(rows: Iterable[Threshold] = THRESHOLDS) -> dict[str, dict[str, Any]]:
    """What Prometheus loads, by the name of the file."""
    return {
        "recording": {"groups": recording_rules("node", OF_NODES)},
        **{name: alert_rules(name, part) for name, part in groups(rows).items()},
    }
